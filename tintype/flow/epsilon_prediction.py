"""epsilon-prediction: the network predicts the noise.

The loss compares velocities, unless a weighting changes the space of the loss. v = (noise - x_t) / max(1 - t, clamp).
JiT's grid (arXiv 2511.13720, table 1) combines three predictions (`velocity`, `x-prediction`, `epsilon-prediction`)
with three spaces of the loss (`loss-space`, a weighting).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from tintype.flow import path
from tintype.flow.part import ObjectivePart
from tintype.seams import Draws, Sample, TimeDensity
from tintype.settings import ExportForm, Obstacle
from tintype.wording import setting, technique

CLAMP = 0.05


class EpsilonPredictionSettings(ObjectivePart):
    predicts: ClassVar[Literal["velocity", "x", "epsilon"]] = "epsilon"

    kind: Literal["epsilon-prediction"] = "epsilon-prediction"
    clamp: float = Field(
        CLAMP, gt=0, lt=1, description="Lower bound of 1 - t where the velocity is computed by a division by 1 - t"
    )

    def obstacles(self, form: ExportForm) -> Iterator[Obstacle]:
        yield from super().obstacles(form)
        if form != "safetensors":
            yield Obstacle(
                f"objective: {form} takes no prediction of the noise, and to convert it needs x_t and t, which no last "
                "layer can add",
                setting("objective.kind", "velocity") if form == "PRXPipeline" else technique("x-prediction"),
            )

    def build(self, time: TimeDensity) -> EpsilonPrediction:
        return EpsilonPrediction(time, self.clamp, self.noise_scale)


@dataclass(frozen=True)
class EpsilonPrediction:
    time: TimeDensity
    clamp: float
    noise_scale: float = 1.0

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample:
        return path.draw_sample(x_BCHW, self.time, draws, self.noise_scale)

    def target(self, sample: Sample) -> Tensor:
        return path.noise_to_velocity(sample.noise_BCHW, sample.x_t_BCHW, sample.t_B, self.clamp)

    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor:
        return path.noise_to_velocity(prediction_BCHW.to(x_t_BCHW.dtype), x_t_BCHW, t_B, self.clamp)

    def x_weight(self, t_B: Tensor) -> Tensor:
        return t_B.square().reciprocal()

    def noise_weight(self, t_B: Tensor) -> Tensor:
        return (1 - t_B).clamp_min(self.clamp).square().reciprocal()
