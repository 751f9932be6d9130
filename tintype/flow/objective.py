"""The baseline's objective: predict the velocity, plain mean squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from tintype.flow import path
from tintype.seams import Draws, Output, Sample
from tintype.settings import ObjectivePart, TimeSettings


class VelocitySettings(ObjectivePart):
    kind: Literal["velocity"] = "velocity"

    def build(self, time: TimeSettings) -> VelocityObjective:
        return VelocityObjective(time)


@dataclass(frozen=True)
class VelocityObjective:
    time: TimeSettings

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample:
        return path.draw_sample(x_BCHW, self.time, draws)

    def loss(self, output: Output, sample: Sample) -> Tensor:
        target = path.velocity(sample.x_BCHW, sample.noise_BCHW)
        return mean_square(output.prediction_BCHW, target)

    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor:
        return prediction_BCHW.to(x_t_BCHW.dtype)


def mean_square(a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """Mean squared difference of each sample, in the wider of the two types (the target is fp32)."""
    return (a_BCHW.to(b_BCHW.dtype) - b_BCHW).square().flatten(1).mean(1)
