"""Small layers of the denoiser. Sinusoids and rotation tables are fp32 or better whatever the precision plan.

B: samples, C: channels, H, W: latent rows and columns, L: tokens, D: width, N: positions, P: size of a flat patch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_SIDE_SIZE = 128


def sinusoid(value_B: Tensor, size: int, max_period: int, factor: float = 1.0) -> Tensor:
    """Cosines, then sines, of `factor` × `value` at `size` / 2 geometric frequencies.

    At t = 1 the fastest angle is 1000 radians, where fp32 resolves 6e-5: the order of the operations is diffusers', so
    that both round alike.
    """
    half = size // 2
    index = torch.arange(half, dtype=value_B.dtype, device=value_B.device)
    frequency = torch.exp(-math.log(max_period) * index / half)
    angle = factor * (value_B[:, None] * frequency[None, :])
    return torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1)


def rotation_table(rows: int, columns: int, head_size: int, theta: int, device: torch.device) -> Tensor:
    """What `rotate` multiplies each token with, [L, 2, head]: cosines, and sines with the sign of their pair's member.

    Half of a token's angles grow with its row and half with its column.
    """
    axis = head_size // 2
    frequency = 1.0 / theta ** (torch.arange(0, axis, 2, dtype=torch.float64, device=device) / axis)
    row_L = torch.arange(rows, dtype=torch.float64, device=device).repeat_interleave(columns)
    column_L = torch.arange(columns, dtype=torch.float64, device=device).repeat(rows)
    angle = torch.cat([row_L[:, None] * frequency, column_L[:, None] * frequency], dim=-1)
    sine = torch.stack([-torch.sin(angle), torch.sin(angle)], dim=-1).flatten(-2)
    return torch.stack([torch.cos(angle).repeat_interleave(2, dim=-1), sine], dim=1).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotates neighbouring pairs of the last axis. `table` broadcasts against [B, heads, L, 2, head]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    swapped = wide.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    cosine, sine = table.to(wide.dtype).unbind(-2)
    return torch.addcmul(wide * cosine, swapped, sine).to(x.dtype)


def patchify(z_BCHW: Tensor, patch: int) -> Tensor:
    """[B, C, H, W] -> [B, L, P]; a patch is flattened channel, row, column."""
    b, c, h, w = z_BCHW.shape
    grid = z_BCHW.reshape(b, c, h // patch, patch, w // patch, patch)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(b, (h // patch) * (w // patch), c * patch * patch)


def unpatchify(token_BLP: Tensor, patch: int, rows: int, columns: int) -> Tensor:
    """The inverse of `patchify`."""
    b, _, p = token_BLP.shape
    c = p // patch**2
    grid = token_BLP.reshape(b, rows, columns, c, patch, patch)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(b, c, rows * patch, columns * patch)


class VectorMLP(nn.Module):
    """Two layers that embed a vector."""

    def __init__(self, size_in: int, width: int) -> None:
        super().__init__()
        self.in_layer = nn.Linear(size_in, width)
        self.out_layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.out_layer(nn.functional.silu(self.in_layer(x)))
        return hidden


class ResolutionEmbedder(nn.Module):
    """A vector for the height and width of the latents: half of its sinusoids are the height's, half the width's."""

    def __init__(self, width: int, max_period: int) -> None:
        super().__init__()
        self.max_period = max_period
        self.mlp = VectorMLP(2 * _SIDE_SIZE, width)

    def forward(self, height: int, width: int, like_B: Tensor) -> Tensor:
        """[B, D], in the type and place of `like_B`."""
        sides = [sinusoid(torch.full_like(like_B, side), _SIDE_SIZE, self.max_period) for side in (height, width)]
        vector_BD: Tensor = self.mlp(torch.cat(sides, dim=-1))
        return vector_BD


class RMSNorm(nn.Module):
    """Root-mean-square norm with its statistics in fp32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


class Modulation(nn.Module):
    """adaLN: shift, scale and gate for the attention and for the MLP, zero at the start."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.lin.weight)
        nn.init.zeros_(self.lin.bias)

    def forward(self, vector_BD: Tensor) -> tuple[Tensor, ...]:
        six: Tensor = self.lin(nn.functional.silu(vector_BD))
        return six[:, None, :].chunk(6, dim=-1)


class FinalLayer(nn.Module):
    """Modulated norm and projection to flat patches, zero at the start."""

    def __init__(self, width: int, patch_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(width, patch_size)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, token_BLD: Tensor, vector_BD: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(vector_BD)[:, None, :].chunk(2, dim=-1)
        projected: Tensor = self.linear((1 + scale) * self.norm(token_BLD) + shift)
        return projected
