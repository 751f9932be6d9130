"""Histograms between round edges. The last bin holds the highest half per cent too, however far they lie."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tintype.data.store.inspect_result import Histogram
from tintype.page.svg import linear_ticks

_BINS, _FARTHEST = 24, 1e300


def whole_histogram(values: NDArray[np.generic]) -> Histogram:
    """Count whole numbers between round whole numbers."""
    numbers = values.astype(np.float64)
    low, high = float(numbers.min()), float(np.percentile(numbers, 99.5))
    ticks = linear_ticks(low, max(high, low + 1), _BINS)
    step = max(1, round(ticks[1] - ticks[0])) if len(ticks) > 1 else 1
    return _counted(numbers, [index * step for index in range(math.floor(low / step), math.floor(high / step) + 2)])


def histogram(values: NDArray[np.float64]) -> Histogram | None:
    """Count any numbers; return None where they lie too close or too far apart to be drawn."""
    if np.abs(values).max() > _FARTHEST:
        return None
    low, high = float(values.min()), float(np.percentile(values, 99.5))
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        return None
    ticks = linear_ticks(low, high, _BINS)
    step = ticks[1] - ticks[0]
    indices = range(math.floor(low / step), math.floor(high / step) + 2)
    return _counted(values, [float(f"{index * step:.12g}") for index in indices])


def _counted(values: NDArray[np.float64], edges: list[int] | list[float]) -> Histogram:
    index = np.clip(np.searchsorted(np.array(edges, np.float64), values, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(index, minlength=len(edges) - 1)
    return {"edges": edges, "counts": counts.tolist(), "open": bool(values.max() >= edges[-1])}
