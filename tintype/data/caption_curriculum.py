"""caption-curriculum: one caption first, then more and more of a mix.

PRX's authors advise to end training on a mix of long and short captions, without a number; when it begins and how long
the change takes are this project's choice. With the schedule's factor s, a sample reads the first column with weight
1 - s and the mix with weight s. A schedule that falls (cosine) goes the other way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from tintype.data.captions import CaptionsPart, Weights, describe_weights, pick_weighted
from tintype.schedule import Schedule
from tintype.settings import PlanView


class CurriculumSettings(CaptionsPart):
    kind: Literal["curriculum"] = "curriculum"
    first: str
    weights: Weights
    schedule: Schedule = Field(description="The share of the samples that read the mix, at each step")

    @model_validator(mode="after")
    def _changes(self) -> CurriculumSettings:
        if set(self.weights) == {self.first}:
            raise ValueError(f"a curriculum from '{self.first}' to '{self.first}' changes nothing; add a column to it")
        if self.schedule.end is None:
            raise ValueError("a curriculum with a constant schedule is a mix: take the kind mix (caption-mix)")
        return self

    def check(self, plan: PlanView) -> None:
        if self.schedule.end is not None and self.schedule.end > plan.train.steps:
            raise ValueError(
                f"captions: the curriculum ends at step {self.schedule.end}, but the run has {plan.train.steps} steps "
                "(train.steps); end it earlier, or train longer"
            )
        if len(self.schedule.factors_in(plan.train.steps)) == 1:
            raise ValueError(
                f"captions: the curriculum does not change in {plan.train.steps} steps (train.steps): "
                f"captions.schedule is '{self.schedule.kind}' from step {self.schedule.start} to {self.schedule.end}; "
                "let it change earlier, or take a mix (caption-mix)"
            )

    def weights_at(self, step: int) -> dict[str, float]:
        """Return the weights at a step; they sum to 1."""
        share, total = self.schedule.factor(step), sum(self.weights.values())
        weights = {column: share * weight / total for column, weight in self.weights.items()}
        return {**weights, self.first: weights.get(self.first, 0.0) + 1 - share}

    def pick(self, captions: Mapping[str, str], u: float, step: int) -> str:
        """Pick by the weights of the step; an image without any such caption reads another of its captions."""
        every = {self.first: 1.0, **self.weights}
        return pick_weighted(captions, self.weights_at(step), u) or pick_weighted(captions, every, u)

    def columns(self) -> frozenset[str]:
        return frozenset({self.first, *self.weights})

    def describe(self) -> str:
        when = f"{self.schedule.kind} from step {self.schedule.start:,} to {self.schedule.end:,}"
        return f"column {self.first}, then a mix ({when}): {describe_weights(self.weights)}"
