"""Define schedules of a Plan's weights over the steps, as immutable values."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from tintype.settings import Settings


def _is_moment(value: int | float) -> int | float:
    if value >= 0 and (isinstance(value, int) or value <= 1):
        return value
    raise ValueError("give a step as a whole number of at least 0, or as a share of the training from 0.0 to 1.0")


Moment = Annotated[int | float, AfterValidator(_is_moment)]
"""A step (an integer), or a fraction of the training (a float); 1 is the step after the first, and 1.0 is the end."""


def step_of(moment: int | float, steps: int) -> int:
    """Return the step for a step number or a fraction of a training of `steps` steps."""
    return round(moment * steps) if isinstance(moment, float) else moment


class Schedule(Settings):
    """A factor between 0 and 1 for each step (counted from 0).

    constant: always 1. until: 1 from `start` to just before `end`, else 0. ramp: rises linearly from `start` and
    reaches 1 at the step before `end`. fall: 1 minus the ramp. cosine: 1 up to `start`, then half a cosine, and 0 from
    `end` on.
    """

    kind: Literal["constant", "until", "ramp", "fall", "cosine"] = "constant"
    start: int = Field(0, ge=0, description="Step at which the change begins")
    end: int | None = Field(None, ge=1, description="Step at which the change ends")

    @model_validator(mode="after")
    def _consistent(self) -> Schedule:
        if self.kind == "constant":
            if self.start or self.end is not None:
                raise ValueError(
                    "a constant schedule has no start and no end; the kinds until, ramp, fall and cosine have both"
                )
        elif self.end is None:
            raise ValueError(f"the schedule '{self.kind}' needs an end, which is a step")
        elif self.end <= self.start:
            raise ValueError(f"the schedule must end (step {self.end}) after it starts (step {self.start})")
        return self

    def factor(self, step: int) -> float:
        if self.end is None:
            return 1.0
        share = (step - self.start) / (self.end - self.start)
        if self.kind == "until":
            return 1.0 if 0 <= share < 1 else 0.0
        if self.kind in ("ramp", "fall"):
            risen = min(1.0, max(0.0, (step + 1 - self.start) / (self.end - self.start)))
            return risen if self.kind == "ramp" else 1.0 - risen
        return 0.5 * (1 + math.cos(math.pi * share)) if 0 <= share < 1 else float(share < 0)

    def factors_in(self, steps: int) -> set[float]:
        """Return the factors at the first and last of `steps` steps and at the schedule's edges.

        These factors include the minimum and the maximum. If all factors are 0, the schedule has no effect in the run;
        if all factors are equal, the schedule is constant.
        """
        edges = (0, self.start - 1, self.start, (self.end or 1) - 1, self.end or 0, steps - 1)
        return {self.factor(step) for step in edges if 0 <= step < steps}

    def over(self, step: int) -> bool:
        """Return whether the factor is 0 from this step on."""
        if self.end is None or self.kind == "ramp":
            return False
        return step >= (self.end - 1 if self.kind == "fall" else self.end)
