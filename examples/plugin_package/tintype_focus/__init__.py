"""focus: samples that the model finds hard count more, as in the focal loss (arXiv 1708.02002).

The term is w · e^γ with e the squared error of a sample's velocity over the micro-batch's largest: the easy samples of
a micro-batch add little to it.

B: samples of a micro-batch. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from tintype.losses.part import LossPart
from tintype.seams import LossContext, LossInputs, LossTerm
from tintype.techniques.technique import Technique


class FocusSettings(LossPart):
    any_shape: ClassVar[bool] = True

    kind: Literal["focus"] = "focus"
    weight: float = Field(0.1, gt=0, description="Weight of this term in the sum of the losses")
    power: float = Field(2.0, ge=1, description="γ: how much less the easy samples count")

    def build(self, context: LossContext) -> Focus:
        return Focus(self.power)


class Focus(LossTerm):
    needs_images = False

    def __init__(self, power: float) -> None:
        self.power = power

    def loss(self, inputs: LossInputs) -> Tensor:
        error_B = (inputs.velocity_BCHW - inputs.target_BCHW).square().mean((1, 2, 3))
        share_B = error_B / error_B.detach().amax().clamp_min(1e-12)
        return share_B**self.power


FOCUS = Technique(
    seam="losses",
    summary="samples that the model finds hard count more",
    options=FocusSettings,
    paper="arXiv:1708.02002",
)
