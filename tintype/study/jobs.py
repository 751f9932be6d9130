"""Run the tasks of a study in worker processes of this machine, `--jobs` of them, and start those again that die.

The workers take the runs by their leases, as any `tintype work` does; the pipe of each tells how far it is and no more.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, ModuleType

import torch

from tintype.data.decoding.threads import share_cores
from tintype.data.scenes.shared import share_scenes, shared_folder
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.runtime.leases import Leases, MovedError
from tintype.runtime.mps import side_by_side
from tintype.runtime.parent import end_with_parent
from tintype.runtime.signals import ignored
from tintype.runtime.streams import prepare_streams
from tintype.study.packing import AsFits, Jobs, gpu_names, most_of
from tintype.study.runner import ENDED, Message, Task
from tintype.study.worker import Worker, anchor_of, ended_in, has_room, lease_folder, message_of

_POLL_S = 0.2
_JOIN_S = 5.0
_STOP = signal.SIGUSR1
"""The signal that asks a worker to stop. A scheduler may send SIGTERM too, and a second one would end it at once."""
_MOST_STARTS = 3
"""A worker that dies so often in a row before it takes a run is not started again."""
SCENES = "shared-scenes"
"""The folder in a study's folder in which its workers share rendered scenes while it runs."""


@dataclass(frozen=True)
class Crew:
    """The work and the settings that all workers of one command share."""

    tasks: tuple[Task, ...]
    protocol: Protocol
    jobs: int
    threads: int
    scenes: Path | None
    round: str
    fits: AsFits | None = None
    """Where set, the workers grow from one for each GPU to `jobs`, as memory allows."""


@dataclass
class _Job:
    """A worker process, and this end of its pipe."""

    slot: int
    process: BaseProcess
    pipe: Connection
    barren: int = 0
    """How often the process of this slot died before it took a run."""
    said: bool = False
    open: bool = True

    def receive(self) -> list[Message]:
        """Return what it has said since the last call."""
        found: list[Message] = []
        while self.open:
            try:
                if not self.pipe.poll():
                    break
                found.append(self.pipe.recv())
            except (EOFError, OSError):
                self.open = False
        self.said |= bool(found)
        return found

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended and all that it said was received."""
        if not self.open:
            self.process.join(_JOIN_S)
        return not self.process.is_alive() and (not self.open or not self.pipe.poll())

    @property
    def was_told(self) -> bool:
        """Return whether the process ended because a signal said so."""
        return self.process.exitcode in (0, -signal.SIGTERM, -_STOP)


def run_tasks(
    tasks: Sequence[Task], protocol: Protocol, jobs: Jobs, interrupt: Interrupt, on_message: Callable[[Message], None]
) -> dict[tuple[str, int], Message]:
    """Run the tasks in `jobs` processes; return the last message of each task that was begun."""
    most, widest = most_of(jobs), max(task.plan.run.ranks for task in tasks)
    if not all(map(has_room, tasks)):
        raise UserError(f"run.ranks is {widest}, and this machine has {torch.cuda.device_count()} GPUs for them")
    threads = max(1, torch.get_num_threads() // most)  # of the host of a GPU; on a CPU, runs set their own number
    most = min(most, len(tasks))
    scenes = tasks[0].folder.parents[1] / SCENES if most > 1 else None
    fits = jobs if isinstance(jobs, AsFits) else None
    crew = Crew(tuple(tasks), protocol, most, threads, scenes, uuid.uuid4().hex[:12], fits)
    with shared_folder(scenes), side_by_side(most):
        return _Shift(crew, interrupt, on_message).run()


class _Shift:
    """The work of a crew, from its start to the end of the last run."""

    def __init__(self, crew: Crew, interrupt: Interrupt, on_message: Callable[[Message], None]) -> None:
        self.crew, self.interrupt, self.on_message = crew, interrupt, on_message
        folder = lease_folder(crew.tasks)
        self.leases = Leases(folder, anchor=anchor_of(folder))
        self.last: dict[tuple[str, int], Message] = {}
        self.jobs: list[_Job] = []
        self.room = 0
        """Slots that may have a worker now."""
        self.measured = False
        """Whether a run has ended or died since the slots were last filled: its memory may change the room."""

    def run(self) -> dict[tuple[str, int], Message]:
        stopping = False
        try:
            self._fill()
            while self.jobs:
                self.leases.check_place()
                if not stopping and (self.interrupt.signal is not None or not self._left()):
                    stopping = True
                    for job in self.jobs:
                        _stop(job.process)
                wait([job.pipe if job.open else job.process.sentinel for job in self.jobs], _POLL_S)
                for job in list(self.jobs):
                    for message in job.receive():
                        self._note(message)
                    if job.has_ended:
                        self._replace(job)
                if self.measured and not stopping:
                    self._fill()
        finally:
            _dismiss(self.jobs)
        self.leases.check_place()
        stopped = [key for key, message in self.last.items() if message.state not in ENDED]
        return self.last | {key: replace(self.last[key], state="interrupted") for key in stopped}

    def _fill(self) -> None:
        """Start workers in the slots that have room now and none before; stop those in slots that have none left."""
        crew, self.measured = self.crew, False
        before, room = self.room, crew.jobs if crew.fits is None else min(crew.jobs, crew.fits.now(self.leases))
        self.room = max(before, min(room, len(self._left()))) if room > before else room
        for job in self.jobs:
            if self.room <= job.slot < before:
                _stop(job.process)
        taken = {job.slot for job in self.jobs}
        self.jobs += [_start(crew, slot) for slot in range(before, self.room) if slot not in taken]

    def _note(self, message: Message) -> None:
        if message.state == "failed" and self.interrupt.signal is not None:
            message = replace(message, state="interrupted")
        if message.state == "interrupted" and self.interrupt.signal is None:  # a signal to the worker alone
            message = replace(message, state="lost", text=f"told to stop, {message.text}")
        self.last[message.key] = message
        self.measured |= message.state in (*ENDED, "died")
        self.on_message(message)

    def _replace(self, job: _Job) -> None:
        """Note how a worker has ended, and start another in its place if there is work left."""
        self.jobs.remove(job)
        job.pipe.close()
        reason = f"its process ended with exit code {job.process.exitcode}"
        for task in self._left():
            if self.leases.note_death(task.plan.hash, job.process.pid or 0, reason):
                stopped = self.interrupt.signal is not None
                self._note(Message(task.key, "interrupted" if stopped else "died", text=reason))
        self._note_untold()
        barren = 0 if job.said or job.was_told else job.barren + 1
        if self.interrupt.signal is not None or not self._left() or job.slot >= self.room:
            return
        if barren < _MOST_STARTS:
            self.jobs.append(replace(_start(self.crew, job.slot), barren=barren))
        elif not self.jobs:
            for task in self._left():
                self._note(Message(task.key, "failed", text=f"{reason}, {barren} times before it took a run"))

    def _left(self) -> list[Task]:
        """Return the tasks of which no end was noted."""
        ended = {key for key, message in self.last.items() if message.state in ENDED}
        return [task for task in self.crew.tasks if task.key not in ended]

    def _note_untold(self) -> None:
        """Note the ends of runs that no worker told: one died just then, or two arms have the same plan."""
        for task in self._left():
            newest = self.leases.newest(task.plan.hash)
            if newest is not None and ended_in(newest, self.crew.round):
                self._note(message_of(task, newest))


def _start(crew: Crew, slot: int) -> _Job:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(crew, slot, os.getpid(), there), daemon=True)
    # The terminal's SIGINT goes to every process; a worker that is born ignoring it is stopped by the study alone.
    with ignored(signal.SIGINT), _without_main():
        process.start()
    there.close()
    return _Job(slot, process, here)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep a process that is started within from running the program of this one again, as `spawn` would.

    A worker needs nothing of it, and a script that runs a study outside of `if __name__ == "__main__"` would run it in
    every worker.
    """
    name = "__main__"
    main, sys.modules[name] = sys.modules[name], ModuleType(name)
    try:
        yield
    finally:
        sys.modules[name] = main


def _stop(process: BaseProcess) -> None:
    """Ask a worker to save and stop."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, _STOP)


def _dismiss(jobs: Sequence[_Job]) -> None:
    """End the workers of a study that ended by an error."""
    for job in jobs:
        _stop(job.process)
    for job in jobs:
        job.process.join(_JOIN_S)
        job.process.kill()
        job.process.join()
        job.pipe.close()


def _work(crew: Crew, slot: int, parent: int, pipe: Connection) -> None:
    """Run tasks in a worker process until none is left. It ends with the study."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where the study was started by a thread that could not say so
    prepare_streams()
    torch.set_num_threads(crew.threads)
    share_cores(crew.jobs)
    share_scenes(crew.scenes)
    _pin_gpu(slot, max(task.plan.run.ranks for task in crew.tasks))

    def send(message: Message) -> None:
        with contextlib.suppress(OSError):  # the study is gone, and this process in a moment
            pipe.send(message)

    with watch_signals(signal.SIGTERM) as interrupt:

        def stop(number: int, frame: FrameType | None) -> None:
            interrupt.signal = number

        signal.signal(_STOP, stop)
        with contextlib.suppress(MovedError):  # the study raises it
            Worker(lease_folder(crew.tasks), crew.protocol, interrupt, send, crew.round).work(crew.tasks)


def _pin_gpu(slot: int, width: int = 1) -> None:
    """Give each worker its own GPUs where there are several, as many as its largest run needs."""
    names = gpu_names()
    if len(names) > 1:
        first = slot * width % (len(names) - len(names) % width)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + width])
