"""The baseline's objective: predict the velocity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from tintype.flow import path
from tintype.flow.part import ObjectivePart
from tintype.seams import Draws, Sample, TimeDensity
from tintype.settings import ExportForm, Obstacle
from tintype.wording import technique


class VelocitySettings(ObjectivePart):
    predicts: ClassVar[Literal["velocity", "x", "epsilon"]] = "velocity"

    kind: Literal["velocity"] = "velocity"

    def obstacles(self, form: ExportForm) -> Iterator[Obstacle]:
        yield from super().obstacles(form)
        if form == "PRXPixelPipeline":
            yield Obstacle(
                "objective: PRXPixelPipeline takes a prediction of the clean image, and this run predicts the velocity "
                "of pixels. x = x_t - t v also needs x_t and t, which no last layer can add",
                technique("x-prediction"),
            )

    def build(self, time: TimeDensity) -> VelocityObjective:
        return VelocityObjective(time, self.noise_scale)


@dataclass(frozen=True)
class VelocityObjective:
    time: TimeDensity
    noise_scale: float = 1.0

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample:
        return path.draw_sample(x_BCHW, self.time, draws, self.noise_scale)

    def target(self, sample: Sample) -> Tensor:
        return path.velocity(sample.x_BCHW, sample.noise_BCHW)

    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor:
        return prediction_BCHW.to(x_t_BCHW.dtype)

    def x_weight(self, t_B: Tensor) -> Tensor:
        return t_B.square().reciprocal()

    def noise_weight(self, t_B: Tensor) -> Tensor:
        return (1 - t_B).square().reciprocal()


def mean_square(a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """Return the mean squared difference of each sample, in the dtype of the target (fp32)."""
    return (a_BCHW.to(b_BCHW.dtype) - b_BCHW).square().flatten(1).mean(1)
