"""Cost of a study, given by its runs per interim analysis and their seconds, which come from measured runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist, fmean

import numpy as np

from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime.machine import choose_device, cores, environment
from tintype.study.adaptive import HOPELESS_P, wanted_arms
from tintype.study.bank import read_bank, serve
from tintype.study.compare import every_comparison, follow_runs
from tintype.study.looks import SeedPlan
from tintype.study.results import Run, StudyResults, read_results_file
from tintype.study.runner import Task, tasks_of
from tintype.study.runs import metric_infos, standing_runs
from tintype.study.study import Study
from tintype.study.tune import trials_left, tuned, tuning_of
from tintype.wording import option

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


def parse_duration(text: str) -> float:
    """Parse a duration such as `45m`, `1h30m` or `90s` into seconds."""
    found = _DURATION.findall(text)
    if not found or _DURATION.sub("", text).strip():
        raise UserError(f"'{text}' is not a duration", "give numbers with the unit s, m, h or d, such as 45m or 1h30m")
    return sum(float(count) * _UNITS_S[unit] for count, unit in found)


@dataclass(frozen=True)
class RunSeconds:
    """Mean seconds for training and scoring a finished run, by the arm's label."""

    by_arm: Mapping[str, float]

    @property
    def known(self) -> bool:
        return bool(self.by_arm)

    def of(self, arm: str) -> float:
        """Return the mean seconds of an arm's runs; without such a measurement, use the mean of measured arms."""
        return self.by_arm.get(arm, fmean(self.by_arm.values()))

    def total(self, tasks: Iterable[Task]) -> float:
        return sum(self.of(task.arm) for task in tasks)


@dataclass(frozen=True)
class Measured:
    """Seconds of a study's runs, and the source of these seconds."""

    seconds: RunSeconds
    words: str
    at_least: bool = False
    """Whether the seconds are a lower bound."""


Measure = Callable[[], Measured | str]
"""Function that measures runs on this machine, or returns the reason why it cannot."""


def run_seconds(runs: Mapping[str, Sequence[Run]]) -> RunSeconds:
    taken = {arm: [run.train_s + run.evaluate_s for run in some if run.state == "done"] for arm, some in runs.items()}
    return RunSeconds({arm: fmean(seconds) for arm, seconds in taken.items() if seconds})


@dataclass
class Budget:
    """Limit on the wall-clock time of one command, checked before each interim analysis. It never stops a run."""

    seconds: float | None
    jobs: int
    began_s: float = field(default_factory=time.monotonic)
    running_s: float = 0.0
    """Wall-clock seconds that this command has spent on making runs."""
    measured_s: float = 0.0
    """Sum of the seconds for training and scoring over all runs, without the start of workers."""

    @contextmanager
    def running(self) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self.running_s += time.monotonic() - began_s

    def note(self, measured_s: float) -> None:
        self.measured_s += measured_s

    def expected_s(self, tasks: Sequence[Task], seconds: RunSeconds) -> float:
        """Return the expected seconds of the tasks, at the speed of this command so far."""
        pace = self.running_s * self.jobs / self.measured_s if self.measured_s else 1.0
        return max(1.0, pace) * seconds.total(tasks) / self.jobs

    def refusal(self, tasks: Sequence[Task], seconds: RunSeconds) -> str:
        """Return why the tasks exceed the rest of the budget; empty if they fit, or if no run was measured."""
        if self.seconds is None or not seconds.known:
            return ""
        left_s = max(0.0, self.seconds - (time.monotonic() - self.began_s))
        expected_s = self.expected_s(tasks, seconds)
        if expected_s <= left_s:
            return ""
        words = f"{len(tasks)} runs would take about {minutes(expected_s)}"
        return f"{words}, and {minutes(left_s)} of the budget of {minutes(self.seconds)} were left"


def minutes(seconds: float) -> str:
    """Format a duration in minutes, a short duration in seconds, and a long duration in hours or days."""
    for unit, name in ((86_400, "days"), (3_600, "h")):
        if seconds >= 3 * unit:
            return f"{seconds / unit:,.0f} {name}"
    return (
        f"{seconds / 60:.0f} min"
        if seconds >= 600
        else f"{seconds / 60:.1f} min"
        if seconds >= 60
        else f"{seconds:.0f} s"
    )


def seeds_of_looks(study: Study) -> list[int]:
    """Return the number of seeds at each interim analysis; a study with fixed seeds has only one entry."""
    seeds = study.settings.seeds
    return list(seeds.counts) if isinstance(seeds, SeedPlan) else [len(seeds)]


@dataclass(frozen=True)
class Cost:
    """The number of runs of a study, and the seconds for these runs."""

    least: int
    """Number of runs, with tuning, if every arm stops after the first analysis; at least the finished runs."""
    expected: int
    """Expected number of runs if no arm has an effect. Most arms without an effect stop early."""
    most: int
    """Number of runs if every arm that has not stopped gets all its seeds."""
    done: int
    seconds: float | None
    """Mean seconds of a run over all arms; None if no run was measured."""
    left_s: float
    """Seconds for the remaining runs if every arm gets the maximum number of seeds; 0 if no run was measured."""
    measured: str = ""
    """Source of the seconds, or the reason why they are unknown."""
    at_least: bool = False
    jobs: int = 1
    """Number of runs that this machine makes at the same time."""

    def seconds_of(self, runs: int) -> float:
        """Return the duration of this many runs, with `jobs` runs at the same time."""
        return -(-runs // self.jobs) * (self.seconds or 0.0)


def cost_of(study: Study, out: Path, like: Path | None = None, jobs: int = 1, measure: Measure = lambda: "") -> Cost:
    """Return the cost of a study, timed by its own runs, a past study with the same baseline (`like`), or `measure`."""
    tuning = tuning_of(study, out)
    tried = [run.state for sweep in tuning.sweeps for point in sweep.points for run in point.runs] if tuning else []
    tried += ["missing"] * (trials_left(tuning) * len(tuning.seeds) if tuning else 0)
    untried = sum(state in ("missing", "failed") for state in tried)
    study = tuned(study, tuning)
    runs, tasks = standing_runs(study, out), tasks_of(study, out)
    known = Measured(run_seconds(runs), f"measured on the runs in {out}")
    if not known.seconds.known and like is not None:
        known = Measured(_seconds_like(study, like), f"measured in {like}")
    if not known.seconds.known:
        found = measure()
        known = Measured(known.seconds, found) if isinstance(found, str) else found
    seconds = known.seconds
    states = {(arm, run.seed): run.state for arm, some in runs.items() for run in some}
    open_arms = _open_arms(study, out, runs)
    left = [task for task in tasks if states[task.key] != "done" and task.arm in open_arms]
    done = sum(states[task.key] == "done" for task in tasks)
    arms, others = len(study.arms), sum(arm.role != "arm" for arm in study.arms)
    counts = seeds_of_looks(study)
    of_arm, of_baseline = expected_seeds(counts, arms - others, len(study.settings.primary))
    each_s = seconds.total(tasks) / len(tasks) if seconds.known else None
    at_a_time = _at_a_time(study.arms[0].plans[0], jobs)
    most = done + len(left)
    least = max(arms * counts[0], done) if isinstance(study.settings.seeds, SeedPlan) else most
    expected = round((arms - others) * of_arm + others * of_baseline)
    return Cost(
        least=len(tried) + least,
        expected=len(tried) + min(max(expected, least), most),
        most=len(tried) + most,
        done=len(tried) - untried + done,
        seconds=each_s,
        left_s=(seconds.total(left) + untried * each_s) / at_a_time if each_s is not None else 0.0,
        measured=known.words,
        at_least=known.at_least,
        jobs=at_a_time,
    )


def is_for_cpu(plan: Plan) -> bool:
    return plan.run.device in ("auto", "cpu") and choose_device(plan.run.device).type == "cpu"


def _at_a_time(plan: Plan, jobs: int) -> int:
    """Return how many runs are made at the same time, which is `jobs`, but on a CPU at most one run per core."""
    if not is_for_cpu(plan):
        return jobs
    return max(1, min(jobs, cores() // plan.run.threads))


def _open_arms(study: Study, out: Path, runs: Mapping[str, list[Run]]) -> set[str]:
    """Return the labels of the arms that can still get runs, since no interim analysis has stopped these arms."""
    if not isinstance(study.settings.seeds, SeedPlan):
        return set(runs)
    stored = serve(read_bank(out), study, runs, metric_infos(study)).runs
    standing = follow_runs(study, runs, every_comparison(study, out), tried=(), stored=stored)
    if standing.next is None:
        return set()
    return {arm.label for arm in wanted_arms(study, standing.next, standing.stopped).arms}


def seconds_here(results: StudyResults) -> Measured | None:
    """Return the run times of a past study if its device is like this machine's; otherwise None."""
    device = str(environment(choose_device("auto"))["device"])
    runs = {arm.label: [run for run in arm.runs if run.environment.get("device") == device] for arm in results.arms}
    seconds = run_seconds(runs)
    return (
        Measured(seconds, f"measured on the study's own runs, on this kind of device ({device})")
        if seconds.known
        else None
    )


def _seconds_like(study: Study, like: Path) -> RunSeconds:
    """Return the run times of a past study; raise if the baselines differ."""
    results = read_results_file(like / "results.json" if like.is_dir() else like)
    if not has_baseline(results, study.arms[0].plans[0]):
        raise UserError(
            f"{option('like', like)}: the baseline of that study differs from this study's, so its run times do "
            f"not apply"
        )
    return run_seconds({arm.label: arm.runs for arm in results.arms})


def has_baseline(results: StudyResults, plan: Plan) -> bool:
    """Return whether this plan, with any seeds, is the plan of a baseline in a past study."""
    known = {run.seed: run.hash for arm in results.arms if arm.role == "baseline" for run in arm.runs}
    return any(plan.model_copy(update={"seed": seed}).hash == found for seed, found in known.items())


_SIMULATED = 2_000
_HALF = NormalDist().inv_cdf(1 - HOPELESS_P / 2)
"""Number of standard errors at which a difference has p = 0.5."""


def expected_seeds(counts: Sequence[int], arms: int, metrics: int) -> tuple[float, float]:
    """Return the expected number of seeds of an arm without an effect, and of the baseline, which gets the most.

    In simulated studies with independent metrics and normal spreads, an arm stops if p > 0.5 on every primary metric.
    """
    if not arms:
        return float(counts[0]), float(counts[0])
    generator = np.random.default_rng(0)
    reached = np.full((_SIMULATED, arms), counts[0])
    active = np.ones((_SIMULATED, arms), bool)
    sums, before = np.zeros((_SIMULATED, arms, metrics)), 0
    for count in counts:
        reached[active] = count
        sums += np.sqrt(count - before) * generator.normal(size=sums.shape)
        before = count
        active &= (np.abs(sums / np.sqrt(count)) > _HALF).any(-1)
    return float(reached.mean()), float(reached.max(1).mean())
