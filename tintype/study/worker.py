"""The worker of a study: it takes the lease of the next run, trains it from its last checkpoint, scores it, goes on.

Any number of workers on any number of machines share a study's folder. Nobody hands out the runs: which are wanted is
a function of the study's files, and the leases in `leases/` say who works on which (`tintype.runtime.leases`).
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import result_file
from tintype.runtime.files import Json
from tintype.runtime.host import process_name
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import EXPIRY_S, Claim, Lease, Leases, LostLeaseError
from tintype.study.packing import forget_peak, read_peak
from tintype.study.runner import ENDED, FAILURES, Message, Task, _next_task, _note_failure, _run
from tintype.train import checkpoint
from tintype.train.folder import RunFolder

LEASES = "leases"
"""The folder in a study's folder that has the leases of its runs."""
_LOOK_S = 0.2
_MOST_LOOK_S = 5.0
"""A worker that waits for the runs of others looks at them again after these seconds, first and at most."""
_MOST_WORDS = 2_000


def lease_folder(tasks: Sequence[Task]) -> Path:
    """Return the folder with the leases of the runs of one study."""
    return tasks[0].folder.parents[1] / LEASES


def is_settled(task: Task, protocol: Protocol) -> bool:
    """Return whether a run has its scores, or a reason why it has none, by its files alone."""
    if any((task.folder / name).exists() for name in FAILURES.values()):
        return True
    unscored = task.along is not None and RunFolder(task.folder).kept.is_dir()
    return result_file(task.folder, protocol, task.plan.train.steps).exists() and not unscored


class Worker:
    """A process that runs tasks of a study, one at a time.

    A `round` names the workers of one command, which go through every run once: also through those that are done, to
    check them, and those that failed. Workers without one leave both alone.
    """

    def __init__(
        self,
        leases: Path,
        protocol: Protocol,
        interrupt: Interrupt,
        send: Callable[[Message], None],
        round: str = "",
        expiry_s: float = EXPIRY_S,
    ) -> None:
        self._leases = Leases(leases, process_name(), expiry_s)
        self._protocol, self._interrupt, self._send, self._round = protocol, interrupt, send, round
        self._mine: set[str] = set()
        """The runs that this worker has ended."""

    def work(self, tasks: Sequence[Task], wait: bool = True) -> None:
        """Run tasks until all have ended or a signal comes; without `wait`, until all that are left are others'."""
        left, look_s = list(tasks), _LOOK_S
        with _little_garbage():
            while self._interrupt.signal is None:
                left = [task for task in left if not self._has_ended(task)]
                if found := self._take_next(left):
                    self._work_on(*found)
                    look_s = _LOOK_S
                elif left and wait:
                    self._sleep(look_s)
                    look_s = min(1.5 * look_s, _MOST_LOOK_S)
                else:
                    return

    def _sleep(self, seconds: float) -> None:
        """Sleep, but not long after a signal."""
        until_s = time.monotonic() + seconds
        while self._interrupt.signal is None and time.monotonic() < until_s:
            time.sleep(_LOOK_S / 2)

    def _has_ended(self, task: Task) -> bool:
        return task.plan.hash in self._mine or self._is_over(task, self._leases.newest(task.plan.hash))

    def _is_over(self, task: Task, newest: Claim | None) -> bool:
        """Return whether nothing is left to do for a run whose newest claim is this one."""
        if newest is not None and newest.ended is None:
            return False
        if self._round:
            return newest is not None and ended_in(newest, self._round)
        return is_settled(task, self._protocol)

    def _take_next(self, left: Sequence[Task]) -> tuple[Task, Lease] | None:
        """Take the lease of the first run that is free, and whose parent run has ended."""
        waiting, held = list(left), list[Task]()
        while (task := _next_task(waiting, held)) is not None:
            waiting.remove(task)
            about: dict[str, Json] = {
                "round": self._round,
                "arm": task.arm,
                "seed": task.plan.seed,
                "step": max(checkpoint.steps(RunFolder(task.folder).checkpoints), default=0),
                "gpu": _gpu(),
            }
            if (lease := self._leases.take(task.plan.hash, about)) is not None:
                return task, lease
            held.append(task)
        return None

    def _work_on(self, task: Task, lease: Lease) -> None:
        if lease.before and self._is_over(task, lease.before[-1]):  # another worker ended it a moment ago
            lease.end(dict(lease.before[-1].ended or {"state": "done"}))
            return
        message = self._try(task, lease)
        fence = lease.fence
        try:
            if message.state != "done":
                fence.check()  # an error may come of what the next holder did
            _note_failure(task, message, fence)
        except LostLeaseError as error:
            message = Message(task.key, "lost", text=str(error))
        lease.end(_ended(message))
        if message.state in ENDED:
            self._mine.add(task.plan.hash)
        gc.collect()  # compiled blocks stand in cycles, which would keep the weights of past runs on the GPU
        self._send(message)

    def _try(self, task: Task, lease: Lease) -> Message:
        deaths = deaths_of(lease)
        if len(deaths) > task.retries:
            tried = "" if len(deaths) == 1 else f" {len(deaths)} times in a row"
            words = f"its process died{tried} without getting further; the last was {deaths[-1].words}"
            return Message(task.key, "failed", text=words)

        def report(message: Message) -> None:
            lease.report(
                {
                    "state": message.state,
                    "share": message.share,
                    "step": message.step,
                    "loss": message.loss,
                    "images_per_s": message.images_per_s,
                }
            )
            self._send(message)

        forget_peak()
        message = _run(task, self._protocol, self._interrupt, report, lease.fence)
        if lease.claim.about.get("step") == task.plan.train.steps:  # it was scored alone, which needs less
            return message
        peak_bytes, gpu_bytes = read_peak()
        return replace(message, peak_bytes=peak_bytes, gpu_bytes=gpu_bytes)


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Leave what is there now out of the search for garbage after each run, which would go through all imports."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def ended_in(claim: Claim, round: str) -> bool:
    """Return whether a worker of this round has ended the run, by its newest claim."""
    return claim.about.get("round") == round and (claim.ended or {}).get("state") in ENDED


def _ended(message: Message) -> dict[str, Json]:
    """Return what the claim of a run keeps of its last message."""
    return {
        "state": message.state,
        "text": message.text[-_MOST_WORDS:],
        "step": message.step,
        "training_s": message.training_s,
        "scoring_s": message.scoring_s,
        "peak_bytes": message.peak_bytes,
        "gpu_bytes": message.gpu_bytes,
    }


def message_of(task: Task, claim: Claim) -> Message:
    """Return the last message of a run that has ended, as its claim keeps it."""
    ended: dict[str, Any] = dict(claim.ended or {})
    return Message(task.key, share=1.0 if ended["state"] == "done" else 0.0, **ended)


def deaths_of(lease: Lease) -> list[Claim]:
    """Return the attempts of this round that died since the run last got further, oldest first."""
    found: list[Claim] = []
    for claim in reversed(lease.before):
        state = (claim.ended or {"state": "died"})["state"]
        same = all(claim.about.get(key) == lease.claim.about.get(key) for key in ("round", "step"))
        if state not in ("died", "continued") or not same:
            break
        found += [claim] if state == "died" else []
    return found[::-1]


def _gpu() -> str:
    """Return the GPU that this process sees; empty where it sees none."""
    if not torch.cuda.is_available():
        return ""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0")
