"""Brings pictures to a size: shrunk by their short side, then cut. They are never enlarged.

C: channels. H, W: rows, columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.vision.preprocess import Resampling, resize

SHRINK = Resampling("bicubic")


def square(image_CHW: Tensor, size_px: int) -> Tensor:
    """The middle of a picture, its short side shrunk to the size."""
    return crop(shrunk(image_CHW, size_px), size_px, 0.5, 0.5)


def crop(image_CHW: Tensor, size_px: int, down: float, right: float) -> Tensor:
    """A square whose place is given in shares of the room that there is."""
    height, width = image_CHW.shape[-2:]
    top, left = (min(int(u * (px - size_px + 1)), px - size_px) for u, px in ((down, height), (right, width)))
    return image_CHW[:, top : top + size_px, left : left + size_px]


def shrunk(image_CHW: Tensor, short_px: int) -> Tensor:
    """The picture with a short side of so many pixels."""
    height, width = image_CHW.shape[-2:]
    short = min(height, width)
    if short == short_px:
        return image_CHW
    rows, columns = (round(px * short_px / short) for px in (height, width))
    return resize(image_CHW[None], rows, columns, SHRINK)[0].round().to(torch.uint8)


def refuse_small(name: str, image_CHW: Tensor, size_px: int) -> None:
    height, width = image_CHW.shape[-2:]
    if min(height, width) < size_px:
        raise UserError(
            f"{name} has {width} × {height} pixels, fewer than {size_px} on a side; pictures are never enlarged: take "
            "a smaller size, or remove it"
        )
