"""Attention of image queries to the image's keys and to the unpadded keys of its text, without a mask.

The plain form is softmax(q [k, text k]ᵀ / √E) [v, text v], in which the text's padding is masked. Scores and sums are
fp32. The texts of all samples are packed, and sample b has `length[b]` rows, beginning at row `first[b]`.

B: samples, L: image tokens of a sample, H: heads, E: head size, D = H E, N: text tokens of all samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
BOUND = tl.constexpr(48.0)
"""Largest bound on scores (base 2) that needs no running maximum: exp2(score − bound) stays above 2^-97."""
LONG = 2048
"""Minimum number of image tokens to check the bound. With fewer, the check costs more than it saves."""
FORWARD, FORWARD_BOUNDED, BACK_KEYS, BACK_QUERIES = (64, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 4), (64, 64, 4, 3)
"""Queries per tile, keys per tile, warps and stages. These values were measured on an H200 with heads of 64 numbers."""
_WIDE, _STAGES_WIDE = 128, 2
"""The wide head size, and its number of stages. With more stages, its tiles exceed the shared memory of an RTX GPU."""


@triton.jit
def _pair_and_tile(tiles):
    """Return a program's (sample, head) index and tile. Only the first dimension of a grid can be large."""
    program = tl.program_id(0)
    return (program // tiles).to(tl.int64), program % tiles


@triton.jit
def _take_in(q, k, v, count, k_row, v_row, factor, most, total, seen, RISING: tl.constexpr, EVEN: tl.constexpr,
             KEYS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """Add `count` keys and values to the softmax, shifted by `most`, the running maximum score with `RISING`."""
    size = tl.arange(0, SIZE)
    for start in range(0, count, KEYS):
        key = start + tl.arange(0, KEYS)
        if EVEN:
            keys = tl.load(k + key[None, :] * k_row + size[:, None])
        else:
            keys = tl.load(k + key[None, :] * k_row + size[:, None], mask=key[None, :] < count, other=0.0)
        score = tl.dot(q, keys, input_precision="ieee")
        if not EVEN:
            score = tl.where(key[None, :] < count, score, -float("inf"))
        if RISING:
            higher = tl.maximum(most, tl.max(score, 1) * factor)
            decay = tl.exp2(most - higher)
            total *= decay
            seen *= decay[:, None]
            most = higher
        share = tl.exp2(score * factor - most[:, None])
        total += tl.sum(share, 1)
        if EVEN:
            values = tl.load(v + key[:, None] * v_row + size[None, :])
        else:
            values = tl.load(v + key[:, None] * v_row + size[None, :], mask=key[:, None] < count, other=0.0)
        seen = tl.dot(share.to(values.dtype), values, seen, input_precision="ieee")
    return most, total, seen


@triton.jit
def _largest(weight, SIZE: tl.constexpr):
    return tl.max(tl.abs(tl.load(weight + tl.arange(0, SIZE)).to(tl.float32)), 0)


@triton.jit
def _attend(q, k, v, text_k, text_v, norm_q, norm_k, norm_text, out, log_sum, first, length, tokens, heads, v_row,
            text_v_row, scale, RISING: tl.constexpr, CHECKED: tl.constexpr, EVEN: tl.constexpr, QUERIES: tl.constexpr,
            KEYS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """Compute attention. The softmax's shift is a running maximum (with `RISING`), or a bound on the scores.

    With `CHECKED`, return at once if the bound requires the other variant.
    """
    factor = scale * LOG2_E
    if CHECKED:
        # Normed heads are no longer than √E times their largest weight, so no score is above this.
        bound = _largest(norm_q, SIZE) * tl.maximum(_largest(norm_k, SIZE), _largest(norm_text, SIZE)) * SIZE * factor
        if (bound < BOUND) == RISING:
            return
    pair, tile = _pair_and_tile(tl.cdiv(tokens, QUERIES))
    sample = pair // heads
    row = heads * SIZE
    at = (pair % heads) * SIZE
    query = tile * QUERIES + tl.arange(0, QUERIES)
    here = (sample * tokens + query[:, None]) * row + at + tl.arange(0, SIZE)[None, :]
    queries = tl.load(q + here, mask=query[:, None] < tokens, other=0.0)
    total = tl.zeros([QUERIES], tl.float32)
    seen = tl.zeros([QUERIES, SIZE], tl.float32)
    most = tl.full([QUERIES], -float("inf"), tl.float32) if RISING else tl.zeros([QUERIES], tl.float32) + bound
    image = sample * tokens
    most, total, seen = _take_in(queries, k + image * row + at, v + image * v_row + at, tokens, row, v_row, factor,
                                 most, total, seen, RISING, EVEN, KEYS, SIZE)  # fmt: skip
    text = tl.load(first + sample).to(tl.int64)
    count = tl.load(length + sample).to(tl.int32)
    most, total, seen = _take_in(queries, text_k + text * row + at, text_v + text * text_v_row + at, count, row,
                                 text_v_row, factor, most, total, seen, RISING, False, KEYS, SIZE)  # fmt: skip
    tl.store(out + here, (seen / total[:, None]).to(out.dtype.element_ty), mask=query[:, None] < tokens)
    tl.store(log_sum + pair * tokens + query, most + tl.log2(total), mask=query < tokens)


@triton.jit
def _attend_back_keys(q, k, v, text_k, text_v, d_out, log_sum, delta, d_k, d_v, text_d_k, text_d_v, first, length,
                      tokens, heads, v_row, text_v_row, d_v_row, text_d_v_row, tiles, text_tiles, scale,
                      EVEN: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
                      SIZE: tl.constexpr):  # fmt: skip
    pair, tile = _pair_and_tile(tiles + text_tiles)
    sample = pair // heads
    row = heads * SIZE
    at = (pair % heads) * SIZE
    size = tl.arange(0, SIZE)
    if tile < tiles:
        key = tile * KEYS + tl.arange(0, KEYS)
        count = tokens
        base = sample * tokens
        of_v, of_d_v = v_row, d_v_row
        k_at, v_at, d_k_at, d_v_at = k, v, d_k, d_v
    else:
        key = (tile - tiles) * KEYS + tl.arange(0, KEYS)
        count = tl.load(length + sample).to(tl.int32)
        base = tl.load(first + sample).to(tl.int64)
        of_v, of_d_v = text_v_row, text_d_v_row
        k_at, v_at, d_k_at, d_v_at = text_k, text_v, text_d_k, text_d_v
    if tl.min(key, 0) < count:
        mask = key[:, None] < count
        keys = tl.load(k_at + base * row + at + key[:, None] * row + size[None, :], mask=mask, other=0.0)
        values = tl.load(v_at + base * of_v + at + key[:, None] * of_v + size[None, :], mask=mask, other=0.0)
        image = sample * tokens * row + at
        d_keys = tl.zeros([KEYS, SIZE], tl.float32)
        d_values = tl.zeros([KEYS, SIZE], tl.float32)
        for start in range(0, tokens, QUERIES):
            query = start + tl.arange(0, QUERIES)
            here = query[:, None] * row + size[None, :]
            if EVEN:
                queries = tl.load(q + image + here)
                d_seen = tl.load(d_out + image + here)
                log = tl.load(log_sum + pair * tokens + query)
                shift = tl.load(delta + pair * tokens + query)
            else:
                inside = query < tokens
                queries = tl.load(q + image + here, mask=inside[:, None], other=0.0)
                d_seen = tl.load(d_out + image + here, mask=inside[:, None], other=0.0)
                log = tl.load(log_sum + pair * tokens + query, mask=inside, other=float("inf"))
                shift = tl.load(delta + pair * tokens + query, mask=inside, other=0.0)
            score = tl.dot(keys, tl.trans(queries), input_precision="ieee") * (scale * LOG2_E)
            share = tl.exp2(score - log[None, :])  # of keys that are none it may be anything: theirs is not stored
            d_values = tl.dot(share.to(d_seen.dtype), d_seen, d_values, input_precision="ieee")
            d_share = tl.dot(values, tl.trans(d_seen), input_precision="ieee")
            d_score = share * (d_share - shift[None, :])
            d_keys = tl.dot(d_score.to(queries.dtype), queries, d_keys, input_precision="ieee")
        d_keys = (d_keys * scale).to(d_k.dtype.element_ty)
        tl.store(d_k_at + base * row + at + key[:, None] * row + size[None, :], d_keys, mask=mask)
        d_values = d_values.to(d_v.dtype.element_ty)
        tl.store(d_v_at + base * of_d_v + at + key[:, None] * of_d_v + size[None, :], d_values, mask=mask)


@triton.jit
def _query_gradient(q, d_seen, k, v, count, k_row, v_row, log, shift, scale, d_q, EVEN: tl.constexpr,
                    KEYS: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    size = tl.arange(0, SIZE)
    for start in range(0, count, KEYS):
        key = start + tl.arange(0, KEYS)
        if EVEN:
            keys = tl.load(k + key[:, None] * k_row + size[None, :])
            values = tl.load(v + key[:, None] * v_row + size[None, :])
        else:
            mask = key[:, None] < count
            keys = tl.load(k + key[:, None] * k_row + size[None, :], mask=mask, other=0.0)
            values = tl.load(v + key[:, None] * v_row + size[None, :], mask=mask, other=0.0)
        score = tl.dot(q, tl.trans(keys), input_precision="ieee") * (scale * LOG2_E)
        share = tl.exp2(score - log[:, None])
        if not EVEN:
            share = tl.where(key[None, :] < count, share, 0.0)
        d_score = share * (tl.dot(d_seen, tl.trans(values), input_precision="ieee") - shift[:, None])
        d_q = tl.dot(d_score.to(keys.dtype), keys, d_q, input_precision="ieee")
    return d_q


@triton.jit
def _attend_back_queries(q, k, v, text_k, text_v, out, d_out, log_sum, delta, d_q, first, length, tokens, heads, v_row,
                         text_v_row, scale, EVEN: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
                         SIZE: tl.constexpr):  # fmt: skip
    """Store the queries' gradient, and `delta`: the sum of out × its gradient, a term of the softmax's gradient."""
    pair, tile = _pair_and_tile(tl.cdiv(tokens, QUERIES))
    sample = pair // heads
    row = heads * SIZE
    at = (pair % heads) * SIZE
    query = tile * QUERIES + tl.arange(0, QUERIES)
    inside = query < tokens
    here = (sample * tokens + query[:, None]) * row + at + tl.arange(0, SIZE)[None, :]
    queries = tl.load(q + here, mask=inside[:, None], other=0.0)
    d_seen = tl.load(d_out + here, mask=inside[:, None], other=0.0)
    seen = tl.load(out + here, mask=inside[:, None], other=0.0)
    shift = tl.sum(seen.to(tl.float32) * d_seen.to(tl.float32), 1)
    tl.store(delta + pair * tokens + query, shift, mask=inside)
    log = tl.load(log_sum + pair * tokens + query, mask=inside, other=float("inf"))
    d_q_here = tl.zeros([QUERIES, SIZE], tl.float32)
    image = sample * tokens
    d_q_here = _query_gradient(queries, d_seen, k + image * row + at, v + image * v_row + at, tokens, row, v_row, log,
                               shift, scale, d_q_here, EVEN, KEYS, SIZE)  # fmt: skip
    text = tl.load(first + sample).to(tl.int64)
    count = tl.load(length + sample).to(tl.int32)
    d_q_here = _query_gradient(queries, d_seen, text_k + text * row + at, text_v + text * text_v_row + at, count, row,
                               text_v_row, log, shift, scale, d_q_here, False, KEYS, SIZE)  # fmt: skip
    tl.store(d_q + here, (d_q_here * scale).to(d_q.dtype.element_ty), mask=inside[:, None])


@dataclass(frozen=True)
class Inputs:
    """The image's queries, keys and values, and the keys and values of its text. Rows of values may have a stride."""

    q_RD: Tensor
    k_RD: Tensor
    v_RD: Tensor
    text_k_ND: Tensor
    text_v_ND: Tensor
    first_B: Tensor
    length_B: Tensor
    longest: int
    """Upper bound on the number of tokens of a text."""
    tokens: int
    heads: int
    norms: tuple[Tensor, Tensor, Tensor]
    """Weights of the norms of queries, keys and the text's keys. The scores are bounded with these weights."""

    @property
    def size(self) -> int:
        return self.q_RD.shape[1] // self.heads

    @property
    def pairs(self) -> int:
        return len(self.first_B) * self.heads


def _tile(usual: tuple[int, int, int, int], size: int) -> tuple[int, int, int, int]:
    """Return the number of queries and keys per tile, warps and stages for this head size."""
    queries, keys, warps, stages = usual
    return queries, keys, warps, stages if size < _WIDE else min(stages, _STAGES_WIDE)


def attend(x: Inputs) -> tuple[Tensor, Tensor]:
    """Return the output of each query [R, D], and the logarithm (base 2) of each softmax's sum."""
    out_RD = torch.empty_like(x.q_RD)
    log_sum = torch.empty(x.pairs, x.tokens, dtype=torch.float32, device=out_RD.device)
    checked = x.tokens >= LONG
    # The host does not know the weights, so it starts both ways; one of them ends at once.
    for rising in (False, True) if checked else (True,):
        queries, keys, warps, stages = _tile(FORWARD if rising or x.size >= _WIDE else FORWARD_BOUNDED, x.size)
        _attend[(triton.cdiv(x.tokens, queries) * x.pairs,)](
            x.q_RD, x.k_RD, x.v_RD, x.text_k_ND, x.text_v_ND, *x.norms, out_RD, log_sum, x.first_B, x.length_B,
            x.tokens, x.heads, x.v_RD.stride(0), x.text_v_ND.stride(0), x.size**-0.5, RISING=rising,
            CHECKED=checked, EVEN=x.tokens % keys == 0, QUERIES=queries, KEYS=keys, SIZE=x.size, num_warps=warps,
            num_stages=stages,
        )  # fmt: skip
    return out_RD, log_sum


@dataclass(frozen=True)
class Gradients:
    """Buffers for the gradients of `Inputs`. Values may have a stride, as the first columns of the projections."""

    q_RD: Tensor
    k_RD: Tensor
    v_RD: Tensor
    text_k_ND: Tensor
    text_v_ND: Tensor


def attend_back(x: Inputs, d_out_RD: Tensor, out_RD: Tensor, log_sum: Tensor, d: Gradients) -> None:
    delta = torch.empty_like(log_sum)
    queries, keys, warps, stages = _tile(BACK_QUERIES, x.size)
    _attend_back_queries[(triton.cdiv(x.tokens, queries) * x.pairs,)](
        x.q_RD, x.k_RD, x.v_RD, x.text_k_ND, x.text_v_ND, out_RD, d_out_RD, log_sum, delta, d.q_RD, x.first_B,
        x.length_B, x.tokens, x.heads, x.v_RD.stride(0), x.text_v_ND.stride(0), x.size**-0.5,
        EVEN=x.tokens % keys == 0, QUERIES=queries, KEYS=keys, SIZE=x.size, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    queries, keys, warps, stages = _tile(BACK_KEYS, x.size)
    tiles, text_tiles = triton.cdiv(x.tokens, keys), triton.cdiv(x.longest, keys)
    _attend_back_keys[((tiles + text_tiles) * x.pairs,)](
        x.q_RD, x.k_RD, x.v_RD, x.text_k_ND, x.text_v_ND, d_out_RD, log_sum, delta, d.k_RD, d.v_RD, d.text_k_ND,
        d.text_v_ND, x.first_B, x.length_B, x.tokens, x.heads, x.v_RD.stride(0), x.text_v_ND.stride(0),
        d.v_RD.stride(0), d.text_v_ND.stride(0), tiles, text_tiles, x.size**-0.5,
        EVEN=x.tokens % queries == 0, QUERIES=queries, KEYS=keys, SIZE=x.size, num_warps=warps, num_stages=stages,
    )  # fmt: skip
