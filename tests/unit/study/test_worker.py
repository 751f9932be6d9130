"""Workers that share a study's folder: which runs they take, how often, and what they do with those that died."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import tiny_plan
from tests.unit.study.test_lineage import study as study_with_parents
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime import host
from tintype.runtime.fence import Fence
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Leases
from tintype.sampling.generate import SamplerSettings
from tintype.study import worker as module
from tintype.study.runner import Message, Task, tasks_of
from tintype.study.worker import Worker, lease_folder, message_of
from tintype.train.record import FAILURES, RunRecord

PROTOCOL = Protocol(count=8, also=(), reference_count=8, validation_count=2)
Run = Callable[[Task, Protocol, Interrupt, Callable[[Message], None], Fence], Message]


def tasks_in(out: Path, count: int = 3, retries: int = 2) -> list[Task]:
    plans = [tiny_plan(f"seed={seed}") for seed in range(count)]
    return [Task("arm", plan, out / "runs" / plan.hash, retries=retries) for plan in plans]


def work(tasks: list[Task], round: str = "", run: Run | None = None, wait: bool = True) -> list[Message]:
    """Return the last messages of the runs that a worker ran, in their order; `run` stands for training and scoring."""
    sent: list[Message] = []
    with pytest.MonkeyPatch.context() as patch:
        if run is not None:
            patch.setattr(module, "run_task", run)
        Worker(lease_folder(tasks), PROTOCOL, Interrupt(), sent.append, round).work(tasks, wait)
    return [message for message in sent if message.state not in ("training", "scoring")]


def done(
    task: Task, protocol: Protocol, interrupt: Interrupt, send: object, fence: Fence, on_step: object = None
) -> Message:
    fence.check()
    return Message(task.key, "done", 1.0)


def refused(
    task: Task, protocol: Protocol, interrupt: Interrupt, send: object, fence: Fence, on_step: object = None
) -> Message:
    task.folder.mkdir(parents=True, exist_ok=True)
    return Message(task.key, "failed", text="the data are not there")


def test_a_worker_trains_and_scores_each_run_once(tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path, 2)
    assert [(one.key, one.state) for one in work(tasks)] == [(("arm", 0), "done"), (("arm", 1), "done")]
    assert work(tasks) == [], "a second worker finds nothing to do"
    assert [one.state for one in work(tasks, round="again")] == ["done", "done"], "a new command checks them"
    claims = Leases(lease_folder(tasks)).history(tasks[0].plan.hash)
    assert [one.number for one in claims] == [1, 2]
    assert message_of(tasks[0], claims[0]).state == "done" and claims[0].about["arm"] == "arm"
    assert not RunRecord(tasks[0].folder).events


def test_a_round_goes_through_each_run_once_however_many_workers_it_has(tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path)
    assert [one.key[1] for one in work(tasks, "round", done)] == [0, 1, 2]
    assert work(tasks, "round", done) == []
    assert len(work(tasks, "next", done)) == 3


def test_a_run_with_a_users_error_is_not_tried_again_and_stops_no_other(tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path)

    def one_fails(task: Task, *others: object) -> Message:
        return refused(task, *others) if task is tasks[1] else done(task, *others)  # type: ignore[arg-type]

    sent = work(tasks, "round", one_fails)
    assert [one.state for one in sent] == ["done", "failed", "done"]
    assert "the data are not there" in (tasks[1].folder / FAILURES["failed"]).read_text()
    assert work([tasks[1]], run=done) == [], "a worker leaves it"
    assert [one.state for one in work([tasks[1]], "asked", done)] == ["done"], "unless it is asked for"
    assert not (tasks[1].folder / FAILURES["failed"]).exists()


def dies(task: Task) -> int:
    """Let a worker in a process of its own die within the run; return how the process ended."""

    def kill(*_: object, **__: object) -> Message:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    child = os.fork()
    if child == 0:
        work([task], run=kill)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_a_run_whose_process_dies_each_time_fails_after_its_retries(tmp_path: Path) -> None:
    good, bad = tasks_in(tmp_path, 2, retries=2)
    bad.folder.mkdir(parents=True)
    assert [dies(bad) for _ in range(3)] == [-signal.SIGKILL] * 3
    sent = work([bad, good], run=done)
    assert [one.state for one in sent] == ["failed", "done"]
    assert "its process died 3 times in a row without getting further" in sent[0].text
    assert "its process died 3 times" in (bad.folder / FAILURES["failed"]).read_text()
    assert dies(bad) == 0, "it is settled: no other worker takes it"
    assert [one.state for one in work([bad], "asked", done)] == ["done"], "a command asks for it anew"


@pytest.mark.slow
def test_deaths_after_which_a_run_got_further_do_not_count(tmp_path: Path) -> None:
    (task,) = tasks_in(tmp_path, 1, retries=1)
    for step in range(4):
        (RunRecord(task.folder).checkpoints / f"step-{step:09d}").mkdir(parents=True)
        assert dies(task) == -signal.SIGKILL
    assert dies(task) == -signal.SIGKILL
    assert [one.state for one in work([task], run=done)] == ["failed"]


def test_memory_that_runs_out_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks_in(tmp_path, 1, retries=1)

    def no_memory(*_: object) -> None:
        raise MemoryError("too large")

    monkeypatch.setattr("tintype.study.runner.train", no_memory)
    task.folder.mkdir(parents=True)
    sent = work([task])
    assert [one.state for one in sent] == ["died", "died", "failed"]
    assert sent[0].text == "out of memory: too large" and sent[2].text.endswith("out of memory: too large")


def test_the_event_of_a_run_says_from_whom_it_was_taken_over(tmp_path: Path) -> None:
    (task,) = tasks_in(tmp_path, 1)
    assert dies(task) == -signal.SIGKILL
    assert [one.state for one in work([task])] == ["done"]
    (event,) = RunRecord(task.folder).events
    assert (event["event"], event["step"]) == ("taken-over", 0) and "its process has ended" in event["holder"]


def test_a_worker_waits_for_the_runs_of_others_or_leaves_them(tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path, 2)
    other = Leases(lease_folder(tasks), "other").take(tasks[0].plan.hash)
    assert other is not None
    assert [one.key[1] for one in work(tasks, run=done, wait=False)] == [1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "_sleep", lambda self, seconds: other.end({"state": "interrupted"}))
        assert [one.key[1] for one in work(tasks, "round", done)] == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False])
def test_scores_of_another_machine_that_are_seen_late_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    (task,) = tasks_in(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(host, "machine", lambda: "another")
        lease = Leases(lease_folder([task]), "other").take(task.plan.hash)
        assert lease is not None
        lease.end({"state": "done"})
    looks = iter(range(100))
    monkeypatch.setattr(module, "is_settled", lambda *_: seen and next(looks) >= 4)
    monkeypatch.setattr(module, "run_task", done)
    sent: list[Message] = []
    Worker(lease_folder([task]), PROTOCOL, Interrupt(), sent.append, expiry_s=4.0).work([task])
    assert [one.state for one in sent] == ([] if seen else ["done"]), "scores that do not come are made after a while"


def test_a_run_begins_when_its_parent_has_ended(tmp_path: Path) -> None:
    tasks = tasks_of(study_with_parents(tmp_path), tmp_path)
    hashes = {task.key: task.plan.hash for task in tasks}
    order = [hashes[one.key] for one in work(tasks, "round", done)]
    children = [task for task in tasks if task.parent]
    assert len(order) == len(tasks) and children and tasks.index(children[0]) == 1, "they come before their parents"
    for task in children:
        assert task.parent is not None
        assert order.index(task.parent) < order.index(task.plan.hash)


def test_an_error_that_comes_of_a_lost_lease_is_none_of_the_run(tmp_path: Path) -> None:
    """The next holder has removed what this one was writing."""
    (task,) = tasks_in(tmp_path, 1)

    def lose(task: Task, *_: object) -> Message:
        claims = lease_folder([task]) / task.plan.hash
        (claims / "000002.json").write_text("{}")
        return Message(task.key, "failed", text=str(UserError("cannot write")))

    assert [one.state for one in work([task], run=lose, wait=False)] == ["lost"]
    assert not task.folder.exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process from /proc")
def test_two_hundred_runs_cost_little_more_than_their_training_and_scoring(tmp_path: Path) -> None:
    """The seconds of a run that are neither training nor scoring, and the memory after 20 and after 200 runs."""
    plans = [tiny_plan(f"seed={seed}", "train.steps=2") for seed in range(200)]
    tasks = [Task("arm", plan, tmp_path / "runs" / plan.hash) for plan in plans]
    ends: list[tuple[float, float, int]] = []

    def note(message: Message) -> None:
        if message.state == "done":
            ends.append((time.perf_counter(), message.training_s + message.scoring_s, resident_bytes()))

    small = Protocol(
        count=8, also=(), reference_count=8, validation_count=2, metrics=(), sampler=SamplerSettings(steps=1)
    )
    Worker(lease_folder(tasks), small, Interrupt(), note, "round").work(tasks)
    assert len(ends) == 200
    over_s = (ends[-1][0] - ends[0][0] - sum(seconds for _, seconds, _ in ends[1:])) / 199
    grown = ends[-1][2] - ends[19][2]
    print(f"overhead {over_s:.3f} s a run, memory grew by {grown / 2**20:.1f} MiB")
    assert over_s < 0.3 and grown < 64 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
