"""EQ-VAE trains a tokenizer so that transformed latents decode to the transformed image (arXiv 2502.09509).

In a fraction of the steps, the sampled latents are shrunk and rotated by a multiple of 90 degrees. The decoded latents
are compared with the image after the same transform. Sizes are whole latent pixels, at least a quarter of the side, so
the image's size remains a multiple of the stride.

Differs: all other steps use whole images; the authors' code shrinks a quarter of those images before encoding.

Tensor dimensions are B (images), C (channels), H (rows) and W (columns).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tintype import rng

SMALLEST = 4
"""Smallest side of shrunk latents, as their full side divided by this number."""


@dataclass(frozen=True)
class Transform:
    """Resize to squares of `side` latent pixels, then rotate by `turns` quarter turns."""

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
    """Draw the transform of a step from the position of its first image; None for a step without a transform."""
    chosen, size, turn = rng.uniform(seed, "small-vae/equivariance", position[:1].cpu(), (3,))[0].tolist()
    if chosen >= share:
        return None
    least = smallest_side(side)
    return Transform(min(least + int(size * (side - least)), max(least, side - 1)), 1 + min(2, int(3 * turn)))
