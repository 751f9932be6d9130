"""The supervisor of worker processes: what it starts, reads in the claims, and does when one of them ends."""

from __future__ import annotations

import signal
import sys
from multiprocessing import spawn
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

import pytest

from tests.tiny import tiny_plan
from tintype.evaluation.protocol import Protocol
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Leases
from tintype.study import supervisor
from tintype.study.runner import Task
from tintype.study.worker import lease_folder

PROTOCOL = Protocol(count=8, also=(), reference_count=8, validation_count=2)


def tasks_in(out: Path, count: int = 2) -> list[Task]:
    plans = [tiny_plan(f"seed={seed}") for seed in range(count)]
    return [Task("arm", plan, out / "runs" / plan.hash) for plan in plans]


class Ended:
    """A process that has ended."""

    pid, sentinel = 999_999_999, -1

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def is_alive(self) -> bool:
        return False

    def join(self, seconds: float = 0.0) -> None:
        pass

    kill = join


def crew_of(tasks: list[Task], codes: list[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let workers end with these codes before they take a run, then end the runs by themselves; note the slots."""
    started: list[int] = []

    def start(crew: supervisor.Crew, slot: int, barren: int, gpus: object) -> supervisor._Job:
        started.append(slot)
        code = codes.pop(0) if codes else 0
        if not code:
            for task in crew.tasks:
                lease = Leases(lease_folder(tasks)).take(task.plan.hash, {"round": crew.round})
                assert lease is not None
                lease.end({"state": "done", "text": "", "step": 6})
        return supervisor._Job(slot, cast(BaseProcess, Ended(code)), barren)

    monkeypatch.setattr(supervisor, "_start", start)
    monkeypatch.setattr(supervisor, "wait", lambda sentinels, seconds: None)
    monkeypatch.setattr(supervisor, "_AGAIN_S", 0.01)
    monkeypatch.setattr(supervisor, "_FILL_S", 0.01)
    return started


@pytest.mark.parametrize("code", [-signal.SIGTERM, -signal.SIGUSR1, -signal.SIGKILL, 1])
def test_a_worker_that_ends_before_it_takes_a_run_is_started_again(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_in(tmp_path)
    started = crew_of(tasks, [code], monkeypatch)
    last = supervisor.run_tasks(tasks, PROTOCOL, 1, Interrupt(), lambda message: None)
    assert started == [0, 0] and {message.state for message in last.values()} == {"done"}
    assert last.keys() == {task.key for task in tasks}, "the ends that no worker told stand in the claims"


def test_a_worker_that_never_takes_a_run_fails_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tasks_in(tmp_path)
    started = crew_of(tasks, [1] * 9, monkeypatch)
    last = supervisor.run_tasks(tasks, PROTOCOL, 1, Interrupt(), lambda message: None)
    assert len(started) == 3 and {message.state for message in last.values()} == {"failed"}
    assert "exit code 1, 3 times before it took a run" in last[tasks[0].key].text


def test_workers_that_a_signal_ends_while_they_import_have_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, interrupt = tasks_in(tmp_path), Interrupt()
    started = crew_of(tasks, [-signal.SIGUSR1], monkeypatch)
    monkeypatch.setattr(supervisor, "wait", lambda *_: setattr(interrupt, "signal", signal.SIGTERM))
    assert supervisor.run_tasks(tasks, PROTOCOL, 1, interrupt, lambda message: None) == {} and started == [0]


def test_a_worker_does_not_run_the_program_of_its_study_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script without `if __name__ == "__main__"` would otherwise run its study in every worker."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "a_script.py", raising=False)
    monkeypatch.setattr(main, "__spec__", None)
    again = {"init_main_from_path", "init_main_from_name"}
    assert again & set(spawn.get_preparation_data("worker"))
    with supervisor._without_main():
        assert not again & set(spawn.get_preparation_data("worker"))
    assert sys.modules["__main__"] is main
