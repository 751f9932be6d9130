"""RMSNorm of each head, followed by rotation.

Queries and keys of the image get norm and rotation. The text's keys get only the norm. The plain form is
rotate(rms_norm(x, weight), table) of `model.layers`.

R: rows (tokens), H: heads, E: head size, D = H E. Numbers 2 i and 2 i + 1 of a head are rotated as a pair.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TOKENS, _TOKENS_BACK = 4, 16
"""Tokens per program in both passes. For a wide model, a program of the forward pass has one token."""
_NARROW = 1024
"""Below this width, a program has the same token of several samples, to load the token's angles only once."""


@triton.jit
def _pairs(pointer, mask, HEADS: tl.constexpr, HALF: tl.constexpr):
    number = tl.load(pointer, mask=mask, other=0.0).to(tl.float32)
    return tl.split(tl.reshape(number, [HEADS, HALF, 2]))


@triton.jit
def _put_pairs(pointer, even, odd, mask, HEADS: tl.constexpr, HALF: tl.constexpr):
    number = tl.reshape(tl.join(even, odd), [HEADS, 2 * HALF])
    tl.store(pointer, number.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _weights(first, second, part, HALF: tl.constexpr):
    """Load the norm's weights for this part, split into those of even and odd numbers."""
    pair = tl.arange(0, HALF)[None, :]
    weight = first if part == 0 else second
    return tl.load(weight + 2 * pair).to(tl.float32), tl.load(weight + 2 * pair + 1).to(tl.float32)


@triton.jit
def _angles(table, of_sample, token, HALF: tl.constexpr):
    """Load cosines and sines of a token's pairs. The table has each value twice; odd numbers' sine is positive."""
    pair = tl.arange(0, HALF)[None, :]
    here = table + of_sample + token * 4 * HALF + 2 * pair
    return tl.load(here), tl.load(here + 2 * HALF + 1)


@triton.jit
def _rows(tokens, T: tl.constexpr, SHARED: tl.constexpr):
    """Return the first row and the stride of a program's rows: one token of T samples, or T consecutive rows."""
    program = tl.program_id(0).to(tl.int64)
    if SHARED:
        return (program // tokens) * T * tokens + program % tokens, tokens
    return program * T, 1


@triton.jit
def _heads(x, first, second, table, out, rows, tokens, heads, x_row, table_sample, T: tl.constexpr,
           ROTATE: tl.constexpr, SHARED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr):  # fmt: skip
    start, step = _rows(tokens, T, SHARED)
    part = tl.program_id(1).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    here = head * 2 * HALF + tl.arange(0, 2 * HALF)[None, :]
    mask = (head < heads) & (here >= 0)
    width = heads * 2 * HALF
    weight_even, weight_odd = _weights(first, second, part, HALF)
    if SHARED:
        cosine, sine = _angles(table, 0, start % tokens, HALF)
    for row in range(start, min(start + T * step, rows), step):
        even, odd = _pairs(x + row * x_row + part * width + here, mask, HEADS, HALF)
        root = tl.rsqrt(tl.sum(even * even + odd * odd, 1) / (2 * HALF) + 1e-6)[:, None]
        even *= root * weight_even
        odd *= root * weight_odd
        if ROTATE:
            if not SHARED:
                cosine, sine = _angles(table, (row // tokens) * table_sample, row % tokens, HALF)
            rotated = even * cosine - odd * sine
            odd = odd * cosine + even * sine
            even = rotated
        _put_pairs(out + (part * rows + row) * width + here, even, odd, mask, HEADS, HALF)


@triton.jit
def _heads_back(d_out, x, first, second, table, d_x, sums, rows, tokens, heads, x_row, table_sample, T: tl.constexpr,
                ROTATE: tl.constexpr, SHARED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr):  # fmt: skip
    start, step = _rows(tokens, T, SHARED)
    part = tl.program_id(1).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    here = head * 2 * HALF + tl.arange(0, 2 * HALF)[None, :]
    mask = (head < heads) & (here >= 0)
    width = heads * 2 * HALF
    weight_even, weight_odd = _weights(first, second, part, HALF)
    sum_even = tl.zeros([HALF], tl.float32)
    sum_odd = tl.zeros([HALF], tl.float32)
    if SHARED:
        cosine, sine = _angles(table, 0, start % tokens, HALF)
    for row in range(start, min(start + T * step, rows), step):
        even, odd = _pairs(x + row * x_row + part * width + here, mask, HEADS, HALF)
        root = tl.rsqrt(tl.sum(even * even + odd * odd, 1) / (2 * HALF) + 1e-6)[:, None]
        even *= root
        odd *= root
        d_even, d_odd = _pairs(d_out + (part * rows + row) * width + here, mask, HEADS, HALF)
        if ROTATE:
            if not SHARED:
                cosine, sine = _angles(table, (row // tokens) * table_sample, row % tokens, HALF)
            rotated = d_even * cosine + d_odd * sine
            d_odd = d_odd * cosine - d_even * sine
            d_even = rotated
        sum_even += tl.sum(d_even * even, 0)
        sum_odd += tl.sum(d_odd * odd, 0)
        d_even *= weight_even
        d_odd *= weight_odd
        along = (tl.sum(d_even * even + d_odd * odd, 1) / (2 * HALF))[:, None]
        d_even = root * (d_even - even * along)
        d_odd = root * (d_odd - odd * along)
        _put_pairs(d_x + row * x_row + part * width + here, d_even, d_odd, mask, HEADS, HALF)
    pair = 2 * tl.arange(0, HALF)
    sums += (part * tl.num_programs(0) + tl.program_id(0)) * 2 * HALF
    tl.store(sums + pair, sum_even)
    tl.store(sums + pair + 1, sum_odd)


def norm_heads(x_RP: Tensor, weights: tuple[Tensor, ...], heads: int, tokens: int, table: Tensor | None) -> Tensor:
    """Return the first parts of the packed projections after norm and rotation, [parts, R, D]: one per weight."""
    rows, size = len(x_RP), len(weights[0])
    out = x_RP.new_empty(len(weights), rows, heads * size)
    per, shared = _TOKENS if heads * size < _NARROW else 1, _shares_angles(heads * size, table)
    _heads[(_programs(rows, tokens, per, shared), len(weights))](
        x_RP, weights[0], weights[-1], table, out, rows, tokens, heads, x_RP.stride(0), _stride(table), T=per,
        ROTATE=table is not None, SHARED=shared, HEADS=triton.next_power_of_2(heads), HALF=size // 2,
        num_warps=_warps(heads * size, 4),
    )  # fmt: skip
    return out


def norm_heads_back(
    d_out: Tensor,
    x_RP: Tensor,
    weights: tuple[Tensor, ...],
    heads: int,
    tokens: int,
    table: Tensor | None,
    d_x_RP: Tensor,
) -> Tensor:
    """Write the gradient of the first parts of the packed projections, and return the gradients of the weights."""
    rows, size, shared = len(x_RP), len(weights[0]), _shares_angles(heads * len(weights[0]), table)
    programs = _programs(rows, tokens, _TOKENS_BACK, shared)
    sums = torch.empty(len(weights), programs, size, dtype=torch.float32, device=x_RP.device)
    _heads_back[(programs, len(weights))](
        d_out, x_RP, weights[0], weights[-1], table, d_x_RP, sums, rows, tokens, heads, x_RP.stride(0), _stride(table),
        T=_TOKENS_BACK, ROTATE=table is not None, SHARED=shared, HEADS=triton.next_power_of_2(heads), HALF=size // 2,
        num_warps=_warps(heads * size, 2),
    )  # fmt: skip
    return sums.sum(1)


def _shares_angles(width: int, table: Tensor | None) -> bool:
    """Return whether a program has one token of several samples, for which all samples must share one table."""
    return width < _NARROW and table is not None and len(table) == 1


def _programs(rows: int, tokens: int, per: int, shared: bool) -> int:
    return tokens * -(-(rows // tokens) // per) if shared else -(-rows // per)


def _stride(table: Tensor | None) -> int:
    """Return the stride between the tables of two samples; 0 if all samples share one table."""
    return 0 if table is None or len(table) == 1 else table.stride(0)


def _warps(width: int, most: int) -> int:
    """Return the number of warps of a program. Triton requires a power of two."""
    wanted = max(1, min(most, width * most // 1024))
    return 1 << (wanted.bit_length() - 1)
