"""Logs are read by their new bytes, and keep a bounded number of points whose means are right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import fmean

import pytest

from tintype.serve import tail
from tintype.serve.tail import POINTS, EventsLog, MetricsLog, Series


def write(file: Path, first: int, last: int, **values: float) -> None:
    with file.open("a") as log:
        for step in range(first, last + 1):
            line = {"step": step, "flow": 1.0 / step, "seconds": 0.5, "line": step, "nested": {"a": 1}, **values}
            log.write(json.dumps(line) + "\n")


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the place of each reading."""
    found, pread = list[int](), os.pread

    def noted(file: int, size: int, at: int) -> bytes:
        found.append(at)
        return pread(file, size, at)

    monkeypatch.setattr(os, "pread", noted)
    return found


def test_new_lines_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "metrics.jsonl"
    log, read = MetricsLog(file), reads(monkeypatch)
    assert not log.read()
    write(file, 1, 10)
    assert log.read() and not log.read()
    size = file.stat().st_size
    write(file, 11, 12)
    assert log.read()
    assert read[-1] == size and len(read) == 2
    assert list(log.series["flow"].step) == list(range(1, 13)) and log.seconds == 6.0
    assert list(log.series) == ["flow"]


def test_a_line_that_is_not_whole_waits(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    write(file, 1, 2)
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    log = MetricsLog(file)
    log.read()
    assert len(log.series["flow"].step) == 1
    with file.open("ab") as more:
        more.write(whole[-10:])
    log.read()
    assert list(log.series["flow"].step) == [1, 2]


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    """A run that resumes drops the lines that it repeats."""
    file = tmp_path / "metrics.jsonl"
    write(file, 1, 8)
    log = MetricsLog(file)
    log.read()
    other = tmp_path / "other"
    write(other, 1, 3)
    other.replace(file)
    log.read()
    assert list(log.series["flow"].step) == [1, 2, 3]


def test_lines_that_are_damaged_or_not_finite_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "flow": NaN, "line": 1}\nno json\n[1]\n{"flow": 2}\n{"step": "x", "flow": 1}\n')
    write(file, 2, 2)
    log = MetricsLog(file)
    assert log.read()
    assert list(log.series["flow"].value) == [0.5]


@pytest.mark.parametrize(
    "odd",
    [
        '{"step": Infinity, "flow": 1, "line": 3}',
        '{"step": 3, "flow": 1, "line": Infinity}',
        '{"step": 3, "flow": 1, "line": 3, "seconds": NaN}',
        '{"step": 1%s, "flow": 1, "line": 3}' % ("0" * 400),
        '{"step": 3, "grad_norm": 1%s, "line": 3, "seconds": 0.5}' % ("0" * 400),
        "[" * 100_000,
    ],
    ids=["step", "line", "seconds", "large step", "large value", "deep"],
)
def test_an_odd_line_does_not_end_the_reading(tmp_path: Path, odd: str) -> None:
    file = tmp_path / "metrics.jsonl"
    write(file, 1, 2)
    with file.open("a") as more:
        more.write(odd + "\n")
    write(file, 4, 5)
    log = MetricsLog(file)
    assert log.read()
    assert list(log.series) == ["flow"] and list(log.series["flow"].step) == [1, 2, 4, 5]
    assert log.last["step"] == 5 and log.seconds == 2.5, "the next line stands for the odd one too"


def test_a_series_stays_short_and_keeps_its_mean() -> None:
    series, values = Series(), [float(step % 7) for step in range(1, 5001)]
    for step, value in enumerate(values, 1):
        series.add(step, step / 2, value)
    assert POINTS <= len(series.step) <= 2 * POINTS
    assert sum(series.weight) == 5000 and series.step[-1] == 5000
    mean = sum(value * weight for value, weight in zip(series.value, series.weight, strict=True)) / 5000
    assert mean == pytest.approx(fmean(values))


def test_a_long_file_is_sampled_and_then_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_WHOLE_BYTES", 20_000)
    file = tmp_path / "metrics.jsonl"
    write(file, 1, 4000)
    log, read = MetricsLog(file), reads(monkeypatch)
    log.read()
    assert len(read) == POINTS + 1
    series = log.series["flow"]
    assert POINTS - 2 <= len(series.step) <= 2 * POINTS and series.step[-1] == 4000
    assert log.seconds == pytest.approx(2000)
    write(file, 4001, 4002)
    log.read()
    assert log.last["step"] == 4002 and log.seconds == pytest.approx(2001)


def test_events_are_followed_and_bounded(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    log = EventsLog(file)
    assert not log.read()
    file.write_text('{"event": "spike", "step": 3}\nno json\n{"step": 1}\n' + "[" * 100_000 + "\n")
    assert log.read() and [event["event"] for event in log.events] == ["spike"]
    with file.open("a") as more:
        more.writelines(f'{{"event": "e{n}", "step": {n}}}\n' for n in range(300))
    assert log.read() and len(log.events) == EventsLog.MOST and log.events[-1]["event"] == "e299"
