from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.study.lab import run_study
from tintype.study.runner import Task, _run, tasks_of
from tintype.study.study import load_study
from tintype.train import checkpoint
from tintype.train.folder import locked
from tintype.train.interrupt import Interrupt

PROTOCOL = Protocol(count=8, also=(), reference_count=8, validation_count=2)


def test_a_run_whose_study_is_gone_is_saved_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("baseline", tiny_plan("run.save_every_steps=100"), tmp_path / "run")
    parents = iter([7, 7, 7])  # the study lives for a few steps; then the process has another parent
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    last = _run(task, PROTOCOL, parent=7, interrupt=Interrupt(), send=lambda message: None)
    assert (last.state, last.text) == ("interrupted", f"saved at step {last.step}") and 0 < last.step < 6
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [last.step]
    went_on = _run(task, PROTOCOL, parent=1, interrupt=Interrupt(), send=lambda message: None)
    assert went_on.state == "done"


def test_runs_go_seed_by_seed_through_all_arms_and_resolutions(tmp_path: Path) -> None:
    chosen = ["resolutions=[{name: b, set: [model.patch=2]}, {name: a}]", "seeds=[0, 1]", "control_seeds=[]"]
    keys = [task.key for task in tasks_of(load_study("pocket", chosen), tmp_path)]
    arms = [f"{arm} @ {where}" for where in "ab" for arm in ("baseline", "short-captions", "x-prediction")]
    assert keys == [(arm, seed) for seed in (0, 1) for arm in arms]


def test_two_studies_cannot_work_in_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "out"), pytest.raises(UserError, match="another process is at work"):
        run_study(load_study("pocket"), tmp_path / "out", 1, Console(quiet=True))
    assert not (tmp_path / "out" / "study.yaml").exists()
