"""Compute the training speed from the lines of a run's log, with the time divided by activity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from tintype.runtime.clock import PARTS

WARM_UP_SHARE = 0.1
_OUTLIER = 5
Line: TypeAlias = Mapping[str, Any]


def images_per_s(lines: Sequence[Line]) -> float:
    """Return images per second, from the parts of a step without data loading.

    On a GPU, these parts run one after another, so their times add up; data loading on the host runs in parallel.
    """
    windows = [(line["images_per_s"] * line["seconds"], _parts_s(line)) for line in _warm(lines)]
    usual = median(seconds / images for images, seconds in windows)
    kept = [(images, seconds) for images, seconds in windows if seconds / images < _OUTLIER * usual]
    return float(sum(images for images, _ in kept) / sum(seconds for _, seconds in kept))


def seconds_until(lines: Sequence[Line], step: int) -> float:
    """Return the training seconds up to a step, measured as in `images_per_s`, without data loading.

    Saves and probes do not count. If a window of log lines took over five times as long as the median window (a
    compilation, a pause), it counts with the median time. All steps of a window count as equally long.
    """
    since = list(zip([0, *(line["step"] for line in lines)], lines, strict=False))
    per_step = [_parts_s(line) / (line["step"] - before) for before, line in since]
    usual, seconds = median(per_step), 0.0
    for (before, line), each in zip(since, per_step, strict=True):
        seconds += (usual if each >= _OUTLIER * usual else each) * max(0, min(step, line["step"]) - before)
    return seconds


def _parts_s(line: Line) -> float:
    return float(sum(seconds for part, seconds in line["parts"].items() if part != "data"))


def time_split(lines: Sequence[Line]) -> dict[str, float]:
    """Return the fraction of the time spent in each activity; `other` is the time outside of all activities.

    Data loading on the host, `data`, can run while the GPU works. If data loading overlaps with other activities, the
    fractions are relative to the sum of the activities.
    """
    warm = _warm(lines)
    seconds = {part: sum(line["parts"].get(part, 0.0) for line in warm) for part in PARTS}
    total = max(sum(line["seconds"] for line in warm), sum(seconds.values()))
    return {**{part: value / total for part, value in seconds.items()}, "other": 1 - sum(seconds.values()) / total}


def _warm(lines: Sequence[Line]) -> Sequence[Line]:
    return lines[int(len(lines) * WARM_UP_SHARE) :]
