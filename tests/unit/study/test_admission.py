"""Admission of runs by memory, on a pretend GPU of a given size: every decision of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import tiny_plan
from tests.unit.runtime.test_shares import GIB, TOTAL, Pretend
from tests.unit.study.test_worker import PROTOCOL, done
from tintype.evaluation.protocol import Protocol
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Claim
from tintype.runtime.memory import lost_gpu, ran_out
from tintype.runtime.pools import CONTEXT_BYTES
from tintype.runtime.shares import Shares
from tintype.study import admission as module
from tintype.study import worker
from tintype.study.admission import MARGIN, MOST_CROWDED, Admission, Need, crowds_in, estimated_need, wait_s
from tintype.study.runner import GPU_LOST, HOST_KILLED, OUT_OF_MEMORY, Message, Task
from tintype.study.shapes import ShapeFacts, StepTimer, note_shape, shape_of
from tintype.study.worker import Worker, deaths_in
from tintype.train.record import FAILURES

DEVICE = "a pretend GPU"


class Machine:
    """A GPU and a host, and the admission of a process to them."""

    def __init__(self, out: Path, needs: dict[str, int | None] | None = None, host: int = GIB) -> None:
        self.gpu, self.memory = Pretend(), Pretend(name="host", empty_share=0.0)
        self.out, self.needs, self.host = out, needs or {}, host

    def admission(self) -> Admission:
        folder = self.out / "machine"
        pools = Shares(self.gpu, folder), Shares(self.memory, folder)

        def estimate(task: Task, protocol: Protocol) -> Need:
            return Need(self.needs.get(task.arm, 10 * GIB), self.host, "estimated")

        return Admission(self.out, PROTOCOL, [pools[0]], pools[1], DEVICE, estimate)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, {"large": 60 * GIB, "unknown": None})


def task_in(out: Path, arm: str = "small", *assignments: str) -> Task:
    plan = tiny_plan("run.device=auto", *assignments)
    return Task(arm, plan, out / "runs" / plan.hash)


def crowded(needs: int = 0, text: str = OUT_OF_MEMORY, step: int = 0, killed: bool = False) -> Claim:
    ended: dict[str, Any] = {"state": "crowded", "text": text, "needs_bytes": needs}
    died: dict[str, Any] = {"died": f"{HOST_KILLED}: exit code -9"}
    about = {"step": step}
    return Claim(1, about=about, now=died) if killed else Claim(1, about=about, ended=ended)


def test_arms_start_as_long_as_their_own_peaks_fit(machine: Machine, tmp_path: Path) -> None:
    """The large arm does not count as the small ones do, nor they as it does."""
    here = machine.admission()
    arms = ["large", "small", "small", "large", "small", "small"]
    widths = {"large": "model.width=32", "small": "model.width=16"}
    tasks = [task_in(tmp_path, arm, f"seed={seed}", widths[arm]) for seed, arm in enumerate(arms)]
    assert here.count_fitting(tasks) == 4
    assert [here.admit(task) is not None for task in tasks] == [True, True, True, False, True, False]


def test_a_run_whose_peak_is_not_known_has_the_gpu_for_itself(machine: Machine, tmp_path: Path) -> None:
    here, small, unknown = machine.admission(), task_in(tmp_path), task_in(tmp_path, "unknown", "model.width=16")
    grant = here.admit(unknown)
    assert grant is not None and grant.is_empty and here.admit(small) is None and here.count_fitting([small]) == 0
    grant.release()
    assert here.admit(small) is not None and here.admit(unknown) is None
    assert here.count_fitting([unknown]) == 0 and here.count_fitting([small]) == 1


def test_what_was_measured_counts_in_place_of_the_estimate(machine: Machine, tmp_path: Path) -> None:
    here, task = machine.admission(), task_in(tmp_path, "large")
    assert here.need_of(task) == Need(60 * GIB, GIB, "estimated")
    note_shape(tmp_path, shape_of(task.plan), ShapeFacts(DEVICE, 20 * GIB, 2 * GIB))
    note_shape(tmp_path, shape_of(task.plan), ShapeFacts("another GPU", 90 * GIB))
    here.refresh()
    need = here.need_of(task_in(tmp_path, "large", "seed=7", "optimizer.lr=0.5"))
    assert need == Need(
        int(MARGIN * 20 * GIB) + CONTEXT_BYTES, int(MARGIN * 2 * GIB) + (MARGIN * 2 * GIB % 1 > 0), "measured"
    )


def test_the_host_admits_as_the_gpu_does(tmp_path: Path) -> None:
    machine = Machine(tmp_path, host=60 * GIB)
    here, task = machine.admission(), task_in(tmp_path)
    assert here.admit(task) is not None and here.admit(task) is None
    assert len(here.gpus[0].promises()) == 1, "the share of the GPU is given back"


@pytest.mark.parametrize(
    ("used", "strangers", "arm", "expected"),
    [
        (5, 0, "small", ("crowded", 0)),  # it had room in its share: the memory was gone
        (9, 0, "small", ("crowded", 15 * GIB)),  # it reached its share
        (30, 60, "unknown", ("crowded", 0)),  # it has what is left beside strangers
        (99, 0, "unknown", ("failed", 0)),  # it had everything
    ],
)
def test_only_a_run_that_is_alone_on_an_empty_gpu_fails(
    used: int, strangers: int, arm: str, expected: tuple[str, int], machine: Machine, tmp_path: Path
) -> None:
    here, task = machine.admission(), task_in(tmp_path, arm)
    machine.gpu.strangers = strangers * GIB
    grant = here.admit(task)
    assert grant is not None
    grant.gpus[0].most = used * GIB
    died = Message(task.key, "died", text=f"{OUT_OF_MEMORY}: tried to allocate 4 GiB")
    found = grant.judge(died)
    assert (found.state, found.needs_bytes) == expected
    assert ("train.accumulate" in found.text) == (expected[0] == "failed")
    assert grant.judge(Message(task.key, "died", text="a rank was lost")).state == "died", "that is another matter"
    lost = grant.judge(Message(task.key, "died", text=f"{GPU_LOST}: CUDA error"))
    assert lost.state == ("died" if expected[0] == "failed" else "crowded") and not lost.needs_bytes


def test_a_corrected_share_counts_until_the_run_gets_further(machine: Machine, tmp_path: Path) -> None:
    here, task = machine.admission(), task_in(tmp_path)
    assert here.need_of(task, [crowded(15 * GIB)]).gpu == 15 * GIB
    assert here.need_of(task, [crowded(15 * GIB), crowded()]).gpu == 15 * GIB
    assert here.need_of(task, [crowded()] * MOST_CROWDED).gpu is None, "it is tried alone"
    assert here.need_of(task, [crowded(15 * GIB)], step=4).gpu == 10 * GIB
    assert here.need_of(task, [crowded(killed=True)]).host == int(1.5 * GIB)
    assert here.need_of(task, [crowded(killed=True)] * MOST_CROWDED).host is None


def test_nobody_is_started_again_within_seconds() -> None:
    waits = [wait_s(count) for count in range(12)]
    assert waits[0] == 0 and waits[1] >= 10 and waits == sorted(waits) and waits[-1] <= 300


def test_a_run_that_was_sent_back_has_not_died(machine: Machine) -> None:
    died = Claim(1, about={"step": 0}, ended={"state": "died"})
    assert deaths_in([died, crowded(), died, crowded()], {"step": 0}) == [died, died]
    assert len(crowds_in([died, crowded(), died, crowded()], 0)) == 2
    assert crowds_in([crowded(step=0), crowded(step=4)], 4) == [crowded(step=4)]
    killed = [replace(crowded(killed=True), number=number) for number in range(MOST_CROWDED + 2)]
    assert len(deaths_in(killed, {"step": 0})) == 2, "what the kernel kills again and again is not tried for ever"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("tried to allocate"), (True, False)),
        (MemoryError(), (True, False)),
        (RuntimeError("CUDA error: out of memory"), (True, True)),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), (True, True)),
        (RuntimeError("CUDA error: unspecified launch failure"), (False, True)),
        (RuntimeError("shapes do not fit"), (False, False)),
        (ValueError("out of memory"), (False, False)),
    ],
)
def test_errors_that_mean_a_lack_of_memory_or_a_lost_gpu(error: Exception, expected: tuple[bool, bool]) -> None:
    assert (ran_out(error), lost_gpu(error)) == expected


def work_admitted(machine: Machine, tasks: list[Task], run: Any, round: str = "round") -> tuple[list[Message], Worker]:
    said: list[Message] = []
    made = Worker(machine.out / "leases", PROTOCOL, Interrupt(), said.append, round, admission=machine.admission())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "run_task", run)
        patch.setattr(worker, "_LOOK_S", 0.01)
        made.work(tasks)
    return said, made


def test_a_run_goes_back_to_the_queue_and_is_done_with_a_larger_share(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_WAIT_S", 0.05)
    shares: list[int] = []

    def run(task: Task, protocol: Protocol, interrupt: Interrupt, tell: Any, fence: Any, on_step: Any) -> Message:
        (promise,) = machine.admission().gpus[0].promises()
        shares.append(promise.bytes)
        if promise.bytes < 20 * GIB:
            held[0].most = promise.bytes
            return Message(task.key, "died", text=f"{OUT_OF_MEMORY}: tried to allocate 2 GiB")
        return done(task, protocol, interrupt, tell, fence)

    held: list[Any] = []
    monkeypatch.setattr(module.Grant, "begin", lambda grant: held.insert(0, grant.gpus[0]))
    said, _ = work_admitted(machine, [task_in(tmp_path)], run)
    assert [message.state for message in said] == ["crowded", "crowded", "done"]
    assert shares == [10 * GIB, 15 * GIB, int(22.5 * GIB)]
    assert not machine.admission().gpus[0].promises(), "a run that has ended holds nothing"


def test_a_worker_whose_gpu_failed_leaves_the_rest_to_a_new_process(machine: Machine, tmp_path: Path) -> None:
    def run(task: Task, *others: Any, **more: Any) -> Message:
        return Message(task.key, "died", text=f"{GPU_LOST}: CUDA error: unspecified launch failure")

    tasks = [task_in(tmp_path, "small", f"seed={seed}") for seed in range(3)]
    said, made = work_admitted(machine, tasks, run)
    assert [message.state for message in said] == ["crowded"] and made.is_spent


def test_a_worker_takes_the_first_run_that_fits_and_waits_for_room(machine: Machine, tmp_path: Path) -> None:
    """A neighbour holds half of the GPU, and goes when the small run is done."""
    neighbour = machine.admission().gpus[0].take(50 * GIB)
    assert neighbour is not None

    def run(task: Task, protocol: Protocol, interrupt: Interrupt, tell: Any, fence: Any, on_step: Any) -> Message:
        neighbour.release()
        return done(task, protocol, interrupt, tell, fence)

    tasks = [task_in(tmp_path, "large", "model.width=16"), task_in(tmp_path, "small")]
    said, _ = work_admitted(machine, tasks, run)
    assert [message.key[0] for message in said] == ["small", "large"]


def test_runs_that_are_done_need_no_memory(machine: Machine, tmp_path: Path) -> None:
    task = task_in(tmp_path)
    task.folder.mkdir(parents=True)
    (task.folder / FAILURES["failed"]).touch()
    machine.gpu.strangers = TOTAL
    said, _ = work_admitted(machine, [task], done)
    assert [message.state for message in said] == ["done"]


def test_estimates_count_everything_and_say_where_they_cannot() -> None:
    plan = tiny_plan()
    known = estimated_need(Task("arm", plan, Path("runs")), PROTOCOL)
    assert known.words == "estimated" and known.gpu is not None and known.gpu > CONTEXT_BYTES


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which steps are timed."""
    now = [0.0]
    timer = StepTimer(synchronize=lambda: None, clock=lambda: now[0])
    monkeypatch.setattr(StepTimer, "of", lambda *_: timer)
    return now


def train(
    machine: Machine, clock: list[float], beside: int, quiet: tuple[int, ...] = (), jam_until: int = 0
) -> float | None:
    """Let a run train beside others for 400 steps, and return the time of a step that was noted."""
    here, task = machine.admission(), task_in(machine.out, "small", "train.steps=400", "run.save_every_steps=400")
    made = Worker(machine.out / "leases", PROTOCOL, Interrupt(), lambda message: None, "round", admission=here)
    machine.gpu.strangers = beside
    grant = here.admit(task)
    assert grant is not None
    on_step = made._timed(task, grant)
    for step in range(400):
        if step in quiet:
            made.be_timed()
        clock[0] += 0.02 * (1 + max(0, jam_until - step) / 10)
        on_step(step)
    grant.release()
    here.refresh()
    return here.step_s_of(task) if here.has_step(task) else None


def test_steps_are_timed_in_a_quiet_moment(machine: Machine, clock: list[float]) -> None:
    assert train(machine, clock, beside=50 * GIB) is None, "others may slow it down"
    assert train(machine, clock, beside=50 * GIB, quiet=(100, 102)) is None, "the quiet moment was over too early"
    assert train(machine, clock, beside=50 * GIB, quiet=(100,)) == pytest.approx(0.02)


def test_a_run_that_is_alone_times_itself(machine: Machine, clock: list[float]) -> None:
    assert train(machine, clock, beside=0) == pytest.approx(0.02)


def test_two_times_in_a_row_must_agree(machine: Machine, clock: list[float]) -> None:
    """Steps of neighbours that were queued when they were stopped still run for a while."""
    assert train(machine, clock, beside=50 * GIB, quiet=(100,), jam_until=150) == pytest.approx(0.02)


def test_the_first_epoch_is_passed_over_where_there_is_another() -> None:
    """The host draws images and writes captions in it, which a later step does not wait for."""
    several = ("data.count=400", "train.batch=4", "train.steps=400")
    assert worker.timed_from(tiny_plan(*several)) == 100
    assert worker.timed_from(tiny_plan(*several, "train.steps=150")) == worker._TIMED_FROM
    assert worker.timed_from(tiny_plan("data.count=8", "train.steps=400")) == worker._TIMED_FROM
