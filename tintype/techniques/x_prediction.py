"""x-prediction: the network predicts the clean image, and the loss is taken on velocities (JiT, arXiv 2511.13720).

Prediction and target are both turned into velocities with t clamped from below (JiT's code; its time runs the other
way), so the loss is the squared error of x weighted by 1 / max(t, clamp)². The sampler uses the same clamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from tintype.flow import path
from tintype.seams import Draws, Sample
from tintype.settings import ObjectivePart, Settings, TimeSettings
from tintype.techniques.technique import Technique

if TYPE_CHECKING:
    from tintype.plan import Plan


class Options(Settings):
    clamp: float = Field(0.05, gt=0, lt=1, description="No division by a t below this")


class XPredictionSettings(ObjectivePart):
    predicts: ClassVar[Literal["velocity", "x"]] = "x"

    kind: Literal["x-prediction"] = "x-prediction"
    clamp: float = Field(0.05, gt=0, lt=1)

    def build(self, time: TimeSettings) -> XPrediction:
        return XPrediction(time, self.clamp)


@dataclass(frozen=True)
class XPrediction:
    time: TimeSettings
    clamp: float

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample:
        return path.draw_sample(x_BCHW, self.time, draws)

    def target(self, sample: Sample) -> Tensor:
        return path.x_to_velocity(sample.x_BCHW, sample.x_t_BCHW, sample.t_B, self.clamp)

    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor:
        return path.x_to_velocity(prediction_BCHW.to(x_t_BCHW.dtype), x_t_BCHW, t_B, self.clamp)

    def x_weight(self, t_B: Tensor) -> Tensor:
        return t_B.clamp_min(self.clamp).square().reciprocal()


def apply(plan: Plan, options: Options) -> dict[str, Any]:
    return {"objective": XPredictionSettings(clamp=options.clamp)}


TECHNIQUE = Technique(
    name="x-prediction",
    seam="objective",
    summary="predict the clean image; loss on velocities",
    apply=apply,
    options=Options,
    paper="arXiv:2511.13720",
    part=XPredictionSettings,
)
