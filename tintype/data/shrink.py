"""Shrink one image on a CPU, in float64, as two products with sparse matrices (`pretrained/preprocess.py`).

Each pixel of the result sees a few of the image's. Here only the blocks around the diagonal are multiplied,
and only what is cut out is computed, in about an eighth of the time.

The bytes are those of the whole products. Both add up the same numbers, but a library may do so in another order when
there are many, and then the last bit of a sum can differ. That shows where a sum lies on the edge between two bytes, as
averages in the middle of an image do; so an image with such a sum is shrunk by the whole products.

C: channels. H, W: rows, columns. O, I: pixels out and in along one axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tintype.pretrained.preprocess import Resampling, axis_weights, resize

_BLOCK_PX = 32
_CLOSE = 1e-9
_EXACT = 2.0**16
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Span:
    """Pixels `first` to `first + count` - 1 of an axis that is resized from `from_px` to `to_px`."""

    from_px: int
    to_px: int
    first: int
    count: int


@dataclass(frozen=True)
class _Block:
    """Pixels `start` to `end` - 1 of the span, each a weighted sum of pixels `first` to `last` - 1 of the image."""

    start: int
    end: int
    first: int
    last: int
    weights_OI: Tensor


@dataclass(frozen=True)
class _Axis:
    blocks: tuple[_Block, ...]
    exact_O: Tensor
    """True where all weights are multiples of 2^-16: such sums of bytes, along both axes, are exact in any order."""

    @property
    def seen(self) -> tuple[int, int]:
        """The first of the image's pixels that has a weight, and the one after the last."""
        return self.blocks[0].first, self.blocks[-1].last


def shrink(image_CHW: Tensor, rows: Span, columns: Span, how: Resampling) -> Tensor:
    """Shrink bytes to bytes, rounded once."""
    down, right = _axis(rows, how), _axis(columns, how)
    sum_CHW = _in_blocks(image_CHW, down, right)
    byte_CHW = sum_CHW.round()
    if _on_edge(sum_CHW.sub_(byte_CHW), down, right):
        whole_CHW = resize(image_CHW[None], rows.to_px, columns.to_px, how)[0].round_()
        byte_CHW = whole_CHW[:, rows.first :, columns.first :][:, : rows.count, : columns.count]
    return byte_CHW.to(torch.uint8)


def _in_blocks(image_CHW: Tensor, down: _Axis, right: _Axis) -> Tensor:
    """Shrink one channel after the other: a CPU's caches hold one."""
    (top, bottom), (left, end) = down.seen, right.seen
    out_COO = torch.empty(len(image_CHW), len(down.exact_O), len(right.exact_O), dtype=torch.float64)
    wide_HO = out_COO.new_empty(bottom - top, len(right.exact_O))
    for image_HW, out_OO in zip(image_CHW[:, top:bottom, left:end], out_COO, strict=True):
        seen_HW = image_HW.to(torch.float64)
        for block in right.blocks:
            seen = seen_HW[:, block.first - left : block.last - left]
            torch.mm(seen, block.weights_OI.T, out=wide_HO[:, block.start : block.end])
        for block in down.blocks:
            seen = wide_HO[block.first - top : block.last - top]
            torch.mm(block.weights_OI, seen, out=out_OO[block.start : block.end])
    return out_COO.clamp_(0.0, 255.0)


def _on_edge(rest_CHW: Tensor, down: _Axis, right: _Axis) -> bool:
    """Return whether a sum that is not exact lies within rounding of the edge between two bytes."""
    edge_CHW = rest_CHW.abs_() > 0.5 - _CLOSE
    if not edge_CHW.any():
        return False
    return bool((edge_CHW & ~(down.exact_O[:, None] & right.exact_O)).any())


@lru_cache(maxsize=512)
def _axis(span: Span, how: Resampling) -> _Axis:
    weights_OI = axis_weights(span.from_px, span.to_px, how, None, _CPU)[span.first : span.first + span.count]
    used_OI = weights_OI.numpy() != 0
    first_O, last_O = used_OI.argmax(1).tolist(), (span.from_px - used_OI[:, ::-1].argmax(1)).tolist()
    blocks = []
    for start in range(0, span.count, _BLOCK_PX):
        end = min(start + _BLOCK_PX, span.count)
        first, last = min(first_O[start:end]), max(last_O[start:end])
        blocks.append(_Block(start, end, first, last, weights_OI[start:end, first:last].contiguous()))
    exact_O = torch.cat([((block.weights_OI * _EXACT).frac() == 0).all(1) for block in blocks])
    return _Axis(tuple(blocks), exact_O)
