"""loss-space: the loss is the squared error of x or of the noise, whatever the network predicts (arXiv 2511.13720).

See table 1 of the paper. All errors are equal up to a factor that depends on t. The error of x is t times the error of
the velocity. The error of the noise is 1 - t times the error of the velocity. So a space of the loss is a weight on the
velocity's error. The objective knows this factor.

If an objective clamps its division, only the error of its own prediction is exact. The other error is computed with
the clamped velocity v, from x = x_t - t v or from noise = x_t + (1 - t) v. For x-prediction, the error of the noise is
the error of x times ((1 - t) / max(t, clamp))². Without the clamp, it would grow without bound for t → 0.

B: samples of a micro-batch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from tintype.flow.part import PlanView, WeightingPart
from tintype.seams import Objective, TimeDensity, Weighting


class LossSpaceSettings(WeightingPart):
    kind: Literal["loss-space"] = "loss-space"
    space: Literal["x", "epsilon"] = Field(
        "x", description="Quantity whose squared error is the loss, either the clean image (x) or the noise (epsilon)"
    )

    def check(self, plan: PlanView) -> None:
        if plan.main_loss.kind != "square":
            raise ValueError(
                f"loss-space: the technique needs a squared error as main loss, but main_loss.kind is "
                f"'{plan.main_loss.kind}'; leave one of the two out"
            )

    def build(self, time: TimeDensity, objective: Objective) -> Weighting:
        factor = objective.x_weight if self.space == "x" else objective.noise_weight

        def weight(t_B: Tensor) -> Tensor:
            return factor(t_B).reciprocal()

        return weight
