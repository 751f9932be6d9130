from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tintype.runtime.files import Json
from tools.speed import __main__ as speed
from tools.speed import kernels, training


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> tuple[int, dict[str, dict[str, object]]]:
    monkeypatch.setattr("sys.argv", ["speed", str(out), "--tiny", *options])
    return speed.main(), json.loads((out / "summary.json").read_text())


@pytest.mark.slow
def test_every_measurement_ends_and_writes_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run each command once: some measurements differ only in their full size."""
    every = speed.measurements(tmp_path, speed.tiny_work(tmp_path))
    chosen = list({one.arguments: name for name, one in every.items()}.values())
    ended, summary = run(monkeypatch, tmp_path, "--only", *chosen)
    assert ended == 0, summary
    assert set(summary) == set(chosen) and len(chosen) > 6
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in summary}
    assert set(found["exact"].values()) == {"passed"}
    assert found["optimizer"]["tiny"] and found["optimizer"]["with the average and the copies, apart, ms"] > 0
    assert found["sampling"]["environment"]["device"] and found["sampling"]["plain"]["until the first image, s"] > 0


def test_what_no_longer_fits_into_the_time_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended, summary = run(monkeypatch, tmp_path, "--minutes", "0")
    assert ended == 1 and {str(one["failed"]) for one in summary.values()} == {"no time left"}
    found = speed.run("slow", speed.Measurement(("http.server", "0"), most_s=0.5), tmp_path, left_s=60)
    assert found["failed"] == "out of time"


def test_parts_that_were_measured_are_kept_where_a_later_one_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(tiny: bool, device: torch.device) -> Iterator[tuple[str, Json]]:
        yield "first", 1.0
        raise RuntimeError

    monkeypatch.setitem(kernels.MEASURES, "training", measure)
    monkeypatch.setattr("sys.argv", ["kernels", "training", str(tmp_path / "out.json"), "--tiny"])
    with pytest.raises(RuntimeError):
        kernels.main()
    assert json.loads((tmp_path / "out.json").read_text())["first"] == 1.0


def test_a_model_is_gone_before_the_next_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    build, built, alive = training._own, list[weakref.ref[Any]](), list[int]()

    def note(*given: Any) -> training.Trained:
        alive.append(sum(one() is not None for one in built))
        trained = build(*given)
        built.append(weakref.ref(trained.weights[0]))
        return trained

    monkeypatch.setattr(training, "_own", note)
    gc.disable()  # else chance decides when cycles are freed
    try:
        rows = [training._speed(training.Shape(2, 3, 8, 2), "plain", True, torch.device("cpu")) for _ in range(2)]
    finally:
        gc.enable()
    assert alive == [0, 0]
    for row in rows:
        fastest, median, slowest = (row[f"{one}step, s"] for one in ("fastest ", "", "slowest "))
        assert isinstance(median, float) and fastest <= median <= slowest  # type: ignore[operator]
        assert row["peak memory, GiB"] is None and row["retries of the allocator"] == 0, "of a GPU only"


def test_a_test_that_failed_or_was_skipped_is_not_called_passed(tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><skipped/></testcase>'
        '<testcase name="c"><failure/></testcase></testsuite></testsuites>'
    )
    assert speed.tests_in(tmp_path / "tests.xml") == {"a": "passed", "b": "skipped", "c": "failed"}
