"""Runs of several ranks under a worker, without torchrun: what the ranks are told, and what follows when they end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_plan
from tests.unit.study.test_supervisor import PROTOCOL
from tintype.errors import UserError
from tintype.runtime.dist import ALONE
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Leases
from tintype.study import supervisor, worker
from tintype.study.rank import train_rank
from tintype.study.ranks import RankedRun, start_ranks
from tintype.study.runner import Message, Task
from tintype.study.study import Along
from tintype.study.worker import Worker, has_room, is_settled
from tintype.train.record import FAILURES


@pytest.fixture
def task(tmp_path: Path) -> Task:
    plan = tiny_plan("run.ranks=2")
    return Task("arm", plan, tmp_path / "runs" / plan.hash, Along((2, 4), PROTOCOL), retries=1)


def ranked(task: Task, out: Path) -> RankedRun:
    return RankedRun.of(task, PROTOCOL, out / "leases", "round", 60.0)


def test_the_number_of_ranks_is_housekeeping() -> None:
    assert tiny_plan("run.ranks=2").hash == tiny_plan().hash


def test_a_file_tells_the_ranks_all(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: begun.append(command))
    start_ranks(ranked(task, tmp_path))
    assert begun[0][-4:-1] == ["2", "-m", "tintype.study.rank"]
    read = RankedRun.read(Path(begun[0][-1]))
    assert read == ranked(task, tmp_path) and read.task() == task


def test_the_ranks_train_under_the_lease_and_leave_the_scores(task: Task, tmp_path: Path) -> None:
    message = train_rank(ranked(task, tmp_path), ALONE, Interrupt())
    assert message is not None and message.text == "trained, but not yet scored"
    (claim,) = Leases(tmp_path / "leases").history(task.plan.hash)
    assert (claim.ended or {})["step"] == task.plan.train.steps and claim.about["round"] == "round"
    assert not is_settled(task, PROTOCOL)
    held = Leases(tmp_path / "leases").take(task.plan.hash)
    assert held is not None and train_rank(ranked(task, tmp_path), ALONE, Interrupt()) is None, "another has the run"
    held.end({"state": "interrupted"})


class Ended:
    """Ranks that have ended."""

    def __init__(self, code: int) -> None:
        self.returncode = code

    def poll(self) -> int:
        return self.returncode


def worked(task: Task, out: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Message], int]:
    """Let a worker start ranks that end at once; return its messages, and how often it started them."""
    said: list[Message] = []
    starts: list[RankedRun] = []

    def start(run: RankedRun) -> Ended:
        starts.append(run)
        return Ended(code)

    monkeypatch.setattr(worker, "start_ranks", start)
    Worker(out / "leases", PROTOCOL, Interrupt(), said.append, "round").work([task])
    return said, len(starts)


def test_ranks_that_never_begin_fail_the_run_alone(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task.folder.mkdir(parents=True)
    said, starts = worked(task, tmp_path, 1, monkeypatch)
    assert starts == 3 and [message.state for message in said] == ["failed"] and "launch/" in said[0].text
    assert (task.folder / FAILURES["failed"]).exists()


def test_ranks_that_die_are_tried_as_often_as_any_run(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(run: RankedRun) -> Ended:
        child = os.fork()
        if child == 0:
            Leases(run.leases).take(task.plan.hash, worker.about_run(task, run.round))
            os._exit(9)
        os.waitpid(child, 0)
        return Ended(1)

    said: list[Message] = []
    monkeypatch.setattr(worker, "start_ranks", die)
    Worker(tmp_path / "leases", PROTOCOL, Interrupt(), said.append, "round").work([task])
    assert [message.state for message in said] == ["died", "died", "failed"]


def test_a_worker_leaves_runs_that_need_more_gpus_to_others(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_room(task), "on a CPU ranks share it"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert not has_room(task)
    Worker(tmp_path / "leases", PROTOCOL, Interrupt(), lambda message: None, "round").work([task], wait=False)
    assert not (tmp_path / "leases").exists()
    with pytest.raises(UserError, match=r"run.ranks is 2, but this machine has only 1 GPUs"):
        supervisor.run_tasks([task], PROTOCOL, 1, Interrupt(), lambda message: None)


@pytest.mark.parametrize(("slot", "expected"), [(0, [0, 1]), (1, [2, 3]), (2, [0, 1])])
def test_each_worker_gets_the_gpus_of_its_largest_run(task: Task, slot: int, expected: list[int]) -> None:
    assert list(supervisor.Crew((task,), PROTOCOL, 3, 1, "round", True, 120.0).gpus_of(slot, 5)) == expected
