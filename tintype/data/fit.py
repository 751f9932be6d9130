"""Fit images to a size by shrinking and cropping, or by stretching. Images are never enlarged.

An image is shrunk on the CPU in float64, as two products with sparse matrices (`pretrained/preprocess.py`). Each output
pixel depends on a few input pixels. So only blocks around the diagonal are multiplied, and only the cropped part is
computed. The two products take about an eighth of the time of the full products.

The resulting bytes equal those of the full matrix products. Blocked and full products add the same numbers in possibly
different orders, so the last bit of a sum can differ. The last bit changes a byte only if the sum lies midway between
two byte values, for example the average of two pixels. An image with such a sum is shrunk by the full products.

C: channels. H, W: rows, columns. O, I: output and input pixels along one axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.pretrained.preprocess import Resampling, axis_weights, resize

SHRINK = Resampling("bicubic")
_BLOCK_PX = 32
_CLOSE = 1e-9
_EXACT = 2.0**16
_CPU = torch.device("cpu")


def square(image_CHW: Tensor, size_px: int) -> Tensor:
    """Shrink an image's short side to `size_px` and center-crop it to a square."""
    return covering(image_CHW, size_px, size_px)


def covering(image_CHW: Tensor, height_px: int, width_px: int) -> Tensor:
    """Shrink an image until it just covers height and width, and center-crop it."""
    rows, columns = _covering_size(image_CHW, height_px, width_px)
    return _fitted(image_CHW, rows, columns, _cut(0.5, rows, height_px), _cut(0.5, columns, width_px))


def stretched(image_CHW: Tensor, height_px: int, width_px: int) -> Tensor:
    """Resize the whole image to this height and width. Each axis has its own scale factor."""
    return _fitted(image_CHW, height_px, width_px, slice(0, height_px), slice(0, width_px))


def crop(image_CHW: Tensor, size_px: int, down: float, right: float) -> Tensor:
    """Crop a square. `down` and `right` are the position of the crop, as fractions of the pixels that are left over."""
    height, width = image_CHW.shape[-2:]
    return image_CHW[:, _cut(down, height, size_px), _cut(right, width, size_px)]


def shrunk(image_CHW: Tensor, short_px: int) -> Tensor:
    """Shrink the whole image to a short side of `short_px` pixels."""
    rows, columns = _covering_size(image_CHW, short_px, short_px)
    return _fitted(image_CHW, rows, columns, slice(0, rows), slice(0, columns))


def refuse_small(name: str, image_CHW: Tensor, size_px: int) -> None:
    height, width = image_CHW.shape[-2:]
    if min(height, width) < size_px:
        raise UserError(
            f"{name} has {width} × {height} pixels, fewer than {size_px} px on a side, and images are never enlarged",
            "use a smaller size_px, or remove this image",
        )


def _cut(share: float, from_px: int, size_px: int) -> slice:
    """Return a slice of `size_px` pixels. The fraction `share` of the left-over pixels lies before the slice."""
    first = min(int(share * (from_px - size_px + 1)), from_px - size_px)
    return slice(first, first + size_px)


def _covering_size(image_CHW: Tensor, height_px: int, width_px: int) -> tuple[int, int]:
    height, width = image_CHW.shape[-2:]
    if height * width_px <= width * height_px:
        return height_px, max(width_px, round(width * height_px / height))
    return max(height_px, round(height * width_px / width)), width_px


def _fitted(image_CHW: Tensor, rows: int, columns: int, down: slice, right: slice) -> Tensor:
    height, width = image_CHW.shape[-2:]
    if (height, width) == (rows, columns):
        return image_CHW[:, down, right]
    of_rows, of_columns = _axis(height, rows, down.start, down.stop), _axis(width, columns, right.start, right.stop)
    sum_CHW = _in_blocks(image_CHW, of_rows, of_columns)
    byte_CHW = sum_CHW.round()
    if _on_edge(sum_CHW.sub_(byte_CHW), of_rows, of_columns):
        byte_CHW = resize(image_CHW[None], rows, columns, SHRINK)[0].round_()[:, down, right]
    return byte_CHW.to(torch.uint8)


@dataclass(frozen=True)
class _Axis:
    """Resampling weights of a shrunk axis, as blocks of crop pixels, input pixels and weights [O, I]."""

    seen: slice
    """Input pixels with a non-zero weight."""
    blocks: tuple[tuple[slice, slice, Tensor], ...]
    exact_O: Tensor
    """True if all weights of an output pixel are multiples of 2^-16; its sum is then exact in any order of addition."""


def _in_blocks(image_CHW: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    """Shrink and crop an image, one channel after the other, since one channel fits into a CPU's caches."""
    seen_CHW = image_CHW[:, rows.seen, columns.seen]
    out_COO = torch.empty(len(image_CHW), len(rows.exact_O), len(columns.exact_O), dtype=torch.float64)
    wide_HO = out_COO.new_empty(seen_CHW.shape[1], len(columns.exact_O))
    for seen_byte_HW, out_OO in zip(seen_CHW, out_COO, strict=True):
        seen_HW = seen_byte_HW.to(torch.float64)
        for cut, seen, weights_OI in columns.blocks:
            torch.mm(seen_HW[:, seen], weights_OI.T, out=wide_HO[:, cut])
        for cut, seen, weights_OI in rows.blocks:
            torch.mm(weights_OI, wide_HO[seen], out=out_OO[cut])
    return out_COO.clamp_(0.0, 255.0)


def _on_edge(rest_CHW: Tensor, rows: _Axis, columns: _Axis) -> bool:
    """Return whether the rounding error of any inexact sum could change its byte."""
    edge_CHW = rest_CHW.abs_() > 0.5 - _CLOSE
    return bool(edge_CHW.any()) and bool((edge_CHW & ~(rows.exact_O[:, None] & columns.exact_O)).any())


@lru_cache(maxsize=512)
def _axis(from_px: int, to_px: int, begin: int, end: int) -> _Axis:
    """Return the weights of pixels `begin` to `end` - 1 of an axis shrunk from `from_px` to `to_px`."""
    weights_OI = axis_weights(from_px, to_px, SHRINK, None, _CPU)[begin:end]
    used_OI = weights_OI.numpy() != 0
    first_O, last_O = used_OI.argmax(1), from_px - used_OI[:, ::-1].argmax(1)
    first_seen, blocks = int(first_O[:_BLOCK_PX].min()), []
    for start in range(0, end - begin, _BLOCK_PX):
        cut = slice(start, min(start + _BLOCK_PX, end - begin))
        first, last = int(first_O[cut].min()), int(last_O[cut].max())
        blocks.append((cut, slice(first - first_seen, last - first_seen), weights_OI[cut, first:last].contiguous()))
    exact_O = torch.cat([((weights_OI * _EXACT).frac() == 0).all(1) for _, _, weights_OI in blocks])
    return _Axis(slice(first_seen, last), tuple(blocks), exact_O)
