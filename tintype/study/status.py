"""Read a study's progress from its files; the hours of a run include claims of workers that died."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import result_file
from tintype.runtime.files import finite
from tintype.runtime.leases import Claim, Leases
from tintype.study.crowded import times_crowded
from tintype.study.folder import passed_on, stored_study
from tintype.study.lab import next_runs
from tintype.study.looks import SeedPlan
from tintype.study.runner import Task, tasks_of
from tintype.study.study import Study, remake_study
from tintype.study.tune import tuning_of, tuning_tasks, untuned_words
from tintype.study.worker import LEASES, is_settled
from tintype.train.record import FAILURES

RunState = Literal["done", "diverged", "failed", "running", "silent", "died", "waiting", "perhaps"]
"""`silent`: the run's worker has not written since its lease expired. `perhaps`: a later look may need the run."""
LEFT: tuple[RunState, ...] = ("running", "silent", "died", "waiting")
_ENDS: dict[str, RunState] = {"done": "done", "diverged": "diverged", "failed": "failed"}
"""States of runs that have ended, in the terms of results.json."""


@dataclass(frozen=True)
class RunStatus:
    arm: str
    seed: int
    hash: str
    state: RunState
    step: int = 0
    steps: int = 0
    loss: float | None = None
    images_per_s: float | None = None
    worker: str = ""
    machine: str = ""
    gpu: str = ""
    left_s: float | None = None
    """Expected seconds until the end of the run; None if unknown."""
    spent_s: float = 0.0
    """Total seconds of all workers that worked on the run."""
    deaths: int = 0
    """How many workers died while they made the run, or lost its lease."""
    crowded: int = 0
    """How many times the run was returned to the queue because memory ran out beside other runs."""
    error: str = ""
    unread: str = ""
    """The run's first unreadable claim, and the reason; empty if all claims are readable."""


@dataclass(frozen=True)
class StudyStatus:
    """A study and all its runs."""

    name: str
    folder: str
    runs: list[RunStatus]
    hours: Literal["GPU-hours", "worker-hours"]
    spent_s: float
    to_come_s: float | None
    """Seconds of remaining work if runs are made one after another; None if no run was measured."""
    left_s: float | None
    """Expected seconds until the end with the present workers; None if there are no workers, or no run was measured."""

    def of(self, *states: RunState) -> list[RunStatus]:
        return [run for run in self.runs if run.state in states]

    @property
    def is_over(self) -> bool:
        """Return whether no worker would make any of the remaining runs."""
        return not self.of(*LEFT)

    @property
    def perhaps_words(self) -> str:
        """Explain what happens to the runs that the interim analysis in progress does not need."""
        return "that no look needs" if self.is_over else "for later looks"


def status_of(out: Path) -> StudyStatus:
    return StatusReader(out).read()


@dataclass(frozen=True)
class _Known:
    """The state of a run at its last reading, and the state of the run's files at that time."""

    files: tuple[int, ...]
    status: RunStatus


@dataclass(frozen=True)
class _Wanted:
    """A run that the study has or can get, with cached names: a plan computes its hash on each access."""

    task: Task
    hash: str
    result: Path


class StatusReader:
    """A reader that reads the progress of a study repeatedly. A run that has ended is read only once."""

    def __init__(self, out: Path) -> None:
        if not (out / "study.yaml").is_file():
            raise UserError(
                f"{out} is not a study: study.yaml is missing", "`tintype ablate STUDY --out DIR` makes one"
            )
        self.out = out
        self._leases = Leases(out / LEASES)
        self._read_at: tuple[int, ...] = ()
        self._known: dict[str, _Known] = {}
        self._states: dict[str, RunState] = {}
        self._passed_on: dict[tuple[str, int], str] = {}
        self._changing = False
        """Whether the next runs depend on the finished runs."""

    @property
    def study(self) -> Study:
        """Return the study as it was at the last reading."""
        return self._study

    @property
    def changed_s(self) -> float:
        """Return when any run last changed at the last reading, in wall-clock time; 0 if no run has begun."""
        return max((stamp for known in self._known.values() for stamp in known.files), default=0) / 1e9

    def read(self) -> StudyStatus:
        if (stamp := stamps([self.out / "study.yaml"])) != self._read_at:
            self._begin()
            self._read_at = stamp
        runs = self._runs()
        if self._changing and self._states and any(run.state != self._states.get(run.hash) for run in runs):
            self._begin()  # a run that ended may decide which runs come next
            runs = self._runs()
        self._states = {run.hash: run.state for run in runs}
        return _summary(self._study, self.out, runs)

    def _begin(self) -> None:
        self._study, self._states = stored_study(self.out), {}
        protocol = self._study.settings.evaluation
        named = [(task, task.plan.hash) for task in every_task(self._study, self.out)]
        self._wanted = [
            _Wanted(task, name, result_file(task.folder, protocol, task.plan.train.steps)) for task, name in named
        ]
        self._perhaps = _perhaps(self._study, self.out)
        with suppress(UserError):  # damaged: then the runs alone say how far the study is
            self._passed_on = passed_on(self.out)
        self._changing = isinstance(self._study.settings.seeds, SeedPlan) or bool(self._study.settings.tune)
        self._known = {}

    def _runs(self) -> list[RunStatus]:
        return [self._run(one) for one in self._wanted]

    def _run(self, wanted: _Wanted) -> RunStatus:
        folder = wanted.task.folder
        files = stamps([self.out / LEASES / wanted.hash, folder, wanted.result])
        known = self._known.get(wanted.hash)
        if known is not None and known.files == files and known.status.state not in ("running", "silent", "died"):
            return known.status
        claims = self._leases.history(wanted.hash)
        found = _run(wanted, claims, self._study.settings.evaluation, self.out, wanted.hash in self._perhaps)
        ended = _ENDS.get(self._passed_on.get(wanted.task.key, ""))
        if ended is not None and found.state in ("waiting", "perhaps"):
            found = replace(found, state=ended, step=found.steps if ended == "done" else 0)
        self._known[wanted.hash] = _Known(files, found)
        return found


def stamps(paths: Sequence[Path]) -> tuple[int, ...]:
    """Return when each file was last changed; 0 if a file is missing."""
    found = []
    for path in paths:
        try:
            found.append(os.stat(path).st_mtime_ns)  # noqa: PTH116 (a path's own stat is slower)
        except OSError:
            found.append(0)
    return tuple(found)


def _summary(study: Study, out: Path, runs: list[RunStatus]) -> StudyStatus:
    arms = dict.fromkeys(run.arm for run in runs)
    costs = {arm: [run.spent_s for run in runs if (run.arm, run.state) == (arm, "done")] for arm in arms}
    means = {arm: fmean(spent) for arm, spent in costs.items() if any(spent)}
    left = [_left_s(run, means) for run in runs if run.state in LEFT]
    known = [seconds for seconds in left if seconds is not None]
    to_come_s = sum(known) if len(known) == len(left) else None
    running = [run.left_s for run in runs if run.state == "running"]
    ends_s = [seconds for seconds in running if seconds is not None]
    return StudyStatus(
        name=study.name,
        folder=str(out),
        runs=runs,
        hours="GPU-hours" if any(run.gpu for run in runs) else "worker-hours",
        spent_s=sum(run.spent_s for run in runs),
        to_come_s=to_come_s,
        left_s=None if to_come_s is None or not running else max([to_come_s / len(running), *ends_s]),
    )


def every_task(study: Study, out: Path) -> list[Task]:
    """Return each run once, tuning runs first; comparison runs are included only after tuning has chosen values."""
    tuning = tuning_tasks(study, out)
    tasks = tuning if untuned_words(tuning_of(study, out)) else [*tuning, *tasks_of(study, out)]
    return list({task.plan.hash: task for task in reversed(tasks)}.values())[::-1]


def _perhaps(study: Study, out: Path) -> set[str]:
    """Return the runs of a study that the interim analysis in progress does not need."""
    if not isinstance(study.settings.seeds, SeedPlan):
        return set()
    wanted = {task.plan.hash for task in next_runs(study, out, None).tasks}
    return {task.plan.hash for task in tasks_of(study, out)} - wanted


def _left_s(run: RunStatus, means: Mapping[str, float]) -> float | None:
    """Return the seconds of a run's remaining work, from its own speed or from the time of the arm's other runs."""
    if run.left_s is not None:
        return run.left_s
    return means.get(run.arm, fmean(means.values()) if means else None)


def _run(wanted: _Wanted, claims: Sequence[Claim], protocol: Protocol, out: Path, perhaps: bool) -> RunStatus:
    task, newest = wanted.task, claims[-1] if claims else None
    held = newest is not None and newest.ended is None
    lost = [one for one in claims if not one.damage and (one.ended or {"state": "died"})["state"] == "died"]
    unread = next((f"{one.number:06d}.json cannot be read: {one.damage}" for one in claims if one.damage), "")
    state = _state(wanted, newest, protocol, out, perhaps)
    now, steps = dict(newest.now) if newest else {}, task.plan.train.steps
    step = finite(now.get("step")) if held else finite((newest.ended or {}).get("step")) if newest else None
    return RunStatus(
        arm=task.arm,
        seed=task.plan.seed,
        hash=wanted.hash,
        state=state,
        step=int(steps if state == "done" else step or 0),
        steps=steps,
        loss=finite(now.get("loss")) if held else None,
        images_per_s=finite(now.get("images_per_s")) if held else None,
        worker=newest.worker if newest else "",
        machine=newest.host if newest else "",
        gpu=str(newest.about.get("gpu", "")) if newest else "",
        left_s=_pace(newest, steps) if newest is not None and state == "running" else None,
        spent_s=sum(one.held_s for one in claims),
        deaths=len(lost) - (state in ("running", "silent") and newest in lost),
        crowded=times_crowded(claims),
        error=task.record.reason(remake_study(out)) if state in FAILURES else "",
        unread=f"{LEASES}/{wanted.hash}/{unread}" if unread else "",
    )


def _state(wanted: _Wanted, newest: Claim | None, protocol: Protocol, out: Path, perhaps: bool) -> RunState:
    task = wanted.task
    finished = newest is not None and newest.damage and is_settled(task, protocol)
    if newest is not None and newest.ended is None and not finished:
        file = Leases(out / LEASES).path(wanted.hash, newest.number)
        with suppress(OSError):
            age_s = time.time() - file.stat().st_mtime  # perhaps from two clocks, so it is only displayed
            return "died" if newest.is_dead else "silent" if age_s > newest.expiry_s else "running"
    if not is_settled(task, protocol):
        return "perhaps" if perhaps else "waiting"
    return task.record.failure or "done"


def _pace(claim: Claim, steps: int) -> float | None:
    """Return the seconds that a run still needs at the speed of its worker so far."""
    share, began = finite(claim.now.get("share")) or 0.0, 0.8 * (finite(claim.about.get("step")) or 0.0) / steps
    return claim.held_s * (1 - share) / (share - began) if share > began + 0.01 else None
