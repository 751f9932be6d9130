"""Base settings of a loss term, such as its weight, the schedule of the weight, and requirements on the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from pydantic import Field

from tintype.flow import part
from tintype.flow.part import ObjectivePart, RoutePart
from tintype.schedule import Schedule
from tintype.seams import LossContext, LossTerm
from tintype.settings import DataPart, Part, Settings
from tintype.tokenizers.part import TokenizerPart


class Scheduled(Settings):
    """Base of settings whose weight has a schedule."""

    schedule: Schedule = Field(Schedule(), description="Schedule of the weight over training")


class PlanView(part.PlanView, Protocol):
    @property
    def data(self) -> DataPart: ...
    @property
    def tokenizer(self) -> TokenizerPart: ...
    @property
    def objective(self) -> ObjectivePart: ...
    @property
    def route(self) -> RoutePart | None: ...
    @property
    def losses(self) -> Sequence[Part]: ...
    @property
    def ema(self) -> Settings | None: ...


class LossPart(Scheduled, Part):
    """Settings of a loss term. Logs name a term by its kind, so a plan has at most one term of each kind."""

    any_shape: ClassVar[bool] = False
    """Whether the term supports images of several shapes in one run."""

    weight: float = Field(1.0, gt=0, description="Weight of this term in the sum of the losses")

    def weight_at(self, step: int) -> float:
        return self.weight * self.schedule.factor(step)

    def check(self, plan: PlanView) -> None:
        if not any(self.schedule.factors_in(plan.train.steps)):
            raise ValueError(
                f"{self.kind}: the weight of this loss is 0 at every step: its schedule is "
                f"'{self.schedule.kind}' from step "
                f"{self.schedule.start} to {self.schedule.end}, and the run has {plan.train.steps} steps "
                "(train.steps); change the schedule"
            )

    def velocity_bias(self, last_step: int) -> float:
        """Return λ if this term biases the trained velocity to (E[v | x_t] - λ m) / (1 - λ), otherwise 0.

        Here, m is the mean target velocity. Guidance's `unbias` removes the bias for the sum of λ over all terms.
        """
        return 0.0

    def fetch(self, grid: tuple[int, int]) -> None:
        """Download the weights for a token grid, or raise an error. This method is called before a study begins."""

    def build(self, context: LossContext) -> LossTerm:
        raise NotImplementedError
