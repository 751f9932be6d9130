"""Train and score runs, without repeating finished work; seed by seed, so that arms of a seed run close in time."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch

from tintype.errors import DivergedError, UserError
from tintype.evaluation.early import score_along
from tintype.evaluation.progress import Scoring
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import held_out, scored_data
from tintype.evaluation.results import EvaluationResult
from tintype.evaluation.run import evaluate
from tintype.metrics import validation
from tintype.plan import Plan
from tintype.runtime.dist import is_connection_error
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import write_sealed
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import LostLeaseError
from tintype.runtime.memory import checked_memory, lost_gpu, ran_out
from tintype.runtime.room import is_full
from tintype.study.settings import PRIMARY, RETRIES
from tintype.study.study import Along, Study
from tintype.train.loop import train
from tintype.train.record import FAILURES, RunRecord, is_run
from tintype.train.session import Session
from tintype.train.steps import Progress

OUT_OF_MEMORY, GPU_LOST = "out of memory", "the GPU failed"
"""Prefix of the error of a run that ran out of GPU memory, or whose GPU failed."""
HOST_KILLED = "the host ran out of memory"
"""Prefix of the error of a process that the kernel killed for lack of memory."""
STUCK = "it stood still"
"""Prefix of the error of a process that hung after the GPU had failed in another process."""
NO_ROOM = "no space is left on the disk"
"""Prefix of the text of a run that stopped because the disk is full."""
_SEND_S = 0.25
_PROBE_IMAGES = 32
State = Literal[
    "waiting", "training", "scoring", "done", "diverged", "failed", "interrupted", "lost", "died", "full", "crowded"
]
STATES: tuple[State, ...] = get_args(State)
ENDED: tuple[State, ...] = ("done", "diverged", "failed")
"""States of a run that is tried again only if the user asks."""


@dataclass(frozen=True)
class Message:
    """Progress of one run, sent by its worker. `share` is the finished fraction of the task, from 0 to 1."""

    key: tuple[str, int]
    state: State
    """`lost`: another worker took over. `died`: memory ran out; `crowded`: beside others. `full`: disk full."""
    share: float = 0.0
    text: str = ""
    step: int = 0
    loss: float | None = None
    images_per_s: float | None = None
    training_s: float = 0.0
    scoring_s: float = 0.0
    """Seconds for training and scoring a finished run."""
    peak_bytes: int = 0
    gpu_bytes: int = 0
    """Peak of the run's GPU memory, and the GPU's total memory; 0 if the run did not train on a GPU."""
    needs_bytes: int = 0
    """Minimum of GPU memory in bytes that a crowded run needs; 0 if its share was large enough but not free."""


@dataclass(frozen=True)
class Task:
    arm: str
    """The arm's label, which is its name, and its resolution if there are several."""
    plan: Plan
    folder: Path
    """Folder in which the study trains the run; the folder may not exist yet."""
    along: Along | None = None
    """Steps at which the run is scored during training; None if only its final weights are scored."""
    retries: int = RETRIES
    """How many times the run is tried again after its process died."""
    headline: tuple[str, ...] = PRIMARY
    """Metrics to report when the run is finished."""

    @property
    def key(self) -> tuple[str, int]:
        return self.arm, self.plan.seed

    @property
    def parent(self) -> str | None:
        """Return the hash of the plan of the run from which this run starts."""
        return self.plan.start.parent_plan if self.plan.start else None

    @property
    def record(self) -> RunRecord:
        """Return a record of the present state of the run's files."""
        return RunRecord(self.folder, self.plan)

    @property
    def has_unscored(self) -> bool:
        """Return whether weights of chosen steps are not scored yet."""
        return self.along is not None and self.record.kept.is_dir()

    def trained_folder(self) -> Path:
        """Return the run's folder; raise `UserError` if the study has not begun it."""
        if not is_run(self.folder):
            raise UserError(
                f"arm '{self.arm}', seed {self.plan.seed} is not trained yet: {self.folder} does not exist",
                "run the study with `tintype ablate`",
            )
        return self.folder


def task_of(study: Study, label: str, plan: Plan, out: Path, along: Along | None = None) -> Task:
    """Return the task for a run of a study, with the run's folder in the study's folder."""
    return Task(label, plan, out / "runs" / plan.hash, along, study.settings.retries, study.settings.primary)


def tasks_of(study: Study, out: Path) -> list[Task]:
    """Return the tasks for the runs of all arms, seed by seed."""
    return [
        task_of(study, arm.label, arm.plans[index], out, study.along(arm.plans[index]))
        for index in range(len(study.arms[0].plans))
        for arm in study.arms
    ]


def next_task(waiting: Sequence[Task], begun: Sequence[Task]) -> Task | None:
    """Return the first task whose parent run has ended; the task reports a failed parent when it begins."""
    unfinished = {task.plan.hash for task in (*waiting, *begun)}
    return next((task for task in waiting if task.parent not in unfinished), None)


_kept: list[Exception] = []
"""Errors of a failed GPU, never freed: to free tensors in their frames, torch would call the GPU and could hang."""


class _StoppedError(Exception):
    """Raised when scoring must stop."""


def run_task(
    task: Task,
    protocol: Protocol,
    interrupt: Interrupt,
    send: Callable[[Message], None],
    fence: Fence = OPEN,
    on_step: Callable[[int], None] = lambda step: None,
    score: bool = True,
) -> Message:
    """Train and score a run under the `fence` of its lease; without `score`, the run is only trained."""
    sent_s = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal sent_s
        on_step(progress.step)
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
        probe = partial(_probe, protocol)
        label = f"{task.arm}, seed {task.plan.seed}"
        outcome = train(task.plan, task.folder, interrupt, on_progress, probe, on_wait, keep_at, fence, label)
        if not outcome.finished:
            return Message(task.key, "interrupted", text=f"saved at step {outcome.step}", step=outcome.step)
        if not score:
            return Message(task.key, "interrupted", text="trained, but not yet scored", step=outcome.step)
        trained_s = time.perf_counter()
        if torch.cuda.is_initialized():
            gc.collect()  # reference cycles of compiled blocks would keep training's memory while images are sampled
            torch.cuda.empty_cache()
        result = evaluate(task.folder, protocol, on_scoring, whole_step=outcome.step, fence=fence)
        if task.along:
            score_along(task.folder, task.along.steps, task.along.protocol, outcome.step, on_early, fence)
    except _StoppedError:
        return Message(task.key, "interrupted", text="while scoring")
    except LostLeaseError as error:
        return Message(task.key, "lost", text=str(error))
    except DivergedError as error:
        return Message(task.key, "diverged", text=str(error))
    except Exception as error:  # the study's other runs continue; the whole trace is stored with this one
        if ran_out(error):
            return Message(task.key, "died", text=f"{OUT_OF_MEMORY}: {' '.join(str(error).split())}")
        if lost_gpu(error):
            _kept.append(error)
            return Message(task.key, "died", text=f"{GPU_LOST}: {' '.join(str(error).split())}")
        if is_full(error):
            return Message(task.key, "full", text=f"{NO_ROOM} of {task.folder}")
        if isinstance(error, UserError):
            return Message(task.key, "failed", text=str(error))
        if is_connection_error(error):
            return Message(task.key, "died", text=f"a rank was lost: {' '.join(str(error).split())}")
        return Message(task.key, "failed", text=traceback.format_exc())
    return Message(
        task.key,
        "done",
        1.0,
        _headline(result, task.headline),
        task.plan.train.steps,
        training_s=trained_s - began_s,
        scoring_s=time.perf_counter() - trained_s,
    )


def _probe(protocol: Protocol, parts: Session, step: int) -> dict[str, float]:
    """Measure the validation loss on few images; on the smaller images of a stage, the loss has a separate name."""
    count, scored = min(_PROBE_IMAGES, protocol.validation_count), scored_data(parts.plan, protocol, step)
    source, size_px = held_out(scored, protocol), scored.data.size_px
    with checked_memory():
        error_TN = validation.velocity_errors(parts, source, count, count, protocol.seed, protocol.prompts)
    name = validation.METRIC.name if size_px == parts.plan.data.size_px else validation.name_at(size_px)
    return {name: float(error_TN.mean())}


def note_failure(task: Task, message: Message, fence: Fence = OPEN) -> None:
    """Record the reason why the run has no result, for the report; remove the files of earlier attempts."""
    if message.state not in ENDED:
        return
    for state, name in FAILURES.items():
        if message.state == state and task.folder.is_dir():
            write_sealed(task.folder / name, message.text, fence, run=task.plan.hash)
        elif (task.folder / name).exists():
            fence.check()
            (task.folder / name).unlink(missing_ok=True)


def _headline(result: EvaluationResult, wanted: Sequence[str]) -> str:
    metrics = result.metrics
    shown = [name for name in wanted if name in metrics] or list(metrics)[:2]
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in shown)
