"""LayerNorm with modulation, and gated additions to the token stream.

The plain form, with the names of `model.layers`, is:

    stream = add_gated(token, gate, added)
    out = modulate(LayerNorm(stream), scale, shift)

`six` [B, 6 D] has shift, scale and gate of the attention, then shift, scale and gate of the MLP. A column number says
where each of them begins.

B: samples, L: tokens of a sample, D: width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tintype.model.fused.products import Operand, new_operand
from tintype.model.fused.quantise import SPARE, put_row

_WARPS_BACK = 2048
"""Number of warps that fills a GPU. In the backward pass, each program sums over some tokens of one sample."""


@triton.jit
def _norm(token, added, gate, scale, shift, stream, out, out_scale, mean_of, root_of, tokens, width, six_row, eps,
          ADDED: tl.constexpr, SPARE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sample = row // tokens
    column = tl.arange(0, BLOCK)
    mask = column < width
    here = row * width + column
    number = tl.load(token + here, mask=mask, other=0.0).to(tl.float32)
    if ADDED:
        factor = tl.load(gate + sample * six_row + column, mask=mask, other=0.0).to(tl.float32)
        number += factor * tl.load(added + here, mask=mask, other=0.0).to(tl.float32)
        rounded = number.to(stream.dtype.element_ty)
        tl.store(stream + here, rounded, mask=mask)
        number = rounded.to(tl.float32)
    mean = tl.sum(number, 0) / width
    centred = tl.where(mask, number - mean, 0.0)
    root = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    scaled = (1 + tl.load(scale + sample * six_row + column, mask=mask, other=0.0).to(tl.float32)) * (centred * root)
    shifted = scaled + tl.load(shift + sample * six_row + column, mask=mask, other=0.0).to(tl.float32)
    put_row(out + here, out_scale + row, shifted, mask, SPARE)
    tl.store(mean_of + row, mean)
    tl.store(root_of + row, root)


@triton.jit
def _norm_back(d_out, d_stream, stream, added, gate, scale, mean_of, root_of, d_token, d_added, d_added_scale, sums,
               tokens, width, six_row, chunks, T: tl.constexpr, STREAM: tl.constexpr, ADDED: tl.constexpr,
               SPARE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    sample = (program // chunks).to(tl.int64)
    first = (program % chunks) * T
    column = tl.arange(0, BLOCK)
    mask = column < width
    factor = 1 + tl.load(scale + sample * six_row + column, mask=mask, other=0.0).to(tl.float32)
    d_scale = tl.zeros([BLOCK], tl.float32)
    d_shift = tl.zeros([BLOCK], tl.float32)
    d_gate = tl.zeros([BLOCK], tl.float32)
    if ADDED:
        gated = tl.load(gate + sample * six_row + column, mask=mask, other=0.0).to(tl.float32)
    for token in range(first, min(first + T, tokens)):
        row = sample * tokens + token
        here = row * width + column
        root = tl.load(root_of + row)
        number = tl.load(stream + here, mask=mask, other=0.0).to(tl.float32)
        normal = tl.where(mask, (number - tl.load(mean_of + row)) * root, 0.0)
        d = tl.load(d_out + here, mask=mask, other=0.0).to(tl.float32)
        d_scale += d * normal
        d_shift += d
        d *= factor
        d = root * (d - tl.sum(d, 0) / width - normal * (tl.sum(d * normal, 0) / width))
        if STREAM:
            d += tl.load(d_stream + here, mask=mask, other=0.0).to(tl.float32)
        tl.store(d_token + here, d.to(d_token.dtype.element_ty), mask=mask)
        if ADDED:
            d_gate += d * tl.load(added + here, mask=mask, other=0.0).to(tl.float32)
            put_row(d_added + here, d_added_scale + row, gated * d, mask, SPARE)
    sums += program.to(tl.int64) * (3 if ADDED else 2) * width
    tl.store(sums + column, d_shift, mask=mask)
    tl.store(sums + width + column, d_scale, mask=mask)
    if ADDED:
        tl.store(sums + 2 * width + column, d_gate, mask=mask)


@triton.jit
def _add_gated(token, added, gate, out, tokens, width, six_row, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    here = row * width + column
    factor = tl.load(gate + (row // tokens) * six_row + column, mask=mask, other=0.0).to(tl.float32)
    number = tl.load(token + here, mask=mask, other=0.0).to(tl.float32)
    number += factor * tl.load(added + here, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + here, number.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _add_gated_back(d_out, added, gate, d_added, d_added_scale, sums, tokens, width, six_row, chunks,
                    T: tl.constexpr, SPARE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    sample = (program // chunks).to(tl.int64)
    first = (program % chunks) * T
    column = tl.arange(0, BLOCK)
    mask = column < width
    factor = tl.load(gate + sample * six_row + column, mask=mask, other=0.0).to(tl.float32)
    d_gate = tl.zeros([BLOCK], tl.float32)
    for token in range(first, min(first + T, tokens)):
        row = sample * tokens + token
        here = row * width + column
        d = tl.load(d_out + here, mask=mask, other=0.0).to(tl.float32)
        d_gate += d * tl.load(added + here, mask=mask, other=0.0).to(tl.float32)
        put_row(d_added + here, d_added_scale + row, factor * d, mask, SPARE)
    tl.store(sums + program.to(tl.int64) * width + column, d_gate, mask=mask)


@triton.jit
def _sum_chunks(sums, d_six, chunks, width, six_row, shift, gate, BLOCK: tl.constexpr):
    """Add up the partial sums of a sample's programs, and write the totals to their columns of `six`."""
    sample = tl.program_id(0).to(tl.int64)
    kind = tl.program_id(1)
    kinds = tl.num_programs(1)
    column = tl.arange(0, BLOCK)
    mask = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for chunk in range(chunks):
        row = (sample * chunks + chunk) * kinds + kind
        total += tl.load(sums + row * width + column, mask=mask, other=0.0)
    first = gate if kind == 2 else shift + kind * width
    tl.store(d_six + sample * six_row + first + column, total, mask=mask)


class Stats(NamedTuple):
    """Mean and reciprocal standard deviation of each token, for the backward pass."""

    mean_R: Tensor
    root_R: Tensor


def norm(
    token_BLD: Tensor,
    six: Tensor,
    shift: int,
    kind: torch.dtype,
    added_RD: Tensor | None = None,
    gate: int = 0,
    eps: float = 1e-6,
) -> tuple[Tensor, Operand, Stats]:
    """Return the stream after the addition, its modulated norm as an operand of type `kind`, and the norm's statistics.

    In `six`, the scale comes after the shift.
    """
    batch, tokens, width = token_BLD.shape
    rows, block = batch * tokens, triton.next_power_of_2(width)
    stream_BLD = token_BLD if added_RD is None else torch.empty_like(token_BLD)
    out, stats = (
        new_operand(rows, width, kind, token_BLD.device),
        Stats(*torch.empty(2, rows, dtype=torch.float32, device=token_BLD.device)),
    )
    _norm[(rows,)](
        token_BLD, added_RD, six[:, gate:], six[:, shift + width :], six[:, shift:], stream_BLD, out.values_RC,
        out.scale_R, stats.mean_R, stats.root_R, tokens, width, six.stride(0), eps,
        ADDED=added_RD is not None, SPARE=SPARE[kind], BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return stream_BLD, out, stats


def norm_back(
    d_out_RD: Tensor,
    d_stream_BLD: Tensor | None,
    stream_BLD: Tensor,
    six: Tensor,
    shift: int,
    stats: Stats,
    d_six: Tensor,
    kind: torch.dtype,
    added_RD: Tensor | None = None,
    gate: int = 0,
) -> tuple[Tensor, Operand]:
    """Return the gradients of the token and of `added`, and write the gradient of `six`.

    `d_stream` is the gradient of the stream after the addition, if later operations use the stream.
    """
    batch, tokens, width = stream_BLD.shape
    block = triton.next_power_of_2(width)
    per, chunks = _chunks(batch, tokens, _WARPS_BACK // _warps(block))
    d_token_BLD = torch.empty_like(stream_BLD)
    d_added = new_operand(batch * tokens if added_RD is not None else 0, width, kind, stream_BLD.device)
    kinds = 2 if added_RD is None else 3
    sums = torch.empty(batch, chunks, kinds, width, dtype=torch.float32, device=stream_BLD.device)
    _norm_back[(batch * chunks,)](
        d_out_RD, d_stream_BLD, stream_BLD, added_RD, six[:, gate:], six[:, shift + width :], stats.mean_R,
        stats.root_R, d_token_BLD, d_added.values_RC, d_added.scale_R, sums, tokens, width, six.stride(0), chunks,
        T=per, STREAM=d_stream_BLD is not None, ADDED=added_RD is not None, SPARE=SPARE[kind], BLOCK=block,
        num_warps=_warps(block),
    )  # fmt: skip
    _put_sums(sums, d_six, shift, gate)
    return d_token_BLD, d_added


def add_gated(token_BLD: Tensor, added_RD: Tensor, six: Tensor, gate: int) -> Tensor:
    batch, tokens, width = token_BLD.shape
    out_BLD, block = torch.empty_like(token_BLD), triton.next_power_of_2(width)
    _add_gated[(batch * tokens,)](
        token_BLD,
        added_RD,
        six[:, gate:],
        out_BLD,
        tokens,
        width,
        six.stride(0),
        BLOCK=block,
        num_warps=_warps(block),
    )
    return out_BLD


def add_gated_back(
    d_out_BLD: Tensor, added_RD: Tensor, six: Tensor, gate: int, d_six: Tensor, kind: torch.dtype
) -> Operand:
    """Return `added`'s gradient, and write the gate's. The gradient of the stream is `d_out` itself."""
    batch, tokens, width = d_out_BLD.shape
    block = triton.next_power_of_2(width)
    per, chunks = _chunks(batch, tokens, 2 * _WARPS_BACK // _warps(block))
    d_added = new_operand(batch * tokens, width, kind, d_out_BLD.device)
    sums = torch.empty(batch, chunks, 1, width, dtype=torch.float32, device=d_out_BLD.device)
    _add_gated_back[(batch * chunks,)](
        d_out_BLD, added_RD, six[:, gate:], d_added.values_RC, d_added.scale_R, sums, tokens, width, six.stride(0),
        chunks, T=per, SPARE=SPARE[kind], BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    _put_sums(sums, d_six, gate, gate)
    return d_added


def _put_sums(sums: Tensor, d_six: Tensor, shift: int, gate: int) -> None:
    batch, chunks, kinds, width = sums.shape
    block = triton.next_power_of_2(width)
    _sum_chunks[(batch, kinds)](
        sums, d_six, chunks, width, d_six.stride(0), shift, gate, BLOCK=block, num_warps=_warps(block)
    )


def _chunks(batch: int, tokens: int, programs: int) -> tuple[int, int]:
    """Return tokens per program, and programs per sample, with at least `programs` programs if possible."""
    per = 64
    while per > 4 and batch * triton.cdiv(tokens, per) < programs:
        per //= 2
    return per, triton.cdiv(tokens, per)


def _warps(block: int) -> int:
    """Return the warps of a program: few for narrow rows, so that more programs run at the same time."""
    return max(1, min(8, block // 512))
