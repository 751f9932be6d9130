"""Speed, seconds and time split of the lines of a log."""

from __future__ import annotations

from typing import Any

import pytest

from tintype.runtime.clock import PARTS
from tintype.train.speed import images_per_s, seconds_until, time_split


def line(step: int, forward_s: float, data_s: float = 0.0) -> dict[str, Any]:
    return {"step": step, "seconds": 99.0, "parts": {"forward": forward_s, "data": data_s}}


def test_seconds_are_those_of_the_steps_parts_without_the_data() -> None:
    lines = [line(10, 1.0, 5.0), line(20, 2.0), line(25, 1.0)]
    assert seconds_until(lines, 10) == pytest.approx(1.0)
    assert seconds_until(lines, 15) == pytest.approx(2.0), "half of the second window"
    assert seconds_until(lines, 25) == pytest.approx(4.0)


def test_a_compilation_counts_as_a_usual_window() -> None:
    lines = [line(10, 60.0), line(20, 1.0), line(30, 1.0)]
    assert seconds_until(lines, 30) == pytest.approx(3.0)


def window(images: float, seconds: float, compute_s: float, data_s: float) -> dict[str, object]:
    parts = {"data": data_s, "forward": 0.4 * compute_s, "backward": 0.6 * compute_s}
    return {"images_per_s": images / seconds, "seconds": seconds, "parts": parts}


def test_throughput_is_of_the_steps_parts_without_the_data_beside_them() -> None:
    beside = [window(64, 0.010, 0.010, 0.003)] * 20  # a GPU at work while the host sees to the data
    after = [window(64, 0.013, 0.010, 0.003)] * 20  # a CPU, one after the other
    assert images_per_s(beside) == pytest.approx(6400) and images_per_s(after) == pytest.approx(6400)


def test_throughput_is_that_of_the_whole_run_after_its_first_tenth() -> None:
    """A dense last stage counts by its length; a compilation does not count."""
    warm_up, fast, slow = window(64, 9, 9, 0), window(64, 0.01, 0.01, 0), window(64, 0.02, 0.02, 0)
    assert images_per_s([warm_up, *[fast] * 8, slow]) == pytest.approx(64 * 9 / (8 * 0.01 + 0.02))
    assert images_per_s([warm_up, *[fast] * 4, warm_up, *[fast] * 4]) == pytest.approx(6400)


def test_the_time_split_sums_to_one_whatever_runs_beside() -> None:
    def line(speed: float, of_part: float = 0.2) -> dict[str, object]:
        return {"images_per_s": speed, "seconds": 2.0, "parts": dict.fromkeys(PARTS, of_part)}

    lines = [line(speed) for speed in (1.0, 100, 90, 110, 5, 100, 100, 100, 100, 100)]
    split = time_split(lines)
    assert split["forward"] == pytest.approx(0.1) and split["other"] == pytest.approx(1 - 0.1 * len(PARTS))
    assert sum(split.values()) == pytest.approx(1)
    assert time_split([{"seconds": 2.0, "parts": {"forward": 1.0}}])["teacher"] == 0  # a run of an older version
    overlapping = time_split([line(100, of_part=0.4)])  # the host's time beside the GPU's
    assert overlapping["forward"] == pytest.approx(1 / len(PARTS)) and overlapping["other"] == pytest.approx(0)
