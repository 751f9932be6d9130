from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.metrics.evaluate import Protocol
from tintype.study.lab import run_study
from tintype.study.runner import Message, Task, _run
from tintype.study.study import load_study
from tintype.train import checkpoint
from tintype.train.folder import locked
from tintype.train.interrupt import Interrupt

PROTOCOL = Protocol(count=5, short_count=0, reference_count=5, validation_count=2)


def test_a_run_whose_study_is_gone_is_saved_and_left(tmp_path: Path) -> None:
    task = Task("baseline", tiny_plan("run.save_every_steps=100"), tmp_path / "run")
    told: list[Message] = []
    last = _run(task, PROTOCOL, parent=-1, interrupt=Interrupt(), send=told.append)
    assert last.state == "interrupted" and last.text == f"saved at step {last.step}"
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [last.step] and last.step < task.plan.train.steps
    went_on = _run(task, PROTOCOL, parent=os.getppid(), interrupt=Interrupt(), send=told.append)
    assert went_on.state == "done"
    assert checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] == task.plan.train.steps


def test_two_studies_cannot_work_in_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "out"), pytest.raises(UserError, match="another process is at work"):
        run_study(load_study("pocket"), tmp_path / "out", 1, Console(quiet=True))
    assert not (tmp_path / "out" / "study.yaml").exists()
