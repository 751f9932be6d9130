"""Heights and widths of images that are not square.

N: images. S: shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Shape = tuple[int, int]
"""Height and width in pixels."""


def shapes(size_px: int, unit_px: int, ratio: float) -> list[Shape]:
    """Return heights and widths in multiples of the unit, of at most size_px² pixels and this ratio of the sides.

    Of one that covers another only the larger is there. No image whose short side has size_px is too small for any.
    """
    found = []
    for short in range(unit_px, size_px + 1, unit_px):
        long = size_px**2 // short // unit_px * unit_px
        if long <= ratio * short:
            found.append((short, long))
    kept = [one for one in found if not any(one[1] == two[1] and one[0] < two[0] for two in found)]
    return sorted({*kept, *((width, height) for height, width in kept)})


def nearest_shape(height_N: Tensor, width_N: Tensor, chosen: Sequence[Shape]) -> Tensor:
    """Return the index of the shape whose proportions are nearest, by the distance of their logarithms."""
    ratio_N = height_N.double().log() - width_N.double().log()
    ratio_S = torch.tensor([math.log(height / width) for height, width in chosen], dtype=torch.float64)
    return (ratio_N[:, None] - ratio_S).abs().argmin(1)
