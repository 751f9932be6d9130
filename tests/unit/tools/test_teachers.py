from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.tiny import TINY
from tintype.bench import run as bench
from tintype.plan import Plan, read_plan
from tools.speed import teachers

pytest.importorskip("transformers")


def measure(folder: Path) -> None:
    """Measure the smallest plan and teacher, into `speed.json`."""
    (folder / "plan.yaml").write_text(TINY)
    settings = ("--set", "train.steps=4", "--batch", "2", "--steps", "2")
    teachers.main([str(folder / "speed.json"), "--sizes", "tiny", "--recipe", str(folder / "plan.yaml"), *settings])


@pytest.mark.slow
def test_each_teacher_is_measured_in_each_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the smallest plan and teacher, and without the compiler's own passes."""
    compile_module = nn.Module.compile

    def eagerly(self: nn.Module, **how: Any) -> None:
        compile_module(self, backend="eager", **how)

    monkeypatch.setattr(nn.Module, "compile", eagerly)
    measure(tmp_path)
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    wanted = [f"repa, dinov2-tiny, {way}" for way in ("bf16", "bf16 compiled", "fp32")]
    assert [row["technique"] for row in rows] == ["dense", *wanted, "dense again"]
    assert all(row["images_per_s"] > 0 and row["failed"] is None for row in rows)
    assert all(("teacher" in row["time_split"]) for row in rows)


def test_rows_are_written_as_they_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stop in the third row; the speeds are made up, and no teacher is built."""

    def stop_at_compiled(row: bench.Row, plan: Plan, steps: int) -> bench.Row:
        if "compile: true" in row.technique:
            raise KeyboardInterrupt
        return replace(row, images_per_s=4.0 if row.technique == "dense" else 3.0)

    monkeypatch.setattr(bench, "_timed", stop_at_compiled)
    monkeypatch.setattr(teachers, "write_teacher", lambda size, folder: folder / size)
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path)
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert [row["technique"] for row in rows] == ["dense", "repa, dinov2-tiny, bf16"]
    assert [row["times_dense"] for row in rows] == [1, 0.75]
    assert capsys.readouterr().out.splitlines()[1] == "batch 2, repa, dinov2-tiny, bf16: 3.0 images/s, 0.750 of dense"


def test_without_options_no_weights_are_asked_of_a_hub() -> None:
    plan = read_plan("prx-jit-1024", teachers.PLAN)
    assert plan.text.kind == "words" and plan.tokenizer.kind == "pixels"
    assert plan.token_grid == (16, 16) and plan.model.width == 1792
