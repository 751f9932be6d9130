"""Training speed from a run's `metrics.jsonl`, with the time split by part."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from tintype.train.clock import PARTS

WARM_UP_SHARE = 0.1
DEFINITION = (
    "training images per second: median over the logged windows after the first tenth; the host's time for data, which "
    "runs of a study share and which stands in the time split, left out"
)


def images_per_s(lines: Sequence[dict[str, Any]]) -> float:
    return float(median(_without_data(line) for line in _warm(lines)))


def _without_data(line: dict[str, Any]) -> float:
    images, data_s = line["images_per_s"] * line["seconds"], line["parts"].get("data", 0.0)
    return float(images / (line["seconds"] - data_s))


def time_split(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Share of the time spent in each part; `other` is what no part accounts for.

    The host's share, `data`, can run while the GPU works; then the parts are shares of their sum.
    """
    warm = _warm(lines)
    seconds = {part: sum(line["parts"].get(part, 0.0) for line in warm) for part in PARTS}
    total = max(sum(line["seconds"] for line in warm), sum(seconds.values()))
    return {**{part: value / total for part, value in seconds.items()}, "other": 1 - sum(seconds.values()) / total}


def _warm(lines: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    return lines[int(len(lines) * WARM_UP_SHARE) :]
