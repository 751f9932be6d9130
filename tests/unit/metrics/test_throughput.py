"""The training seconds up to a step."""

from __future__ import annotations

from typing import Any

import pytest

from tintype.metrics.throughput import seconds_until


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
