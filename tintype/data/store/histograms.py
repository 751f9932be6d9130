"""How numbers are spread, as bars between round edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tintype.page.svg import linear_ticks

_BINS, _FARTHEST = 24, 1e300


def whole_histogram(values: NDArray[Any]) -> dict[str, Any]:
    """Counts between round whole numbers. The last bin holds the highest half per cent too, however far they lie."""
    low, high = float(values.min()), float(np.percentile(values, 99.5))
    ticks = linear_ticks(low, max(high, low + 1), _BINS)
    step = max(1, round(ticks[1] - ticks[0])) if len(ticks) > 1 else 1
    first = math.floor(low / step) * step
    edges = [first + step * index for index in range(int((high - first) // step) + 2)]
    index = np.minimum((values - first) // step, len(edges) - 2).astype(np.int64)
    counts = np.bincount(index, minlength=len(edges) - 1)
    return {"edges": edges, "counts": counts.tolist(), "open": bool(values.max() >= edges[-1])}


def histogram(values: NDArray[np.float64]) -> dict[str, Any] | None:
    """The same of any numbers; None where they lie too close or too far apart to be drawn."""
    if np.abs(values).max() > _FARTHEST:
        return None
    low, high = float(values.min()), float(np.percentile(values, 99.5))
    wide = max(abs(low), abs(high))
    if high - low <= 1e-9 * wide:
        return None
    ticks = linear_ticks(low, high, _BINS)
    step = ticks[1] - ticks[0]
    first, last = math.floor(low / step), math.floor(high / step) + 1
    edges = [float(f"{index * step:.12g}") for index in range(first, last + 1)]
    index = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(index, minlength=len(edges) - 1)
    return {"edges": edges, "counts": counts.tolist(), "open": bool(values.max() >= edges[-1])}
