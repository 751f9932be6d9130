"""The gated activation of the MLP. The activation's plain form is gelu(gate, approximate="tanh") * up.

R: rows (tokens), F: inner width of the MLP. Gate and up are concatenated to [R, 2 F].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tintype.model.fused.products import Operand, new_operand
from tintype.model.fused.quantise import SPARE, power_of_two, put_row

_BLOCK, _WHOLE = 512, 2048
"""Columns per block for unscaled rows, and the maximum length of a row that a program processes as a whole.

Scaled rows are always processed as a whole.
"""


@triton.jit
def _sigmoid(gate):
    """Return GELU's factor of its input x, 0.5 (1 + tanh(√(2/π) (x + 0.044715 x³))), computed as a sigmoid."""
    return tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))


@triton.jit
def _gelu_gate(both, out, out_scale, width, SPARE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    here = both + row * 2 * width + column
    gate = tl.load(here, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(here + width, mask=mask, other=0.0).to(tl.float32)
    put_row(out + row * width + column, out_scale + row, gate * _sigmoid(gate) * up, mask, SPARE)


@triton.jit
def _gelu_gate_back(d_out, both, d_both, d_scale, width, SPARE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    here = row * 2 * width + column
    d = tl.load(d_out + row * width + column, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(both + here, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(both + here + width, mask=mask, other=0.0).to(tl.float32)
    share = _sigmoid(gate)
    slope = share + gate * share * (1 - share) * 1.5957691216057308 * (1 + 3 * 0.044715 * gate * gate)
    d_gate = d * up * slope
    d_up = d * gate * share
    if SPARE:
        most = tl.max(tl.maximum(tl.abs(d_gate), tl.abs(d_up)), 0)
        scale, reciprocal = power_of_two(most, SPARE)
        tl.store(d_scale + row, scale)
        d_gate *= reciprocal
        d_up *= reciprocal
    tl.store(d_both + here, d_gate.to(d_both.dtype.element_ty), mask=mask)
    tl.store(d_both + here + width, d_up.to(d_both.dtype.element_ty), mask=mask)


def gelu_gate(both_RF: Tensor, kind: torch.dtype) -> Operand:
    """Return the activations as an operand of type `kind`."""
    rows, width = len(both_RF), both_RF.shape[1] // 2
    out = new_operand(rows, width, kind, both_RF.device)
    block, warps = _block(width, SPARE[kind])
    grid = (rows, triton.cdiv(width, block))
    _gelu_gate[grid](both_RF, out.values_RC, out.scale_R, width, SPARE=SPARE[kind], BLOCK=block, num_warps=warps)
    return out


def gelu_gate_back(d_out_RF: Tensor, both_RF: Tensor, kind: torch.dtype) -> Operand:
    """Return the gradient of gate and up, concatenated, as an operand of type `kind`."""
    rows, width = d_out_RF.shape
    d_both = new_operand(rows, 2 * width, kind, both_RF.device)
    block, warps = _block(width, SPARE[kind])
    grid = (rows, triton.cdiv(width, block))
    _gelu_gate_back[grid](
        d_out_RF, both_RF, d_both.values_RC, d_both.scale_R, width, SPARE=SPARE[kind], BLOCK=block, num_warps=warps
    )
    return d_both


def _block(width: int, spare: int) -> tuple[int, int]:
    whole = triton.next_power_of_2(width)
    if spare:
        return whole, 8
    return (whole, max(1, whole // 512)) if whole <= _WHOLE else (_BLOCK, 2)
