"""Run the tasks of a study in worker processes: train, then score. Finished runs are skipped, others are resumed.

Tasks are taken seed by seed, so that the arms of one seed run close together in time and can be compared fairly.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

from tintype.data.decoding.threads import share_cores
from tintype.data.scenes.shared import share_scenes, shared_folder
from tintype.errors import DivergedError, UserError
from tintype.evaluation.early import score_along
from tintype.evaluation.progress import Scoring
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import held_out
from tintype.evaluation.results import EvaluationResult
from tintype.evaluation.run import evaluate
from tintype.metrics import validation
from tintype.plan import Plan
from tintype.runtime.files import write_sealed
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.runtime.parent import end_with_parent
from tintype.runtime.streams import prepare_streams
from tintype.study.study import PRIMARY, Along, Study
from tintype.train.folder import DIVERGED
from tintype.train.loop import train
from tintype.train.session import Session
from tintype.train.steps import Progress

FAILURES: dict[Literal["diverged", "failed"], str] = {"diverged": DIVERGED, "failed": "failed.txt"}
"""The file in a run's folder that has the reason why it has no result, by the state of the run."""
_POLL_S = 0.2
_SEND_S = 0.25
_JOIN_S = 5.0
_STOP = signal.SIGUSR1
"""The signal that asks a worker to stop. A scheduler may send SIGTERM too, and a second one would end it at once."""
_PROBE_IMAGES = 32
SCENES = "shared-scenes"
"""The folder in a study's folder in which its workers share rendered scenes while it runs."""


@dataclass(frozen=True)
class Message:
    """Progress of one run, sent by its worker. `share` is how much of the task is done, 0 to 1."""

    key: tuple[str, int]
    state: Literal["waiting", "training", "scoring", "done", "diverged", "failed", "interrupted"]
    share: float = 0.0
    text: str = ""
    step: int = 0
    loss: float | None = None
    images_per_s: float | None = None
    training_s: float = 0.0
    scoring_s: float = 0.0
    """Seconds that the worker took to train and score a run that is done."""


@dataclass(frozen=True)
class Task:
    arm: str
    """The arm's label: its name, and its resolution where there are several."""
    plan: Plan
    folder: Path
    """Where the study trains it; it may not be there yet."""
    along: Along | None = None
    """When it is scored before its end; None where only the end is scored."""

    @property
    def key(self) -> tuple[str, int]:
        return self.arm, self.plan.seed

    @property
    def parent(self) -> str | None:
        """Return the hash of the plan whose run it starts from."""
        return self.plan.start.parent_plan if self.plan.start else None

    def trained_folder(self) -> Path:
        """Return the run's folder, or raise UserError where the study has not begun it."""
        if not (self.folder / "plan.yaml").is_file():
            raise UserError(
                f"arm '{self.arm}', seed {self.plan.seed} is not trained yet: {self.folder} does not exist; run the "
                "study with `tintype ablate`"
            )
        return self.folder


def tasks_of(study: Study, out: Path) -> list[Task]:
    return [
        Task(arm.label, arm.plans[index], out / "runs" / arm.plans[index].hash, study.along(arm.plans[index]))
        for index in range(len(study.arms[0].plans))
        for arm in study.arms
    ]


@dataclass
class _Worker:
    """A process that runs one task at a time, and this end of the pipe to it."""

    slot: int
    process: BaseProcess
    pipe: Connection
    task: Task | None = None

    def receive(self) -> Message | None:
        """Return its next message, or its last one if the process has ended."""
        assert self.task is not None
        try:
            if self.pipe.poll():
                message: Message = self.pipe.recv()
                return message
        except (EOFError, OSError):
            self.process.join()
        if self.process.is_alive():
            return None
        if self.process.exitcode in (-signal.SIGTERM, -_STOP):  # while it was starting
            return Message(self.task.key, "interrupted", text="before the first step")
        return Message(self.task.key, "failed", text=f"its process ended with exit code {self.process.exitcode}")


def run_tasks(
    tasks: Sequence[Task], protocol: Protocol, jobs: int, interrupt: Interrupt, on_message: Callable[[Message], None]
) -> dict[tuple[str, int], Message]:
    """Run the tasks in `jobs` processes; return the last message of each task that was begun."""
    threads = max(1, torch.get_num_threads() // jobs)  # of the host of a GPU; on a CPU, runs set their own number
    jobs = min(jobs, len(tasks))
    scenes = tasks[0].folder.parents[1] / SCENES if jobs > 1 else None
    with shared_folder(scenes):
        return _run_in_workers(
            tasks, jobs, partial(_start_worker, jobs, threads, protocol, scenes), interrupt, on_message
        )


def _run_in_workers(
    tasks: Sequence[Task],
    jobs: int,
    start_worker: Callable[[int], _Worker],
    interrupt: Interrupt,
    on_message: Callable[[Message], None],
) -> dict[tuple[str, int], Message]:
    waiting, last = list(tasks), dict[tuple[str, int], Message]()
    workers = [start_worker(slot) for slot in range(jobs)]
    stopping = False
    try:
        while (waiting and interrupt.signal is None) or any(worker.task for worker in workers):
            for worker in workers:
                begun = [one.task for one in workers if one.task]
                if worker.task is None and interrupt.signal is None and (task := _next_task(waiting, begun)):
                    waiting.remove(task)
                    worker.task = task
                    worker.pipe.send(task)
            busy = [worker for worker in workers if worker.task]
            if interrupt.signal is not None and not stopping:
                stopping = True
                for worker in busy:
                    _stop(worker.process)
            wait([worker.pipe for worker in busy], _POLL_S)
            for worker in busy:
                message = worker.receive()
                if message is None or worker.task is None:
                    continue
                if message.state == "failed" and interrupt.signal is not None:
                    message = replace(message, state="interrupted")
                last[message.key] = message
                on_message(message)
                if message.state in ("done", "diverged", "failed", "interrupted"):
                    _note_failure(worker.task, message)
                    worker.task = None
                    if interrupt.signal is not None:
                        continue
                    if message.state == "interrupted":  # a signal to the worker alone: it takes no other task
                        worker.process.join()
                    if not worker.process.is_alive():
                        workers[worker.slot] = start_worker(worker.slot)
    finally:
        _dismiss(workers)
    return last


def _next_task(waiting: Sequence[Task], begun: Sequence[Task]) -> Task | None:
    """Return the first task whose parent run has ended. One whose parent failed reports that when it begins."""
    unfinished = {task.plan.hash for task in (*waiting, *begun)}
    return next((task for task in waiting if task.parent not in unfinished), None)


def _start_worker(jobs: int, threads: int, protocol: Protocol, scenes: Path | None, slot: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    arguments = (slot, jobs, threads, protocol, scenes, os.getpid(), there)
    process = context.Process(target=_work, args=arguments, daemon=True)
    # The terminal's SIGINT goes to every process; a worker that is born ignoring it is stopped by the study alone.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    there.close()
    return _Worker(slot, process, here)


def _stop(process: BaseProcess) -> None:
    """Ask a worker to save and stop."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, _STOP)


def _dismiss(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.pipe.close()
    for worker in workers:
        worker.process.join(_JOIN_S)
        worker.process.kill()
        worker.process.join()


def _work(
    slot: int, jobs: int, threads: int, protocol: Protocol, scenes: Path | None, parent: int, pipe: Connection
) -> None:
    """Run tasks in a worker process until the study closes its end of the pipe. It ends with the study."""
    end_with_parent(parent)
    prepare_streams()
    torch.set_num_threads(threads)
    share_cores(jobs)
    share_scenes(scenes)
    _pin_gpu(slot)

    def send(message: Message) -> None:
        with contextlib.suppress(OSError):  # the study is gone, and this process in a moment
            pipe.send(message)

    with watch_signals(signal.SIGTERM) as interrupt:

        def stop(number: int, frame: FrameType | None) -> None:
            interrupt.signal = number

        signal.signal(_STOP, stop)
        while interrupt.signal is None:
            try:
                task: Task = pipe.recv()
            except (EOFError, OSError):
                return
            last = _run(task, protocol, interrupt, send)
            gc.collect()  # compiled blocks stand in cycles, which would keep the weights of past runs on the GPU
            send(last)


def _pin_gpu(slot: int) -> None:
    """Give each worker its own GPU where there are several."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    if len(names) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]


class _StoppedError(Exception):
    """Raised when scoring was asked to stop."""


def _run(task: Task, protocol: Protocol, interrupt: Interrupt, send: Callable[[Message], None]) -> Message:
    """Train and score."""
    sent_s = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal sent_s
        if time.monotonic() - sent_s < _SEND_S:
            return
        sent_s = time.monotonic()
        share = 0.8 * progress.step / progress.steps
        send(Message(task.key, "training", share, "", progress.step, progress.loss, progress.images_per_s))

    def on_wait(text: str) -> None:
        send(Message(task.key, "waiting", text=text))

    def on_scoring(now: Scoring) -> None:
        report_scoring(task.plan.train.steps, 0.8 + (0.1 if task.along else 0.2) * now.share, "")

    def on_early(step: int, now: Scoring) -> None:
        share = 0.0 if step == task.plan.train.steps else step / task.plan.train.steps
        report_scoring(step, 0.9 + 0.1 * share, "scoring along training")

    def report_scoring(step: int, share: float, text: str) -> None:
        if interrupt.signal is not None:
            raise _StoppedError
        send(Message(task.key, "scoring", share, text, step))

    began_s = time.perf_counter()
    try:
        keep_at = task.along.steps if task.along else ()
        outcome = train(task.plan, task.folder, interrupt, on_progress, partial(_probe, protocol), on_wait, keep_at)
        if not outcome.finished:
            return Message(task.key, "interrupted", text=f"saved at step {outcome.step}", step=outcome.step)
        trained_s = time.perf_counter()
        result = evaluate(task.folder, protocol, on_scoring, whole_step=outcome.step)
        if task.along:
            score_along(task.folder, task.along.steps, task.along.protocol, outcome.step, on_early)
    except _StoppedError:
        return Message(task.key, "interrupted", text="while scoring")
    except DivergedError as error:
        return Message(task.key, "diverged", text=str(error))
    except UserError as error:
        return Message(task.key, "failed", text=str(error))
    except Exception:  # the study's other runs continue; the whole trace is stored with this one
        return Message(task.key, "failed", text=traceback.format_exc())
    seconds = {"training_s": trained_s - began_s, "scoring_s": time.perf_counter() - trained_s}
    return Message(task.key, "done", 1.0, _headline(result), task.plan.train.steps, **seconds)


def _probe(protocol: Protocol, parts: Session) -> dict[str, float]:
    """Measure the validation loss while training, on fewer images than the final one."""
    count = min(_PROBE_IMAGES, protocol.validation_count)
    error_TN = validation.velocity_errors(
        parts, held_out(parts.plan.data, protocol), count, count, protocol.seed, protocol.prompts
    )
    return {validation.METRIC.name: float(error_TN.mean())}


def _note_failure(task: Task, message: Message) -> None:
    """Write why the run has no result, for the report; remove what an earlier attempt wrote."""
    if message.state == "interrupted":
        return
    for state, name in FAILURES.items():
        if message.state == state and task.folder.is_dir():
            write_sealed(task.folder / name, message.text)
        else:
            (task.folder / name).unlink(missing_ok=True)


def _headline(result: EvaluationResult) -> str:
    metrics = result.metrics
    shown = [name for name in PRIMARY if name in metrics] or list(metrics)[:2]
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in shown)
