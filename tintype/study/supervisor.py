"""The supervisor of a study's workers on this machine, which starts, restarts and stops the workers.

The supervisor starts a worker if a run would fit, up to the number in `--jobs`, or as long as each worker raises the
throughput. All information about a run is in its claim, which `tintype status` also reads. Otherwise the supervisor and
its workers exchange only signals.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Literal

import torch

from tintype.data.decoding.threads import share_cores
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.runtime.leases import EXPIRY_S, Claim, Leases, MovedError
from tintype.runtime.machine import choose_device, cores
from tintype.runtime.mps import side_by_side
from tintype.runtime.parent import end_with_parent
from tintype.runtime.pools import count_kills
from tintype.runtime.room import has_room as has_room_in
from tintype.runtime.signals import ignored
from tintype.runtime.streams import end_at_once, prepare_streams
from tintype.study.admission import Admission
from tintype.study.pace import MOST, Pace, Pulse
from tintype.study.runner import ENDED, HOST_KILLED, NO_ROOM, STUCK, Message, State, Task
from tintype.study.worker import (
    SPARE_BYTES,
    Worker,
    anchor_of,
    ended_in,
    has_room,
    is_settled,
    lease_folder,
    message_of,
    progress_of,
    timed_from,
)
from tintype.wording import option

_POLL_S, _READ_S, _FILL_S = 0.2, 0.5, 1.0
"""Seconds between checks of the processes, the claims, and the runs that fit."""
_SETTLED_S = 5.0
"""Seconds between checks for runs that other commands have ended."""
_WAITING_S = 60.0
"""Seconds between messages about a study that is waiting for memory."""
_BEAT_S = 1.0
"""Seconds between heartbeats of a worker, which is also the maximum age of the display."""
_JOIN_S = 5.0
_STOP, _TIME = signal.SIGUSR1, signal.SIGUSR2
"""Signals that stop a worker, and that start and end its timing; a second SIGTERM would end the worker at once."""
_MOST_STARTS = 3
"""A worker is not restarted if it dies this many times in a row before it takes a run."""
_AGAIN_S = 2.0
"""Seconds before a dead worker is restarted. Each further death triples this wait."""
_SPENT, _FAULTY = 75, 76
"""Exit codes of a worker that leaves its runs to a new process; with the second, the worker's GPU has failed."""
_LEAVE_S = 60.0
"""Seconds that a worker may take to save its run after the GPU has failed in another worker."""
_QUIET_S, _QUIET_AGAIN_S = 8.0, 60.0
"""Maximum seconds for which other runs pause while a run's steps are timed, and seconds until the next attempt."""
_LEAST_LEFT = 30
"""A run's steps are timed only if at least this many of its steps are left."""
_STRANGERS_SHARE = 0.1
"""If other programs use more than this fraction of a GPU's memory, the GPU counts as shared."""

Jobs = int | Literal["auto"]
"""Number of workers of a command; "auto" means as many as raise the throughput."""


def parse_jobs(given: str | int | None) -> Jobs:
    """Parse the number of concurrent runs, which is a number or auto. The default is auto on a GPU and 1 on a CPU."""
    if given is None:
        return "auto" if choose_device("auto").type == "cuda" else 1
    text = str(given)
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{option('jobs', text)} is not a valid number of runs", "give a number of at least 1, or auto")
    return int(text)


def most_of(jobs: Jobs) -> int:
    if jobs != "auto":
        return jobs
    gpus = torch.cuda.device_count()
    return gpus * min(MOST, max(1, cores() // gpus)) if gpus else 1


def gpu_names() -> list[str]:
    """Return the GPUs that this process may use, in the notation of `CUDA_VISIBLE_DEVICES`."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]


@dataclass(frozen=True)
class Crew:
    """The work and the settings that all workers of one command share."""

    tasks: tuple[Task, ...]
    protocol: Protocol
    most: int
    threads: int
    round: str
    """Identifier of a command's workers if it makes each run once; empty if it makes only the remaining runs."""
    wait: bool
    expiry_s: float

    def gpus_of(self, slot: int, gpus: int) -> range:
        """Return the GPUs of this worker, as many as its largest run needs."""
        width = max(task.plan.run.ranks for task in self.tasks)
        first = slot * width % max(1, gpus - gpus % width)
        return range(first, first + width)


@dataclass
class _Job:
    slot: int
    process: BaseProcess
    barren: int = 0
    """How often the process of this slot died before it took a run."""
    took: bool = False
    """Whether the process has taken a run."""
    leave_by: float = math.inf
    """Time at which the process is killed after it was asked to leave its GPU."""

    @property
    def was_told(self) -> bool:
        """Return whether the process ended by a signal, or because it left the remaining runs to a new process."""
        return self.process.exitcode in (0, _SPENT, _FAULTY, -signal.SIGTERM, -_STOP)

    @property
    def has_failed(self) -> bool:
        """Return whether the process ended by a GPU error, or by an unknown signal that may mean a GPU error."""
        code = self.process.exitcode or 0
        return code == _FAULTY or (code < 0 and not self.was_told and code != -signal.SIGKILL)


def run_tasks(
    tasks: Sequence[Task],
    protocol: Protocol,
    jobs: Jobs,
    interrupt: Interrupt,
    on_message: Callable[[Message], None],
    round: str | None = None,
    wait: bool = True,
    expiry_s: float = EXPIRY_S,
) -> dict[tuple[str, int], Message]:
    """Make the runs in workers, by default each once in a separate round; return each started run's last message."""
    widest = max(task.plan.run.ranks for task in tasks)
    if not all(map(has_room, tasks)):
        raise UserError(f"run.ranks is {widest}, but this machine has only {torch.cuda.device_count()} GPUs")
    most = min(most_of(jobs), len(tasks))
    threads = max(1, torch.get_num_threads() // most)  # of the host of a GPU; on a CPU, runs set their own number
    named = uuid.uuid4().hex[:12] if round is None else round
    crew = Crew(tuple(tasks), protocol, most, threads, named, wait, expiry_s)
    with side_by_side(most):
        return Supervisor(crew, interrupt, on_message, Pace() if jobs == "auto" else None).run()


@dataclass
class _Seen:
    """The last known newest claim of a run, and the part of it that was already reported."""

    claim: Claim
    told: tuple[object, ...] = field(default_factory=tuple)


class Supervisor:
    """The supervision of a crew of workers, from its start to the end of the last run."""

    def __init__(
        self,
        crew: Crew,
        interrupt: Interrupt,
        on_message: Callable[[Message], None],
        pace: Pace | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.crew, self.interrupt, self.on_message, self.pace = crew, interrupt, on_message, pace
        folder = lease_folder(crew.tasks)
        self.leases = Leases(folder, anchor=anchor_of(folder))
        self.admission = admission or Admission.here(folder.parent, crew.protocol)
        self.gpus = gpu_names()
        self.last: dict[tuple[str, int], Message] = {}
        self.jobs: list[_Job] = []
        self.pids: set[int] = set()
        """All worker processes started so far."""
        self.seen: dict[str, _Seen] = {}
        self.settled: set[str] = set()
        """Runs that other commands have ended."""
        self.closed: set[int] = set()
        """Slots in which no more workers are started."""
        self.barren: dict[int, tuple[int, float]] = {}
        """By slot: the number of deaths of its process before it took a run, and the time of the next start."""
        self.over = False
        """Whether a worker has found no run left."""
        self.due: dict[str, float] = {}
        """Time at which each action is due next, by the action's name."""
        self.kills = count_kills()

    def run(self) -> dict[tuple[str, int], Message]:
        stopping = False
        try:
            while True:
                self.leases.check_place()
                if not stopping and (self.interrupt.signal is not None or not self._left()):
                    stopping = True
                    for job in self.jobs:
                        _signal(job.process, _STOP)
                if not stopping and self._is_due("fill", _FILL_S):
                    self._fill()
                if not self.jobs and (stopping or self.over or not self._can_start()):
                    break
                wait([job.process.sentinel for job in self.jobs], _POLL_S)
                if self._is_due("read", _READ_S) or any(not job.process.is_alive() for job in self.jobs):
                    self._read()
                for job in [job for job in self.jobs if not job.process.is_alive()]:
                    self._replace(job)
                for job in self.jobs:
                    if time.monotonic() > job.leave_by:
                        job.process.kill()
                if not stopping and self.gpus and self._is_due("quiet", _FILL_S):
                    self._time_steps()
        finally:
            _dismiss(self.jobs)
        self.leases.check_place()
        stopped = [key for key, message in self.last.items() if message.state not in ENDED]
        return self.last | {key: replace(self.last[key], state="interrupted") for key in stopped}

    def _is_due(self, what: str, every_s: float) -> bool:
        if time.monotonic() < self.due.get(what, 0.0):
            return False
        self.due[what] = time.monotonic() + every_s
        return True

    # Processes

    def _can_start(self) -> bool:
        """Return whether a worker will be started later, if none is started at present."""
        return bool(self._left()) and len(self.closed) < self.crew.most

    def _fill(self) -> None:
        """Start workers for the free runs that fit at present."""
        self.admission.refresh()
        target = self.crew.most if self.pace is None else min(self.crew.most, self._paced() * max(1, len(self.gpus)))
        held = {name for name, seen in self.seen.items() if seen.claim.ended is None and not seen.claim.is_dead}
        waiting = [task for task in self._left() if task.plan.hash not in held]
        idle = sum(not self._run_of(job) for job in self.jobs)
        room = min(target - len(self.jobs), self.admission.count_fitting(waiting) - idle)
        free = [slot for slot in range(self.crew.most) if slot not in self.closed]
        for slot in [slot for slot in free if slot not in {job.slot for job in self.jobs}]:
            barren, again_s = self.barren.get(slot, (0, 0.0))
            if room > 0 and time.monotonic() >= again_s and not self.over:
                job = _start(self.crew, slot, barren, self.gpus)
                self.jobs.append(job)
                self.pids.add(job.process.pid or 0)
                room -= 1
        if not self.jobs and waiting:
            need = self.admission.need_of(waiting[0])
            size = "all of a GPU" if need.gpu is None else f"{need.gpu / 1e9:.1f} GB of a GPU"
            if self._is_due("waiting", _WAITING_S):
                self.on_message(
                    Message(waiting[0].key, "waiting", text=f"waiting for {size}; {self.admission.words()}")
                )

    def _paced(self) -> int:
        """Return the number of concurrent runs for a GPU, from the speed of the runs in progress."""
        assert self.pace is not None
        running: dict[str, Pulse] = {}
        for job in self.jobs:
            if (task := self._run_of(job)) is None:
                continue
            claim = self.seen[task.plan.hash].claim
            step_s = self.admission.step_s_of(task)
            if claim.now.get("state") == "training" and step_s is not None:
                running[f"{claim.process.pid} {task.plan.hash}"] = Pulse(_number(claim.now.get("step")), step_s)
        if len(self.gpus) == 1:
            self.pace.note(running, time.monotonic())
        return self.pace.target

    def _run_of(self, job: _Job) -> Task | None:
        for task in self.crew.tasks:
            seen = self.seen.get(task.plan.hash)
            if seen and seen.claim.ended is None and seen.claim.process.pid == job.process.pid:
                return task
        return None

    def _replace(self, job: _Job) -> None:
        """Record how a worker ended. Start another worker in its place if work is left."""
        self.jobs.remove(job)
        code, kills = job.process.exitcode, count_kills()
        reason = f"its process ended with exit code {code}"
        if code == -signal.SIGKILL and kills > self.kills:
            reason = f"{HOST_KILLED}: {reason}"
        elif code == -signal.SIGKILL and time.monotonic() > job.leave_by:
            reason = f"{STUCK} for {_LEAVE_S:.0f} s after the GPU had failed in another run"
        self.kills = kills
        if job.has_failed and self.gpus:
            self._renew(self._gpu_of(job))
        for task in self._left():
            if self.leases.note_death(task.plan.hash, job.process.pid or 0, reason):
                job.took = True
                stopped, crowded = self.interrupt.signal is not None, reason.startswith((HOST_KILLED, STUCK))
                state: State = "interrupted" if stopped else "crowded" if crowded else "died"
                self._note(Message(task.key, state, text=reason))
        barren = 0 if job.took or job.was_told else job.barren + 1
        self.over |= code == 0
        self.barren[job.slot] = barren, time.monotonic() + (_AGAIN_S * 3.0 ** (barren - 1) if barren else 0.0)
        if barren < _MOST_STARTS:
            return
        self.closed.add(job.slot)
        if not self.jobs and self.interrupt.signal is None:
            self.closed |= set(range(self.crew.most))
            for task in self._left():
                self._note(
                    Message(task.key, "failed", text=f"{reason}, {barren} times before the worker could start a run")
                )

    def _renew(self, gpu: int) -> None:
        """Make the workers on a GPU leave their runs to new processes, because the GPU failed in another worker.

        Under the Multi-Process Service, later GPU calls of these workers may never return.
        """
        for job in self.jobs:
            if self._gpu_of(job) == gpu and job.leave_by == math.inf:
                job.leave_by = time.monotonic() + _LEAVE_S
                _signal(job.process, _STOP)

    # Claims

    def _read(self) -> None:
        """Read the claims of the remaining runs, and report changes in the claims."""
        others = self._is_due("settled", _SETTLED_S)
        out = self.leases.folder.parent
        if others and not has_room_in(out, SPARE_BYTES) and self._left() and self._is_due("room", _WAITING_S):
            words = f"{NO_ROOM} of {out}; runs wait until there is room for their checkpoints: remove files to resume"
            self.on_message(Message(self._left()[0].key, "waiting", text=words))  # no claim could be written
        for task in self._left():
            name, newest = task.plan.hash, self.leases.newest(task.plan.hash)
            if newest is None:
                continue
            seen = self.seen.get(name)
            self.seen[name] = _Seen(newest, seen.told if seen else ())
            mine = newest.process.is_here and newest.process.pid in self.pids
            for job in self.jobs:
                job.took |= mine and job.process.pid == newest.process.pid
            if (self.crew.round and ended_in(newest, self.crew.round)) or (
                mine and newest.ended is not None and newest.ended["state"] != "continued"
            ):
                self._tell(task, message_of(task, newest), newest)
            elif mine and (progress := progress_of(task, newest)) is not None:
                self._tell(task, progress, newest)
            elif others and not self.crew.round and not mine and is_settled(task, self.crew.protocol):
                self.settled.add(name)

    def _tell(self, task: Task, message: Message, claim: Claim) -> None:
        """Report a message unless it was already reported."""
        seen = self.seen[task.plan.hash]
        told = (claim.number, message)
        if seen.told != told:
            seen.told = told
            self._note(message)

    def _note(self, message: Message) -> None:
        if message.state == "failed" and self.interrupt.signal is not None:
            message = replace(message, state="interrupted")
        if message.state == "interrupted" and self.interrupt.signal is None:  # a signal to the worker alone
            message = replace(message, state="lost", text=f"stopped by a signal, {message.text}")
        self.last[message.key] = message
        self.on_message(message)

    def _left(self) -> list[Task]:
        """Return the tasks without a recorded end."""
        ended = {key for key, message in self.last.items() if message.state in ENDED}
        return [task for task in self.crew.tasks if task.key not in ended and task.plan.hash not in self.settled]

    # Steps alone on the GPU

    def _time_steps(self) -> None:
        """Time the steps of a shape that was not timed yet; its run gets the GPU to itself for a moment."""
        for job in self.jobs:
            task = self._run_of(job)
            if task is None or self.admission.has_step(task) or not self._can_be_timed(task):
                continue
            others = [one for one in self.jobs if one is not job and self._gpu_of(one) == self._gpu_of(job)]
            if self._has_strangers(self._gpu_of(job)):
                continue
            self._keep_quiet(job, others, task)
            if not self.admission.has_step(task):
                self.due["quiet"] = time.monotonic() + _QUIET_AGAIN_S
            return

    def _can_be_timed(self, task: Task) -> bool:
        claim = self.seen[task.plan.hash].claim
        step, began = _number(claim.now.get("step")), _number(claim.about.get("step"))
        ready = timed_from(task.plan) < step - began < task.plan.train.steps - began - _LEAST_LEFT
        return task.plan.run.ranks == 1 and claim.now.get("state") == "training" and ready

    def _gpu_of(self, job: _Job) -> int:
        return self.crew.gpus_of(job.slot, len(self.gpus))[0]

    def _has_strangers(self, gpu: int) -> bool:
        """Return whether programs other than these workers use memory of a GPU."""
        shares = self.admission.gpus[gpu]
        promises, level = shares.promises(), shares.pool.read()
        unknown = level.total - level.free - sum(one.used for one in promises)
        return any(one.process.pid not in self.pids for one in promises) or unknown > _STRANGERS_SHARE * level.total

    def _keep_quiet(self, job: _Job, others: Sequence[_Job], task: Task) -> None:
        """Resume the paused workers when the run is timed, or when timing takes too long."""
        try:
            for one in others:
                _signal(one.process, signal.SIGSTOP)
            _signal(job.process, _TIME)
            until_s = time.monotonic() + _QUIET_S
            while time.monotonic() < until_s and self.interrupt.signal is None and job.process.is_alive():
                time.sleep(_POLL_S / 4)
                self.admission.refresh()
                if self.admission.has_step(task):
                    break
        finally:
            _signal(job.process, _TIME)
            for one in others:
                _signal(one.process, signal.SIGCONT)


def _start(crew: Crew, slot: int, barren: int, gpus: Sequence[str]) -> _Job:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_work, args=(crew, slot, os.getpid(), list(gpus)), daemon=True)
    # The terminal's SIGINT goes to every process; a worker that is born ignoring it is stopped by the study alone.
    with ignored(signal.SIGINT), _without_main():
        process.start()
    return _Job(slot, process, barren)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Prevent processes that start inside the context from running this process's main program, as `spawn` would.

    If a script runs a study outside of `if __name__ == "__main__"`, each worker would run the study again.
    """
    name = "__main__"
    main, sys.modules[name] = sys.modules[name], ModuleType(name)
    try:
        yield
    finally:
        sys.modules[name] = main


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _signal(process: BaseProcess, number: int) -> None:
    """Send a signal to a worker, if its process still exists."""
    if process.pid is not None and process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _dismiss(jobs: Sequence[_Job]) -> None:
    """End the workers of a study that was ended by an error."""
    for job in jobs:
        _signal(job.process, _STOP)
    for job in jobs:
        job.process.join(_JOIN_S)
        job.process.kill()
        job.process.join()


def _work(crew: Crew, slot: int, parent: int, gpus: Sequence[str]) -> None:
    """Run tasks in a worker process until no task is left. The process ends when the study's process ends."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where the study was started by a thread that could not say so
    prepare_streams()
    torch.set_num_threads(crew.threads)
    share_cores(crew.most)
    if len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index] for index in crew.gpus_of(slot, len(gpus)))
    folder = lease_folder(crew.tasks)
    with watch_signals(signal.SIGTERM) as interrupt:
        admission = Admission.here(folder.parent, crew.protocol)
        worker = Worker(
            folder, crew.protocol, interrupt, lambda message: None, crew.round, crew.expiry_s, admission, _BEAT_S
        )

        def stop(number: int, frame: FrameType | None) -> None:
            interrupt.signal = number

        signal.signal(_STOP, stop)
        signal.signal(_TIME, lambda number, frame: worker.be_timed())
        with contextlib.suppress(MovedError):  # the study raises it
            worker.work(crew.tasks, crew.wait)
        if worker.has_lost_gpu:
            end_at_once(_FAULTY)
        if worker.is_spent or interrupt.signal is not None:
            sys.exit(_SPENT)
