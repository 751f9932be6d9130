from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.tiny import TINY
from tintype.plan import read_plan
from tools.speed import teachers

pytest.importorskip("transformers")


@pytest.mark.slow
def test_each_teacher_is_measured_in_each_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the smallest plan and teacher, and without the compiler's own passes."""
    compile_module = nn.Module.compile

    def eagerly(self: nn.Module, **how: Any) -> None:
        compile_module(self, backend="eager", **how)

    monkeypatch.setattr(nn.Module, "compile", eagerly)
    (tmp_path / "plan.yaml").write_text(TINY)
    out = tmp_path / "speed.json"
    teachers.main([str(out), "--sizes", "tiny", "--recipe", str(tmp_path / "plan.yaml"), "--set", "train.steps=4",
                   "--batch", "2", "--steps", "2"])  # fmt: skip
    rows = json.loads(out.read_text())["rows"]
    wanted = [f"repa, dinov2-tiny, {way}" for way in teachers.WAYS]
    assert [row["technique"] for row in rows] == ["dense", *wanted, "dense again"]
    assert all(row["images_per_s"] > 0 and row["failed"] is None for row in rows)
    assert all(("teacher" in row["time_split"]) for row in rows)


def test_without_options_no_weights_are_asked_of_a_hub() -> None:
    plan = read_plan("prx-jit-1024", teachers.PLAN)
    assert plan.text.kind == "words" and plan.tokenizer.kind == "pixels"
    assert plan.token_grid == (16, 16) and plan.model.width == 1792
