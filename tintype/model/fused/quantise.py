"""FP8 with one scale per row.

The kernel that writes a row computes its scale. FP8 thus needs no second pass over a row, and no state between steps. A
scale is a power of two. So FP8 numbers can be rescaled without rounding, except the smallest numbers. The gradient of a
weight sums over rows, so `transpose` converts all rows to a common scale.

R: rows, C: columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tintype.settings import FP8_MULTIPLE

SPARE = {torch.bfloat16: 0, torch.float32: 0, torch.float8_e4m3fn: 7, torch.float8_e5m2: 14}
"""Exponents of a row's scale. A row's maximum is scaled to between 2^spare and 2^(spare + 1), below FP8's maximum.

With 0, rows are not scaled.
"""


@triton.jit
def power_of_two(most, SPARE: tl.constexpr):
    """Return the scale of a row with maximum `most`, and its reciprocal, which are not finite if `most` is not."""
    exponent = most.to(tl.int32, bitcast=True) >> 23
    of_scale = tl.maximum(exponent - SPARE, 1)
    scale = (of_scale << 23).to(tl.float32, bitcast=True)
    reciprocal = ((254 - of_scale) << 23).to(tl.float32, bitcast=True)
    return tl.where(exponent < 255, scale, most), tl.where(exponent < 255, reciprocal, most)


@triton.jit
def put_row(out, scale_of_row, value, mask, SPARE: tl.constexpr):
    """Store a row of numbers. Unless `SPARE` is 0, store it in FP8 with its scale."""
    if SPARE:
        scale, reciprocal = power_of_two(tl.max(tl.where(mask, tl.abs(value), 0.0), 0), SPARE)
        tl.store(scale_of_row, scale)
        value = value * reciprocal
    tl.store(out, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _quantise(x, out, scale, columns, SPARE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    value = tl.load(x + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    put_row(out + row * columns + column, scale + row, value, mask, SPARE)


def quantise(x_RC: Tensor, out_RC: Tensor, scale_R: Tensor) -> None:
    """Write the rows in FP8 with their scales. The plain form is `model.fp8.scaled`."""
    rows, columns = x_RC.shape
    block = triton.next_power_of_2(columns)
    warps = 4 if block <= 4096 else 8
    _quantise[(rows,)](x_RC, out_RC, scale_R, columns, SPARE=SPARE[out_RC.dtype], BLOCK=block, num_warps=warps)


@triton.jit
def _transpose(x, factor, out, rows, columns, filled, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    value = tl.load(x + row[:, None] * columns + column[None, :], mask=mask, other=0.0)
    if SCALED:
        value = value.to(tl.float32) * tl.load(factor + row, mask=row < rows, other=0.0)[:, None]
    mask = (column < columns)[:, None] & (row < filled)[None, :]
    tl.store(out + column[:, None] * filled + row[None, :], tl.trans(value).to(out.dtype.element_ty), mask=mask)


def new_transposed(x_RC: Tensor) -> Tensor:
    """Return an empty transposed matrix. The matrix's columns are padded to a number that FP8 products support."""
    rows, columns = x_RC.shape
    return x_RC.new_empty(columns, triton.cdiv(rows, FP8_MULTIPLE) * FP8_MULTIPLE)


def transpose(x_RC: Tensor, out_CR: Tensor, factor_R: Tensor | None = None) -> None:
    """Write the transposed matrix in the same dtype, with rows times their factors. Padding columns are zeros."""
    (rows, columns), filled = x_RC.shape, out_CR.shape[1]
    scaled = factor_R is not None
    stored, target = (x_RC, out_CR) if scaled else (x_RC.view(torch.int8), out_CR.view(torch.int8))
    grid = (triton.cdiv(filled, 128), triton.cdiv(columns, 64))
    _transpose[grid](stored, factor_R, target, rows, columns, filled, SCALED=scaled, ROWS=128, COLUMNS=64, num_warps=4)
