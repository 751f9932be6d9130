"""EQ-VAE: the decoder shows what was done to the latents (Kouzelis et al. 2025, arXiv 2502.09509).

In a share of the steps the sampled latents are made smaller and turned by a multiple of 90 degrees, and their
decoding is compared with the image after the same. Sizes go from a quarter on in whole latent pixels, so that the size
of an image stays a multiple of the stride.

Differs: all other steps see whole images; the authors' code makes a quarter of those smaller before they are encoded.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tintype import rng

SMALLEST = 4
"""Latents are not made smaller than one of so many parts of their side."""


@dataclass(frozen=True)
class Transform:
    """To squares of `side` latent pixels, then `turns` quarter turns."""

    side: int
    turns: int

    def latents(self, z_BCHW: Tensor) -> Tensor:
        return self._apply(z_BCHW, self.side)

    def images(self, x_BCHW: Tensor, stride_px: int) -> Tensor:
        return self._apply(x_BCHW, self.side * stride_px)

    def _apply(self, map_BCHW: Tensor, side: int) -> Tensor:
        if side != map_BCHW.shape[-1]:
            map_BCHW = interpolate(map_BCHW, (side, side), mode="bilinear", align_corners=False)
        return torch.rot90(map_BCHW, self.turns, (-1, -2))


def smallest_side(side: int) -> int:
    return max(1, side // SMALLEST)


def draw_transform(seed: int, position: Tensor, share: float, side: int) -> Transform | None:
    """Draw the transform of a step by the position of its first image; None for a step without one."""
    chosen, size, turn = rng.uniform(seed, "small-vae/equivariance", position[:1].cpu(), (3,))[0].tolist()
    if chosen >= share:
        return None
    least = smallest_side(side)
    return Transform(min(least + int(size * (side - least)), max(least, side - 1)), 1 + min(2, int(3 * turn)))
