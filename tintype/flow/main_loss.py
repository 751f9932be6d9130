"""The baseline's main loss, which is the mean squared difference between predicted and true velocity.

B: samples of a micro-batch, C: channels, H, W: latent rows and columns.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from tintype.flow.objective import mean_square
from tintype.flow.part import MainLossPart


class SquareSettings(MainLossPart):
    kind: Literal["square"] = "square"

    def build(self) -> Square:
        return Square()


class Square:
    def __call__(self, velocity_BCHW: Tensor, target_BCHW: Tensor, t_B: Tensor) -> Tensor:
        return mean_square(velocity_BCHW, target_BCHW)
