"""Small layers of the denoiser.

Sinusoids, rotations and norms compute in fp32 or better, unless an island sets another precision. B: samples, C:
channels, H, W: latent rows and columns, L: tokens, D: width, N: positions, P: size of a flat patch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tintype.model.islands import held, project

_SIDE_SIZE = 128
_EPS = 1e-6


def sinusoid(value_B: Tensor, size: int, max_period: int, factor: float = 1.0) -> Tensor:
    """Return cosines, then sines, of `factor` × `value` at `size` / 2 geometric frequencies.

    At t = 1 the fastest angle is 1000 radians, where the resolution of fp32 is 6e-5. So the operations are in
    diffusers' order, to get the same rounding.
    """
    half = size // 2
    index = torch.arange(half, dtype=value_B.dtype, device=value_B.device)
    frequency = torch.exp(-math.log(max_period) * index / half)
    angle = factor * (value_B[:, None] * frequency[None, :])
    return torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1)


def rotation_table(rows: int, columns: int, head_size: int, theta: int, device: torch.device) -> Tensor:
    """Return cosines and signed sines for `rotate` as [L, 2, head]. Rows and columns have half of the angles each."""
    axis = head_size // 2
    frequency = 1.0 / theta ** (torch.arange(0, axis, 2, dtype=torch.float64, device=device) / axis)
    row_L = torch.arange(rows, dtype=torch.float64, device=device).repeat_interleave(columns)
    column_L = torch.arange(columns, dtype=torch.float64, device=device).repeat(rows)
    angle = torch.cat([row_L[:, None] * frequency, column_L[:, None] * frequency], dim=-1)
    sine = torch.stack([-torch.sin(angle), torch.sin(angle)], dim=-1).flatten(-2)
    return torch.stack([torch.cos(angle).repeat_interleave(2, dim=-1), sine], dim=1).float()


def rotate(x: Tensor, table: Tensor, rope: str = "fp32") -> Tensor:
    """Rotate pairs of neighbouring numbers of the last axis. `table` broadcasts against [B, heads, L, 2, head]."""
    number = held(x, rope)
    swapped = number.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    cosine, sine = table.to(number.dtype).unbind(-2)
    if rope == "bf16":
        return held(held(number * cosine, rope) + held(swapped * sine, rope), rope).to(x.dtype)
    return torch.addcmul(number * cosine, swapped, sine).to(x.dtype)


def patchify(z_BCHW: Tensor, patch: int) -> Tensor:
    """Split latents [B, C, H, W] into flat patches [B, L, P]. The order within a patch is channel, row, column."""
    b, c, h, w = z_BCHW.shape
    grid = z_BCHW.reshape(b, c, h // patch, patch, w // patch, patch)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(b, (h // patch) * (w // patch), c * patch * patch)


def unpatchify(token_BLP: Tensor, patch: int, rows: int, columns: int) -> Tensor:
    """Combine patches to latents, as the inverse of `patchify`."""
    b, _, p = token_BLP.shape
    c = p // patch**2
    grid = token_BLP.reshape(b, rows, columns, c, patch, patch)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(b, c, rows * patch, columns * patch)


class VectorMLP(nn.Module):
    def __init__(self, size_in: int, width: int, modulation: str) -> None:
        super().__init__()
        self.position = modulation
        self.in_layer = nn.Linear(size_in, width)
        self.out_layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = held(project(held(x, self.position), self.in_layer, self.position), self.position)
        return project(held(nn.functional.silu(hidden), self.position), self.out_layer, self.position)


class ResolutionEmbedder(nn.Module):
    """Embeds the latents' height and width as a vector. Half of its sinusoids encode the height, and half the width."""

    def __init__(self, width: int, max_period: int, modulation: str) -> None:
        super().__init__()
        self.max_period = max_period
        self.mlp = VectorMLP(2 * _SIDE_SIZE, width, modulation)

    def forward(self, height: int, width: int, like_B: Tensor) -> Tensor:
        """Return a tensor [B, D] with the dtype and the device of `like_B`."""
        sides = [sinusoid(torch.full_like(like_B, side), _SIDE_SIZE, self.max_period) for side in (height, width)]
        vector_BD: Tensor = self.mlp(torch.cat(sides, dim=-1))
        return vector_BD


class RMSNorm(nn.Module):
    """Root-mean-square norm. The norm's statistics have the precision of the island `norms`."""

    def __init__(self, size: int, norms: str) -> None:
        super().__init__()
        self.norms = norms
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.norms)


def rms_norm(x: Tensor, weight: Tensor, norms: str) -> Tensor:
    number = held(x, norms)
    return held(_by_root(number, norms) * held(weight, norms), norms).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """LayerNorm without weights.

    If the island `norms` is `bf16`, the result is rounded to bf16 but stored in fp32, like autocast's result on a GPU.
    So the layers after the norm need no change.
    """

    def __init__(self, width: int, norms: str) -> None:
        super().__init__(width, elementwise_affine=False, eps=_EPS)
        self.norms = norms

    def forward(self, x: Tensor) -> Tensor:
        if self.norms == "fp32":
            return super().forward(x)
        number = held(x, self.norms)
        return _by_root(held(number - held(number.mean(-1, keepdim=True), self.norms), self.norms), self.norms)


def _by_root(number: Tensor, norms: str) -> Tensor:
    square = held(held(number.square(), norms).mean(-1, keepdim=True), norms)
    return held(number * held(torch.rsqrt(held(square + _EPS, norms)), norms), norms)


class Modulation(nn.Module):
    """adaLN layer of shift, scale and gate for the attention and for the MLP, all zero at initialisation."""

    def __init__(self, width: int, modulation: str) -> None:
        super().__init__()
        self.position = modulation
        self.lin = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.lin.weight)
        nn.init.zeros_(self.lin.bias)

    def forward(self, vector_BD: Tensor) -> Tensor:
        """Return shift, scale and gate of the attention, then those of the MLP, as [B, 6 D]."""
        return project(_activated(vector_BD, self.position), self.lin, self.position)


class ModulationOffset(nn.Module):
    """adaLN with one layer for all blocks and an offset for each block (adaLN-single of PixArt-α, arXiv 2310.00426)."""

    def __init__(self, width: int, modulation: str) -> None:
        super().__init__()
        self.position = modulation
        self.offset = nn.Parameter(torch.zeros(6 * width))

    def forward(self, six_B6D: Tensor) -> Tensor:
        """Return the shared layer's output plus this block's offset, [B, 6 D] as in `Modulation`."""
        return held(held(six_B6D, self.position) + held(self.offset, self.position), self.position)


def _activated(vector_BD: Tensor, position: str) -> Tensor:
    return held(nn.functional.silu(held(vector_BD, position)), position)


def modulate(x_BLD: Tensor, scale: Tensor, shift: Tensor, position: str) -> Tensor:
    product = held(held(1 + held(scale, position), position) * held(x_BLD, position), position)
    return held(product + held(shift, position), position)


def add_gated(token_BLD: Tensor, gate: Tensor, added_BLD: Tensor, position: str) -> Tensor:
    """Add a gated tensor to the token stream. The stream keeps its dtype."""
    gated = held(held(gate, position) * held(added_BLD, position), position)
    return held(held(token_BLD, position) + gated, position).to(token_BLD.dtype)


class FinalLayer(nn.Module):
    """Modulated norm and projection to flat patches. The projection is zero at initialisation."""

    def __init__(self, width: int, patch_size: int, norms: str, modulation: str) -> None:
        super().__init__()
        self.position = modulation
        self.norm = LayerNorm(width, norms)
        self.linear = nn.Linear(width, patch_size)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, token_BLD: Tensor, vector_BD: Tensor, fused: bool = False) -> Tensor:
        """Return the flat patches. With `fused`, the fused kernels compute the norm."""
        projected: Tensor = self.linear(self.modulated(token_BLD, vector_BD, fused))
        return projected

    def modulated(self, token_BLD: Tensor, vector_BD: Tensor, fused: bool = False) -> Tensor:
        """Return the tokens after the modulated norm and before the projection."""
        activated = _activated(vector_BD, self.position)
        two = project(activated, self._modulation_linear(), self.position)
        if fused:
            from tintype.model.fused.modulated_norm import modulated_norm

            token_BLD = token_BLD.bfloat16()
            cast = torch.is_autocast_enabled(token_BLD.device.type)
            return modulated_norm(token_BLD, two, token_BLD.dtype if cast else self.linear.weight.dtype)
        shift, scale = two[:, None, :].chunk(2, dim=-1)
        return modulate(self.norm(token_BLD), scale, shift, self.position)

    def _modulation_linear(self) -> nn.Linear:
        layer = self.adaLN_modulation[1]
        assert isinstance(layer, nn.Linear)
        return layer
