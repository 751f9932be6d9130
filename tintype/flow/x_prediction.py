"""x-prediction: the network predicts the clean image, and the loss is taken on velocities (JiT, arXiv 2511.13720).

Prediction and target are both converted to velocities with t clamped from below, as in JiT's code. Time in JiT's code
has the opposite direction. So the loss is the squared error of x weighted by 1 / max(t, clamp)². The sampler uses the
same clamp.
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
from tintype.wording import setting

PRX_CLAMP = 0.05
"""The smallest divisor t in `PRXPixelPipeline`."""


class XPredictionSettings(ObjectivePart):
    predicts: ClassVar[Literal["velocity", "x", "epsilon"]] = "x"

    kind: Literal["x-prediction"] = "x-prediction"
    clamp: float = Field(
        PRX_CLAMP, gt=0, lt=1, description="Lower bound of t where the velocity is computed by a division by t"
    )

    def obstacles(self, form: ExportForm) -> Iterator[Obstacle]:
        yield from super().obstacles(form)
        if form == "PRXPipeline":
            yield Obstacle(
                "objective: PRXPipeline takes a prediction of the velocity, and this run predicts clean latents. "
                "To convert one to the other needs x_t and t, which no last layer can add, and a pipeline of its "
                "own would be code that the folder brings",
                setting("objective.kind", "velocity"),
            )
        if form == "PRXPixelPipeline" and self.clamp != PRX_CLAMP:
            yield Obstacle(
                f"objective.clamp is {self.clamp}, and PRXPixelPipeline divides by max(t, {PRX_CLAMP}): samples "
                "would differ in steps with t below",
                setting("objective.clamp", f"{PRX_CLAMP:g}"),
            )

    def build(self, time: TimeDensity) -> XPrediction:
        return XPrediction(time, self.clamp, self.noise_scale)


@dataclass(frozen=True)
class XPrediction:
    time: TimeDensity
    clamp: float
    noise_scale: float = 1.0

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample:
        return path.draw_sample(x_BCHW, self.time, draws, self.noise_scale)

    def target(self, sample: Sample) -> Tensor:
        return path.x_to_velocity(sample.x_BCHW, sample.x_t_BCHW, sample.t_B, self.clamp)

    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor:
        return path.x_to_velocity(prediction_BCHW.to(x_t_BCHW.dtype), x_t_BCHW, t_B, self.clamp)

    def x_weight(self, t_B: Tensor) -> Tensor:
        return t_B.clamp_min(self.clamp).square().reciprocal()

    def noise_weight(self, t_B: Tensor) -> Tensor:
        return (1 - t_B).square().reciprocal()
