"""The supervisor of worker processes: what it starts, reads in the claims, and does when one of them ends."""

from __future__ import annotations

import math
import os
import signal
import sys
from multiprocessing import spawn
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.tiny import tiny_plan
from tests.unit.runtime.test_shares import GIB
from tests.unit.study.test_admission import DEVICE, Machine
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime.host import Process
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Claim, Leases
from tintype.study import supervisor
from tintype.study.runner import Message, Task
from tintype.study.shapes import ShapeFacts, note_shape, shape_of
from tintype.study.supervisor import Crew, Supervisor
from tintype.study.worker import deaths_in, lease_folder

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
    assert "exit code 1, 3 times before the worker could start a run" in last[tasks[0].key].text


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


class Running(Ended):
    """A process that runs, with a number of its own."""

    def __init__(self, pid: int) -> None:
        super().__init__(0)
        self.pid = pid

    def is_alive(self) -> bool:
        return True


def made_of(
    tmp_path: Path, machine: Machine, tasks: list[Task], monkeypatch: pytest.MonkeyPatch, most: int = 8
) -> Supervisor:
    """Return a supervisor of a pretend GPU whose workers are no processes."""

    def start(crew: Crew, slot: int, barren: int, gpus: object) -> supervisor._Job:
        return supervisor._Job(slot, cast(BaseProcess, Running(1_000 + slot)), barren)

    monkeypatch.setattr(supervisor, "_start", start)
    made = Supervisor(
        Crew(tuple(tasks), PROTOCOL, most, 1, "round", True, 120.0),
        Interrupt(),
        lambda message: None,
        admission=machine.admission(),
    )
    made.gpus = ["0"]
    return made


def held_by(made: Supervisor, job: supervisor._Job, task: Task, **now: Any) -> None:
    """Let a worker hold a run."""
    process = Process("here", job.process.pid or 0)
    claim = Claim(1, process, about={"step": 0}, now={"state": "training", "step": 300, **now})
    made.seen[task.plan.hash] = supervisor._Seen(claim)


def on_gpu(tmp_path: Path, count: int) -> list[Task]:
    settings = ("run.device=auto", "train.steps=400")
    plans = [tiny_plan(f"seed={seed}", *settings) for seed in range(count)]
    return [Task("small", plan, tmp_path / "runs" / plan.hash) for plan in plans]


def test_workers_are_started_for_the_runs_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is there without a run takes what fits, so no other is started for it."""
    machine, tasks = Machine(tmp_path, {"small": 30 * GIB}), on_gpu(tmp_path, 6)
    made = made_of(tmp_path, machine, tasks, monkeypatch)
    made._fill()
    assert len(made.jobs) == 3
    made._fill()
    assert len(made.jobs) == 3, "all of them are idle"
    for job, task in zip(made.jobs, tasks, strict=False):
        held_by(made, job, task)
    machine.gpu.strangers = 90 * GIB
    made._fill()
    assert len(made.jobs) == 4, "of the whole GPU, nobody was promised anything: one waits for it"
    few = made_of(tmp_path, machine, tasks, monkeypatch, most=2)
    machine.gpu.strangers = 0
    few._fill()
    assert len(few.jobs) == 2


def test_others_stand_still_while_a_run_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, tasks = Machine(tmp_path, {"small": 30 * GIB}), on_gpu(tmp_path, 3)
    made = made_of(tmp_path, machine, tasks, monkeypatch)
    made._fill()
    for job, task in zip(made.jobs, tasks, strict=True):
        made.pids.add(job.process.pid or 0)
        held_by(made, job, task)
    sent: list[tuple[int, int]] = []

    def send(process: Any, number: int) -> None:
        sent.append((process.pid, number))
        if number == supervisor._TIME and len(sent) == 3:
            note_shape(tmp_path, shape_of(tasks[0].plan), ShapeFacts(DEVICE, step_s=0.02, steps=10))

    monkeypatch.setattr(supervisor, "_signal", send)
    stop, go, told = signal.SIGSTOP, signal.SIGCONT, supervisor._TIME
    machine.gpu.strangers = 20 * GIB
    made._time_steps()
    assert not sent, "somebody else works on the GPU"
    machine.gpu.strangers = 0
    made._time_steps()
    assert sent == [(1_001, stop), (1_002, stop), (1_000, told), (1_000, told), (1_001, go), (1_002, go)]
    sent.clear()
    made._time_steps()
    assert not sent, "all three have one shape"


def test_those_that_stood_still_go_on_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, tasks = Machine(tmp_path), on_gpu(tmp_path, 2)
    made = made_of(tmp_path, machine, tasks, monkeypatch)
    made._fill()
    sent: list[int] = []
    monkeypatch.setattr(supervisor, "_signal", lambda process, number: sent.append(number))
    monkeypatch.setattr(made.admission, "refresh", lambda: (_ for _ in ()).throw(OSError("the disk is gone")))
    with pytest.raises(OSError, match="the disk is gone"):
        made._keep_quiet(made.jobs[0], made.jobs[1:], tasks[0])
    assert sent[-1] == signal.SIGCONT
    sent.clear()
    monkeypatch.setattr(made.admission, "refresh", lambda: None)
    monkeypatch.setattr(supervisor, "_QUIET_S", 0.1)
    made._keep_quiet(made.jobs[0], made.jobs[1:], tasks[0])
    assert sent[-1] == signal.SIGCONT, "it took too long"


@pytest.mark.parametrize(
    ("code", "leave"), [(supervisor._FAULTY, True), (-signal.SIGSEGV, True), (-signal.SIGKILL, False), (1, False)]
)
def test_the_neighbours_of_a_run_whose_gpu_failed_leave_it(
    code: int, leave: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, tasks = Machine(tmp_path, {"small": 30 * GIB}), on_gpu(tmp_path, 3)
    made = made_of(tmp_path, machine, tasks, monkeypatch)
    made._fill()
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(supervisor, "_signal", lambda process, number: sent.append((process.pid, number)))
    for _ in range(2):  # a second failure does not give them more time
        failed = supervisor._Job(0, cast(BaseProcess, Ended(code)))
        made.jobs.append(failed)
        made._replace(failed)
    assert sent == [(1_000 + slot, supervisor._STOP) for slot in range(3)] * leave


def test_a_neighbour_that_does_not_leave_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, tasks = Machine(tmp_path), on_gpu(tmp_path, 1)
    made = made_of(tmp_path, machine, tasks, monkeypatch)
    monkeypatch.setattr(supervisor, "_LEAVE_S", 0.1)
    monkeypatch.setattr(supervisor, "_signal", lambda process, number: None)
    monkeypatch.setattr(supervisor, "wait", lambda sentinels, seconds: None)

    class Stuck(Running):
        def is_alive(self) -> bool:
            return self.exitcode == 0

        def kill(self, seconds: float = 0.0) -> None:
            self.exitcode = -signal.SIGKILL
            made.interrupt.signal = signal.SIGTERM

    stuck = Stuck(1_000)
    made.jobs = [supervisor._Job(0, cast(BaseProcess, stuck))]
    made._renew(0)
    made.run()
    assert stuck.exitcode == -signal.SIGKILL and not made.jobs


def test_a_worker_whose_gpu_failed_frees_nothing_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at once: the ordinary end of a process would free what is on its GPU."""

    class Faulty:
        has_lost_gpu = True

        def __init__(self, *arguments: object) -> None:
            pass

        work = __init__

    monkeypatch.setattr(supervisor, "Worker", Faulty)
    crew = Crew(tuple(tasks_in(tmp_path, 1)), PROTOCOL, 1, 1, "round", True, 120.0)
    child = os.fork()
    if child == 0:
        try:
            supervisor._work(crew, 0, os.getppid(), [])
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == supervisor._FAULTY


@pytest.mark.parametrize(
    ("kills", "leave_by", "expected"), [(1, math.inf, "crowded"), (0, math.inf, "died"), (0, 0.0, "crowded")]
)
def test_a_worker_that_was_killed_for_others_has_not_died(
    kills: int, leave_by: float, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel killed it for want of memory, or it stood still after the GPU had failed in another run."""
    (task,) = tasks = tasks_in(tmp_path, 1)
    counts = [0, kills]
    monkeypatch.setattr(supervisor, "count_kills", lambda: counts.pop(0))
    said: list[Message] = []
    made = Supervisor(Crew(tuple(tasks), PROTOCOL, 1, 1, "round", True, 120.0), Interrupt(), said.append)
    child = os.fork()
    if child == 0:
        Leases(lease_folder(tasks)).take(task.plan.hash, {"round": "round", "step": 0})
        os._exit(9)
    os.waitpid(child, 0)
    ended = Ended(-signal.SIGKILL)
    ended.pid = child
    made.jobs = [supervisor._Job(0, cast(BaseProcess, ended), leave_by=leave_by)]
    made._replace(made.jobs[0])
    assert [message.state for message in said] == [expected]
    claims = Leases(lease_folder(tasks)).history(task.plan.hash)
    assert len(deaths_in(claims, {"round": "round", "step": 0})) == (expected == "died")


def test_jobs_are_a_number_or_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        supervisor.parse_jobs("3") == 3 and supervisor.parse_jobs("auto") == "auto" and supervisor.parse_jobs(None) == 1
    )
    monkeypatch.setattr(supervisor, "choose_device", lambda device: torch.device("cuda"))
    assert supervisor.parse_jobs(None) == "auto"
    for wrong in ("0", "many", "-1", "1.5"):
        with pytest.raises(UserError, match="give a number of at least 1, or auto"):
            supervisor.parse_jobs(wrong)


def test_a_full_disk_is_reported_though_no_claim_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Message] = []
    tasks = tasks_in(tmp_path, 1)
    made = Supervisor(Crew(tuple(tasks), PROTOCOL, 1, 1, "round", True, 120.0), Interrupt(), said.append)
    made._read()
    monkeypatch.setattr(supervisor, "has_room_in", lambda folder, size: False)
    for _ in range(3):
        made.due.pop("settled")
        made._read()
    assert [message.state for message in said] == ["waiting"], "once a minute"
    assert "no space is left on the disk" in said[0].text and "remove files" in said[0].text
