"""A class token beside the image's tokens: a noised vector in, its velocity out (REG, arXiv 2507.01467).

B: samples. T: width of the class token. D: width of the denoiser.
"""

from __future__ import annotations

from torch import Tensor, nn


class ClassToken(nn.Module):
    """Layers between a class token and the denoiser. The last layer is initialised with zeros, like the image's."""

    def __init__(self, class_width: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(class_width, width)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, class_width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def token(self, class_BT: Tensor) -> Tensor:
        """Embed noised class tokens as tokens [B, 1, D] of the denoiser."""
        token_BD: Tensor = self.norm(self.embed(class_BT))
        return token_BD[:, None]

    def velocity(self, normed_B1D: Tensor) -> Tensor:
        """Return the velocity [B, T] from the class token after the last norm."""
        velocity_BT: Tensor = self.out(normed_B1D[:, 0])
        return velocity_BT.float()
