"""Normalisation of an autoencoder's latents to about mean 0 and deviation 1, and its inverse.

B: images, C: channels, H, W: latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Numbers = float | tuple[float, ...]
"""One for all channels, or one for each."""


@dataclass(frozen=True)
class Normalisation:
    """z = (latent - shift) · scale, in fp32.

    Both are [C, h, w], repeated over the latents: h = w = 1, unless the numbers depend on a latent's place in a patch.
    """

    shift_CHW: Tensor
    scale_CHW: Tensor

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift."""
        return self.scale_CHW, self.shift_CHW

    def to(self, device: torch.device) -> Normalisation:
        return Normalisation(self.shift_CHW.to(device), self.scale_CHW.to(device))

    def apply(self, latent_BCHW: Tensor) -> Tensor:
        size = latent_BCHW.shape[2:]
        return (latent_BCHW.float() - _repeated(self.shift_CHW, size)) * _repeated(self.scale_CHW, size)

    def undo(self, z_BCHW: Tensor) -> Tensor:
        size = z_BCHW.shape[2:]
        return z_BCHW.float() / _repeated(self.scale_CHW, size) + _repeated(self.shift_CHW, size)


def filled(numbers: Numbers | Sequence[float], channels: int) -> Tensor:
    """Return the numbers as [C, 1, 1]."""
    return torch.tensor(numbers, dtype=torch.float32).expand(channels).reshape(-1, 1, 1).clone()


def _repeated(tile_CHW: Tensor, size: Sequence[int]) -> Tensor:
    """Repeat the tile over `size` rows and columns; a 1 × 1 tile is left to broadcasting."""
    _, rows, columns = tile_CHW.shape
    if rows == columns == 1:
        return tile_CHW
    return tile_CHW.repeat(1, -(-size[0] // rows), -(-size[1] // columns))[:, : size[0], : size[1]]
