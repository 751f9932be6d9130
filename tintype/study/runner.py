"""Runs the tasks of a study in worker processes: train, then score. What is done is skipped, what broke off goes on.

Tasks are taken seed by seed, so that the arms of one seed run close together in time and can be compared fairly.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch

from tintype.errors import UserError
from tintype.metrics.evaluate import Protocol, evaluate, evaluation_source
from tintype.metrics.validation import validation_loss
from tintype.plan import Plan
from tintype.study.study import Study
from tintype.train.folder import write_text
from tintype.train.interrupt import Interrupt, watch_signals
from tintype.train.loop import Progress, train
from tintype.train.parts import Parts

_POLL_S = 0.2
_TELL_S = 0.25
_LEAVE_S = 5.0
_PROBE_IMAGES = 32


@dataclass(frozen=True)
class Task:
    arm: str
    plan: Plan
    folder: Path

    @property
    def key(self) -> tuple[str, int]:
        return self.arm, self.plan.seed


@dataclass(frozen=True)
class Message:
    """What a worker tells. `share` is how much of the task is done, 0 to 1."""

    key: tuple[str, int]
    state: Literal["training", "scoring", "done", "failed", "interrupted"]
    share: float = 0.0
    text: str = ""
    step: int = 0
    loss: float | None = None
    images_per_s: float | None = None


def tasks_of(study: Study, out: Path) -> list[Task]:
    return [
        Task(arm.name, arm.plans[index], out / "runs" / arm.plans[index].hash)
        for index in range(len(study.settings.seeds))
        for arm in study.arms
    ]


def run_tasks(
    tasks: Sequence[Task], protocol: Protocol, jobs: int, interrupt: Interrupt, on_message: Callable[[Message], None]
) -> dict[tuple[str, int], Message]:
    """Runs the tasks in `jobs` processes; returns the last word on each task that was begun."""
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    waiting = list(tasks)
    active: dict[int, tuple[BaseProcess, Any, Task]] = {}
    idle: list[tuple[int, BaseProcess, Any]] = []
    last: dict[tuple[str, int], Message] = {}
    threads = max(1, torch.get_num_threads() // jobs)
    told_to_stop = False

    def start_worker(slot: int) -> tuple[int, BaseProcess, Any]:
        inbox = context.Queue()
        process = context.Process(target=_work, args=(slot, threads, protocol, inbox, messages), daemon=True)
        process.start()
        return slot, process, inbox

    idle = [start_worker(slot) for slot in range(min(jobs, len(tasks)))]
    try:
        while active or (waiting and interrupt.signal is None):
            while waiting and idle and interrupt.signal is None:
                slot, process, inbox = idle.pop(0)
                task = waiting.pop(0)
                inbox.put(task)
                active[slot] = (process, inbox, task)
            if interrupt.signal is not None and not told_to_stop:
                told_to_stop = True
                for process, _, _ in active.values():
                    if process.pid is not None:
                        os.kill(process.pid, signal.SIGTERM)
            for slot, message in _receive(messages, active):
                last[message.key] = message
                on_message(message)
                if message.state in ("done", "failed", "interrupted"):
                    process, inbox, _ = active.pop(slot)
                    idle.append((slot, process, inbox) if process.is_alive() else start_worker(slot))
    finally:
        for _, process, inbox in [*idle, *((slot, p, box) for slot, (p, box, _) in active.items())]:
            inbox.put(None)
            process.join(_LEAVE_S)
            process.kill()
            process.join()
    return last


def _receive(messages: Any, active: dict[int, tuple[BaseProcess, Any, Task]]) -> list[tuple[int, Message]]:
    """The next message, or the news that a worker died."""
    try:
        received: tuple[int, Message] = messages.get(timeout=_POLL_S)
        return [received]
    except queue.Empty:
        pass
    dead = [(slot, process, task) for slot, (process, _, task) in active.items() if not process.is_alive()]
    return [
        (slot, Message(task.key, "failed", text=f"its process ended with exit code {process.exitcode}"))
        for slot, process, task in dead
    ]


def _work(slot: int, threads: int, protocol: Protocol, inbox: Any, messages: Any) -> None:
    """A worker process: one task after another, until it is killed or finds that the study was."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's goes to the study too, which passes on SIGTERM
    torch.set_num_threads(threads)
    _pin_gpu(slot)
    study = os.getppid()
    while os.getppid() == study:
        try:
            task: Task | None = inbox.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if task is None:
            return
        with watch_signals(signal.SIGTERM) as interrupt:
            last = _run(task, protocol, study, interrupt, lambda message: messages.put((slot, message)))
        messages.put((slot, last))
    messages.cancel_join_thread()  # nobody reads any more


def _pin_gpu(slot: int) -> None:
    """Gives each worker its own GPU where there are several."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    if len(names) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = names[slot % len(names)]


def _run(task: Task, protocol: Protocol, study: int, interrupt: Interrupt, send: Callable[[Message], None]) -> Message:
    """Trains and scores. `study` is the process to work for: without it the run is saved and left."""
    told_s = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal told_s
        if os.getppid() != study:
            interrupt.signal = signal.SIGTERM
        if time.monotonic() - told_s < _TELL_S:
            return
        told_s = time.monotonic()
        share = 0.8 * progress.step / progress.steps
        send(Message(task.key, "training", share, "", progress.step, progress.loss, progress.images_per_s))

    def on_step(done: int, total: int) -> None:
        if os.getppid() != study or interrupt.signal is not None:
            raise InterruptedError
        send(Message(task.key, "scoring", 0.8 + 0.2 * done / total, "", task.plan.train.steps))

    failure = task.folder / "failed.txt"
    try:
        failure.unlink(missing_ok=True)
        outcome = train(task.plan, task.folder, interrupt, on_progress, partial(_probe, protocol))
        if not outcome.finished:
            return Message(task.key, "interrupted", text=f"saved at step {outcome.step}", step=outcome.step)
        result = evaluate(task.folder, protocol, on_step)
    except InterruptedError:
        return Message(task.key, "interrupted", text="while scoring")
    except UserError as error:
        return _failed(task, str(error), failure)
    except Exception:  # the study's other runs go on; the whole trace is kept with this one
        return _failed(task, traceback.format_exc(), failure)
    return Message(task.key, "done", 1.0, _headline(result), task.plan.train.steps)


def _probe(protocol: Protocol, parts: Parts) -> dict[str, float]:
    """The validation loss while training, on fewer images than the final one."""
    count = min(_PROBE_IMAGES, protocol.validation_count)
    loss, _ = validation_loss(parts, evaluation_source(parts.plan.data, protocol), count, count, protocol.seed)
    return {"validation_loss": loss}


def _failed(task: Task, text: str, file: Path) -> Message:
    if task.folder.is_dir():
        write_text(file, text)
    return Message(task.key, "failed", text=text)


def _headline(result: dict[str, Any]) -> str:
    metrics = result["metrics"]
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in ("scene_accuracy", "fd_scenes") if name in metrics)
