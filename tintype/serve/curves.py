"""Compute training curves of many runs for a page, as mean and range over the seeds of each arm, in bins of steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tintype.errors import UserError
from tintype.runtime.files import finite
from tintype.serve.flops import Flops
from tintype.serve.tail import EventsLog, MetricsLog, Series
from tintype.study.results import Run
from tintype.train.record import RunRecord

BINS = 120
FIRST = ("flow", "validation_loss", "grad_norm", "loss", "images_per_s", "lr")
Band: TypeAlias = list[tuple[float | None, ...]]
"""Tuples (step, seconds, mean, lowest, highest, operations) for the bins with values.

Stored curves have no seconds. Operations are None if they were not counted.
"""
_Bins: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class RunPlace:
    """A run that a page shows, with the run's folder, which may not exist yet."""

    arm: str
    seed: int
    hash: str
    folder: Path
    steps: int


class Curves:
    """Training curves of all runs of a page, which are read from the runs' logs."""

    def __init__(self, runs: Sequence[RunPlace]) -> None:
        self.runs = list(runs)
        self.metrics = {run.hash: MetricsLog(RunRecord(run.folder).metrics_file) for run in runs}
        self.events = {run.hash: EventsLog(RunRecord(run.folder).events_file) for run in runs}
        self.steps: float = max((run.steps for run in runs), default=1)
        self.versions = {run.arm: 0 for run in runs}
        """Number of changes of each arm's curves."""
        self.events_version = 0
        self.problems: dict[str, str] = {}
        """The error for each run with unreadable logs, by the run's hash."""
        self._next = 0
        self._lock = threading.Lock()
        """Lock between the thread that reads the files and the threads that call `band`."""
        self._binned: dict[tuple[str, str], tuple[int, _Bins]] = {}
        self.flops = Flops()

    def read(self, budget_s: float = 0.25) -> bool:
        """Read new lines of the logs, run after run, for at most `budget_s` seconds; return whether all were read.

        The next call continues with the next run.
        """
        end = time.monotonic() + budget_s
        for _ in range(len(self.runs)):
            run = self.runs[self._next % len(self.runs)]
            self._next += 1
            with self._lock:
                self._read(run)
            if time.monotonic() > end:
                return False
        return True

    def _read(self, run: RunPlace) -> None:
        try:
            self.versions[run.arm] += self.metrics[run.hash].read()
            self.events_version += self.events[run.hash].read()
        except UserError as error:
            self.problems[run.hash] = str(error)
        else:
            self.problems.pop(run.hash, None)

    def names(self) -> list[str]:
        """Return the names of all curves, those in `FIRST` first.

        If the objective is the only loss, the curve `loss` is left out, since it would equal the curve `flow`.
        """
        with self._lock:
            logs = list(self.metrics.values())
            found = dict.fromkeys(name for log in logs for name in log.series)
            if "flow" in found and not any(log.has_terms for log in logs):
                found.pop("loss", None)
        return [*(name for name in FIRST if name in found), *sorted(set(found) - set(FIRST))]

    def band(self, arm: str, name: str) -> Band:
        with self._lock:
            rows = [bins for run in self.runs if run.arm == arm and (bins := self._bins(run.hash, name)) is not None]
        until = self.flops.costs.get(arm)
        return _band(rows, self.steps, until.flops_until if until else None) if rows else []

    def counted(self, arm: str) -> None:
        """After an arm's operations were counted, mark its curves as changed, so that pages get the new curves."""
        with self._lock:
            self.versions[arm] += 1

    def _bins(self, run: str, name: str) -> _Bins | None:
        """Return a curve's values and seconds in each bin, NaN for an empty bin, cached until the curve grows."""
        log = self.metrics[run]
        if name not in log.series:
            return None
        known = self._binned.get((run, name))
        if known is None or known[0] != log.version:
            known = log.version, _bins(log.series[name], self.steps)
            self._binned[run, name] = known
        return known[1]

    def event_steps(self) -> list[tuple[float, str, str]]:
        """Return (step, kind, arm) of the events to mark on the x axis, at most a hundred."""
        with self._lock:
            found = [
                (step, str(event["event"]), run.arm)
                for run in self.runs
                for event in self.events[run.hash].events
                if (step := finite(event.get("step"))) is not None and step > 0
            ]
        return sorted(dict.fromkeys(found))[:100]


class StoredCurves(Curves):
    """Curves and events of a study whose runs were deleted, which are read from the study's results."""

    def __init__(self, runs: Mapping[RunPlace, Run]) -> None:
        super().__init__(list(runs))
        for run, stored in runs.items():
            self.events[run.hash].events += stored.events
            for name, curve in stored.curves.items():
                for step, value in zip(curve.step, curve.value, strict=False):
                    if finite(step) is not None and finite(value) is not None:
                        series = self.metrics[run.hash].series.setdefault(name, Series())
                        series.add(step, float("nan"), value)
        every = [series for log in self.metrics.values() for series in log.series.values()]
        self.steps = max((series.step[-1] for series in every), default=1.0)


def _bins(series: Series, steps: float) -> _Bins:
    step, seconds, value, weight = (np.frombuffer(column) for column in series.columns)
    place = np.clip((step - 1) * BINS / max(steps, 1), 0, BINS - 1).astype(int)
    whole = np.bincount(place, weight, BINS)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.bincount(place, weight * value, BINS) / whole, np.bincount(place, weight * seconds, BINS) / whole


def _band(rows: Iterable[_Bins], steps: float, flops_until: Callable[[float], float] | None) -> Band:
    values, seconds = (np.stack(columns) for columns in zip(*rows, strict=True))
    there = ~np.isnan(values).all(0)
    values, seconds = values[:, there], seconds[:, there]
    middle = (np.flatnonzero(there) + 1) * (steps / BINS)
    count = np.maximum(1, (~np.isnan(seconds)).sum(0))
    with np.errstate(invalid="ignore", over="ignore"):
        means = np.nansum(seconds, 0) / count, np.nanmean(values, 0)
    columns = np.stack([middle, *means, np.nanmin(values, 0), np.nanmax(values, 0)])
    columns = columns[:, np.isfinite(columns).all(0)]  # the sum of large values may overflow
    points = [[float(f"{number:.6g}") for number in point] for point in columns.T]
    timed = not np.isnan(seconds).all()  # stored curves have no seconds
    return [
        (step, after_s if timed else None, *values_of, flops_until(step) if flops_until else None)
        for step, after_s, *values_of in points
    ]
