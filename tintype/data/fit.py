"""Bring images to a size: shrunk by their short side, then cropped. They are never enlarged.

C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from torch import Tensor

from tintype.data.shrink import Span, shrink
from tintype.errors import UserError
from tintype.pretrained.preprocess import Resampling

SHRINK = Resampling("bicubic")


def square(image_CHW: Tensor, size_px: int) -> Tensor:
    """Return the middle of an image, its short side shrunk to the size."""
    return covering(image_CHW, size_px, size_px)


def covering(image_CHW: Tensor, height_px: int, width_px: int) -> Tensor:
    """Return the middle of an image that is shrunk until it just covers height and width."""
    rows, columns = _covering_size(image_CHW, height_px, width_px)
    top, left = _first(0.5, rows - height_px), _first(0.5, columns - width_px)
    return _fitted(image_CHW, rows, columns, (top, height_px), (left, width_px))


def crop(image_CHW: Tensor, size_px: int, down: float, right: float) -> Tensor:
    """Return a square whose position is given in shares of the free pixels."""
    height, width = image_CHW.shape[-2:]
    top, left = _first(down, height - size_px), _first(right, width - size_px)
    return image_CHW[:, top : top + size_px, left : left + size_px]


def shrunk(image_CHW: Tensor, short_px: int) -> Tensor:
    """Return the image with a short side of so many pixels."""
    rows, columns = _covering_size(image_CHW, short_px, short_px)
    return _fitted(image_CHW, rows, columns, (0, rows), (0, columns))


def _first(share: float, room_px: int) -> int:
    return min(int(share * (room_px + 1)), room_px)


def _covering_size(image_CHW: Tensor, height_px: int, width_px: int) -> tuple[int, int]:
    height, width = image_CHW.shape[-2:]
    if height * width_px <= width * height_px:
        return height_px, max(width_px, round(width * height_px / height))
    return max(height_px, round(height * width_px / width)), width_px


def _fitted(image_CHW: Tensor, rows: int, columns: int, down: tuple[int, int], right: tuple[int, int]) -> Tensor:
    """Return a crop (first pixel and count along each axis) of the image at a size."""
    height, width = image_CHW.shape[-2:]
    if (height, width) == (rows, columns):
        return image_CHW[:, down[0] : sum(down), right[0] : sum(right)]
    return shrink(image_CHW, Span(height, rows, *down), Span(width, columns, *right), SHRINK)


def refuse_small(name: str, image_CHW: Tensor, size_px: int) -> None:
    height, width = image_CHW.shape[-2:]
    if min(height, width) < size_px:
        raise UserError(
            f"{name} has {width} × {height} pixels, fewer than {size_px} on a side; images are never enlarged: take "
            "a smaller size, or remove it"
        )
