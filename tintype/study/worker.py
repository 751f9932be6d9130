"""The worker of a study leases the next run, trains it from its last checkpoint, scores it, and repeats.

Any number of workers share a study's folder without a central queue; leases record the worker of each run.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import result_file
from tintype.plan import Plan
from tintype.runtime.files import Json, finite
from tintype.runtime.garbage import without_pauses
from tintype.runtime.host import process_name
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import BEAT_S, EXPIRY_S, Claim, Lease, Leases, LostLeaseError
from tintype.runtime.memory import count_failures
from tintype.runtime.room import has_room as has_room_in
from tintype.runtime.room import is_full, size_of
from tintype.study.admission import MOST_CROWDED, Admission, Grant, crowds_in, end_of, kills_in, wait_s
from tintype.study.ranks import RankedRun, start_ranks
from tintype.study.runner import (
    ENDED,
    GPU_LOST,
    NO_ROOM,
    STATES,
    Message,
    Task,
    next_task,
    note_failure,
    run_task,
)
from tintype.study.shapes import StepTimer

LEASES = "leases"
"""The subfolder of a study's folder that has the leases of its runs."""
_LOOK_S = 0.2
_MOST_LOOK_S = 5.0
"""Shortest and longest time in seconds between checks, while a worker waits for runs of other workers."""
_ROOM_LOOK_S = 5.0
_MOST_ROOM_S = 600.0
"""Seconds between checks for free space while the disk is full, and the longest wait if there seems to be space."""
SPARE_BYTES = 1 << 20
"""Disk space for logs and claims, in addition to the space for a checkpoint."""
_MOST_WORDS = 2_000
_MOST_UNBORN = 3
"""If the ranks end this many times before they take their run, they are not restarted."""
_ALIKE = 0.03
"""If two measured step times differ by at most this fraction, the run was alone on its GPU."""
_TIMED_FROM, _TIMED_STEPS = 20, 100
"""Steps before timing (the first steps compile and capture CUDA graphs), and steps that timing may need."""


def lease_folder(tasks: Sequence[Task]) -> Path:
    """Return the folder with the leases of the runs of one study."""
    return tasks[0].folder.parents[1] / LEASES


def anchor_of(leases: Path) -> Path:
    """Return the file that shows whether the study's folder is still at its path."""
    return leases.parent / "study.yaml"


def is_settled(task: Task, protocol: Protocol) -> bool:
    """Return whether a run has its scores or a reason for missing scores, according to its files."""
    if task.record.failure is not None:
        return True
    return result_file(task.folder, protocol, task.plan.train.steps).exists() and not task.has_unscored


class Worker:
    """A process that runs tasks of a study, one at a time.

    Workers of a `round` (one command) check finished runs and repeat failed runs once. Other workers skip both.
    """

    def __init__(
        self,
        leases: Path,
        protocol: Protocol,
        interrupt: Interrupt,
        send: Callable[[Message], None],
        round: str = "",
        expiry_s: float = EXPIRY_S,
        admission: Admission | None = None,
        beat_s: float = BEAT_S,
    ) -> None:
        self._leases = Leases(leases, process_name(), expiry_s, anchor=anchor_of(leases), beat_s=beat_s)
        self._admission = admission
        self._timer: StepTimer | None = None
        self._quiet = False
        """Whether all other runs on this GPU are paused, so that steps can be timed."""
        self._turned_away = False
        """Whether a remaining run needs more memory than is free."""
        self.has_lost_gpu = False
        """Whether the GPU has failed, so that this process can neither train nor free its GPU memory."""
        self._protocol, self._interrupt, self._send, self._round = protocol, interrupt, send, round
        self._mine: set[str] = set()
        """The runs that this worker has ended."""
        self._unborn: Counter[str] = Counter()
        """How often the ranks of a run ended before they took the run's lease."""
        self._room_s = _ROOM_LOOK_S / 2
        """Half of the minimum seconds to wait the next time the disk is full."""
        self._told_s: dict[tuple[str, int], float] = {}
        """Time at which this worker first read in a claim that its run is done on another machine."""

    def work(self, tasks: Sequence[Task], wait: bool = True) -> None:
        """Run tasks until all have ended or a signal comes; without `wait`, until others have all remaining tasks.

        Without GPU memory, or after a GPU failure, later runs need a new process, so the worker stops.
        """
        left, look_s = list(tasks), _LOOK_S
        with without_pauses():
            while self._interrupt.signal is None and not self.is_spent:
                self._leases.check_place()
                left = [task for task in left if not self._has_ended(task)]
                self._turned_away = False
                try:
                    found = self._take_next(left)
                except OSError as error:
                    if not is_full(error):
                        raise
                    self._wait_for_room(left[0])
                    continue
                if found:
                    task, lease, grant = found
                    try:
                        self._train_in_ranks(task) if lease is None else self._work_on(task, lease, grant)
                    finally:
                        if grant is not None:
                            grant.release()
                    look_s = _LOOK_S
                elif left and (wait or self._turned_away):
                    self._sleep(look_s)
                    look_s = min(1.5 * look_s, _MOST_LOOK_S)
                else:
                    return

    @property
    def is_spent(self) -> bool:
        """Return whether this process must leave the remaining runs to a new process."""
        return self.has_lost_gpu or count_failures() > 0

    def be_timed(self) -> None:
        """Start or end a pause of other runs, in which this run's steps are timed; called by a signal handler."""
        self._quiet = not self._quiet
        if self._quiet and self._timer is not None:
            self._timer.request()

    def _sleep(self, seconds: float) -> None:
        """Sleep, but stop sleeping soon after a signal."""
        until_s = time.monotonic() + seconds
        while self._interrupt.signal is None and time.monotonic() < until_s:
            time.sleep(_LOOK_S / 2)

    def _has_ended(self, task: Task) -> bool:
        return task.plan.hash in self._mine or self._is_over(task, self._leases.newest(task.plan.hash))

    def _is_over(self, task: Task, newest: Claim | None) -> bool:
        """Return whether nothing is left to do for a run that has this newest claim."""
        if newest is not None and newest.ended is None and not newest.damage:
            return False
        if self._round:
            return newest is not None and ended_in(newest, self._round)
        return is_settled(task, self._protocol)

    def _is_late(self, task: Task, newest: Claim | None) -> bool:
        """Return whether another machine has scored a run whose scores may not be visible here yet.

        Scores that are missing after half the expiry are lost or of another protocol: the run is scored again.
        """
        if newest is None or newest.process.is_here or (newest.ended or {}).get("state") != "done":
            return False
        clock, expiry_s = self._leases.clock, self._leases.expiry_s
        told_s = self._told_s.setdefault((task.plan.hash, newest.number), clock())
        return not is_settled(task, self._protocol) and clock() - told_s < expiry_s / 2

    def _take_next(self, left: Sequence[Task]) -> tuple[Task, Lease | None, Grant | None] | None:
        """Take the lease of the first run that is free, fits into memory, and has no unfinished parent run.

        For a run with several ranks, the first rank takes the lease. A run that needs more GPUs than are visible is
        left to other workers. A crowded run waits.
        """
        waiting, held = list(left), list[Task]()
        if self._admission is not None:
            self._admission.refresh()
        while (task := next_task(waiting, held)) is not None:
            waiting.remove(task)
            held.append(task)
            name, newest = task.plan.hash, self._leases.newest(task.plan.hash)
            finished = self._needs_no_claim(task, newest)
            if self._is_late(task, newest) or not has_room(task) or not self._leases.is_free(name, finished):
                continue
            about = about_run(task, self._round)
            claims = self._leases.history(name) if newest is not None else []
            if self._leases.silent_s(name) < wait_s(len(crowds_in(claims, about["step"]))):
                self._turned_away = True
                continue
            wanted = None if is_settled(task, self._protocol) else self._admission  # what is done needs no memory
            grant = wanted.admit(task, claims, about["step"]) if wanted is not None else None
            if wanted is not None and grant is None:
                self._turned_away = True
                continue
            if self._wants_ranks(task):
                return task, None, grant
            if (lease := self._leases.take(name, about, finished)) is not None:
                return task, lease, grant
            if grant is not None:
                grant.release()
        return None

    def _needs_no_claim(self, task: Task, newest: Claim | None) -> bool:
        """Return whether an unreadable claim can be ignored because the run has ended according to its files."""
        return newest is not None and bool(newest.damage) and is_settled(task, self._protocol)

    def _work_on(self, task: Task, lease: Lease, grant: Grant | None) -> None:
        while lease.before and self._is_late(task, lease.before[-1]) and self._interrupt.signal is None:
            time.sleep(_LOOK_S)
        if lease.before and self._is_over(task, lease.before[-1]):  # another worker ended it a moment ago
            lease.end(dict(lease.before[-1].ended or {"state": "done"}))
            return
        message = self._try(task, lease, grant)
        while True:
            try:
                message = end_lease(task, lease, message)
                break
            except OSError as error:  # the reason of a failure cannot be written
                if not is_full(error) or not self._wait_for_room(task):
                    raise
        if message.state in ENDED:
            self._mine.add(task.plan.hash)
        self.has_lost_gpu |= message.text.startswith(GPU_LOST)
        if not self.has_lost_gpu:
            gc.collect()  # compiled blocks stand in cycles, which would keep the weights of past runs on the GPU
        if torch.cuda.is_initialized() and not self.is_spent:
            torch.cuda.empty_cache()  # neighbours may have it
        self._send(message)

    def _wait_for_room(self, task: Task) -> bool:
        """Wait until the study's disk has space for a checkpoint; return False if a signal comes first.

        If there seems to be space immediately, as with some quotas, each wait is twice as long as the previous wait.
        """
        out = self._leases.folder.parent
        saved = [size_of(path) for path in out.glob("runs/*/checkpoints/step-*")]
        needed = max(saved, default=0) + SPARE_BYTES
        words = f"{NO_ROOM} of {out}; waiting until {needed / 1e6:,.0f} MB are free, remove files to resume"
        self._send(Message(task.key, "waiting", text=words))
        began_s, self._room_s = time.monotonic(), min(2 * self._room_s, _MOST_ROOM_S)
        while self._interrupt.signal is None:
            self._leases.check_place()
            self._sleep(_ROOM_LOOK_S)
            if time.monotonic() - began_s >= self._room_s and has_room_in(out, needed):
                return True
        return False

    def _wants_ranks(self, task: Task) -> bool:
        """Return whether the next step of a run is training with several ranks; other steps need one process."""
        if task.plan.run.ranks == 1 or self._unborn[task.plan.hash] >= _MOST_UNBORN:
            return False
        about = about_run(task, self._round)
        deaths = deaths_in(self._leases.history(task.plan.hash), about)
        return about["step"] != task.plan.train.steps and len(deaths) <= task.retries

    def _train_in_ranks(self, task: Task) -> None:
        """Train a run with several ranks, and report progress; the first rank takes the lease and gives it back."""
        leases, name = self._leases, task.plan.hash
        before = leases.newest(name)
        free = leases.is_free(name, self._needs_no_claim(task, before))  # unless another has it since
        over = before.number if before is not None and free else 0
        run = RankedRun.of(task, self._protocol, leases.folder, self._round, leases.expiry_s, over)
        ranks, told = start_ranks(run), False
        while ranks.poll() is None:
            if self._interrupt.signal is not None and not told:
                told = True
                ranks.terminate()
            time.sleep(_LOOK_S)
            now = leases.newest(name)
            if now is not None and now != before and (progress := progress_of(task, now)):
                self._send(progress)
        newest = leases.newest(name)
        if newest is None or (before is not None and newest.number == before.number):
            self._unborn[name] += ranks.returncode != 0 and not told
        elif (newest.ended or {}).get("state") == "full" or not has_room_in(leases.folder.parent, 0):
            if self._wait_for_room(task):
                leases.note_death(name, newest.process.pid, NO_ROOM)
        elif newest.ended is None:
            self._send(Message(task.key, "died", text=f"the ranks of the run ended with exit code {ranks.returncode}"))
        elif newest.ended["state"] in (*ENDED, "died"):
            self._mine |= {name} if newest.ended["state"] in ENDED else set()
            self._send(message_of(task, newest))

    def _try(self, task: Task, lease: Lease, grant: Grant | None) -> Message:
        if self._unborn[task.plan.hash] >= _MOST_UNBORN:
            return Message(task.key, "failed", text="the ranks of the run did not start; see their log in launch/")
        deaths = deaths_in(lease.before, lease.claim.about)
        if len(deaths) > task.retries:
            tried = "" if len(deaths) == 1 else f" {len(deaths)} times in a row"
            words = f"its process died{tried} without getting further; the last was {deaths[-1].words}"
            return Message(task.key, "failed", text=words)

        report = report_to(lease)

        def tell(message: Message) -> None:
            report(message)
            self._send(message)

        if grant is not None:
            grant.begin()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        timed = self._timed(task, grant)
        while (message := run_task(task, self._protocol, self._interrupt, tell, lease.fence, timed)).state == ("full"):
            if not self._wait_for_room(task):
                return Message(task.key, "interrupted", text=message.text)
            try:
                lease.check()
            except LostLeaseError as error:
                return Message(task.key, "lost", text=str(error))
        self._timer = None
        message = grant.judge(message) if grant is not None else message
        if lease.claim.about.get("step") == task.plan.train.steps:  # it was scored alone, which needs less
            return message
        if torch.cuda.is_initialized() and not message.text.startswith(GPU_LOST):
            total = torch.cuda.get_device_properties(0).total_memory
            message = replace(message, peak_bytes=torch.cuda.max_memory_reserved(), gpu_bytes=total)
        if self._admission is not None and grant is not None:
            self._admission.note(task, message, grant)
        return message

    def _timed(self, task: Task, grant: Grant | None) -> Callable[[int], None]:
        """Return a function to call after each step, which times steps while no other run uses the GPU.

        A step time is accepted if two consecutive measurements agree, and no other run has started.
        """
        admission = self._admission
        if admission is None or grant is None or not grant.gpus or task.plan.run.ranks > 1:
            return lambda step: None
        timer = self._timer = StepTimer.of(task.plan, task.along.steps if task.along else ())
        first, before = -1, 0.0

        def on_step(step: int) -> None:
            nonlocal first, before
            first = step if first < 0 else first
            if step == first + timed_from(task.plan) and not admission.has_step(task) and grant.is_alone:
                timer.request()
            if (step_s := timer.tick(step)) is None or not (self._quiet or grant.is_alone):
                return
            if abs(step_s - before) <= _ALIKE * step_s:
                admission.note_step(task, step_s, timer.steps)
            else:  # a neighbour's last steps were still under way
                timer.request()
            before = step_s

        return on_step


def timed_from(plan: Plan) -> int:
    """Return the number of steps of a run in this process before timing begins, if possible after an epoch.

    In the first epoch, the host also draws the images, writes the captions, and caches both.
    """
    count = getattr(plan.data, plan.data.count_key or "", None)
    epoch = math.ceil(count / plan.train.batch) if isinstance(count, int) else 0
    return max(_TIMED_FROM, epoch) if epoch + _TIMED_STEPS < plan.train.steps else _TIMED_FROM


def has_room(task: Task) -> bool:
    """Return whether this process sees enough GPUs for a run's ranks; on a CPU, all ranks share the CPU."""
    return task.plan.run.ranks <= (torch.cuda.device_count() or task.plan.run.ranks)


def about_run(task: Task, round: str) -> dict[str, Json]:
    """Return the initial details of a claim on a run."""
    return {
        "round": round,
        "arm": task.arm,
        "seed": task.plan.seed,
        "step": task.record.saved_step,
        "gpu": _gpu(),
    }


def report_to(lease: Lease) -> Callable[[Message], None]:
    """Return a function that writes the progress of a run into its lease."""

    def report(message: Message) -> None:
        loss, speed = finite(message.loss), finite(message.images_per_s)  # a diverging run has neither
        share, text = min(1.0, message.share), message.text[-_MOST_WORDS:]
        lease.report(
            {
                "state": message.state,
                "share": share,
                "step": message.step,
                "loss": loss,
                "images_per_s": speed,
                "text": text,
            }
        )

    return report


def progress_of(task: Task, claim: Claim) -> Message | None:
    """Return the progress in a run's claim; None if the run has ended or the claim has none."""
    if claim.ended is not None or claim.now.get("state") not in STATES:
        return None
    now: dict[str, Any] = {key: value for key, value in claim.now.items() if key not in ("beat", "died")}
    return Message(task.key, **now)


def end_lease(task: Task, lease: Lease, message: Message) -> Message:
    """Record how a run ended and give its lease back; return the message, or another message if the lease was lost."""
    fence = lease.fence
    try:
        if message.state != "done":
            fence.check()  # an error may come of what the next holder did
        note_failure(task, message, fence)
    except LostLeaseError as error:
        message = Message(task.key, "lost", text=str(error))
    lease.end(_ended(message))
    return message


def ended_in(claim: Claim, round: str) -> bool:
    """Return whether the run was ended by a worker of this round, according to the run's newest claim."""
    return claim.about.get("round") == round and (claim.ended or {}).get("state") in ENDED


def _ended(message: Message) -> dict[str, Json]:
    """Return the fields of the last message that are stored in a run's claim."""
    return {
        "state": message.state,
        "text": message.text[-_MOST_WORDS:],
        "step": message.step,
        "training_s": message.training_s,
        "scoring_s": message.scoring_s,
        "peak_bytes": message.peak_bytes,
        "gpu_bytes": message.gpu_bytes,
        "needs_bytes": message.needs_bytes,
    }


def message_of(task: Task, claim: Claim) -> Message:
    """Return the last message of an ended run, from its claim."""
    ended: dict[str, Any] = dict(claim.ended or {})
    return Message(task.key, share=1.0 if ended["state"] == "done" else 0.0, **ended)


def deaths_in(claims: Sequence[Claim], about: Mapping[str, Json]) -> list[Claim]:
    """Return the attempts of this round that died since the run's last progress, oldest first.

    Crowded attempts, and hangs after a GPU failure, are left out; repeated kills for lack of host memory are not.
    """
    found: list[Claim] = []
    for claim in reversed(claims):
        state = end_of(claim)
        same = all(claim.about.get(key) == about.get(key) for key in ("round", "step"))
        if state not in ("died", "continued", "full", "crowded") or not same:
            break
        found += [claim] if state in ("died", "crowded") else []
    many = kills_in(found)[MOST_CROWDED:]
    return [claim for claim in found[::-1] if end_of(claim) == "died" or claim in many]


def _gpu() -> str:
    """Return the GPU that this process sees; empty if there is none."""
    if not torch.cuda.is_available():
        return ""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0")
