"""Implement `tintype bench --study`: measure how many runs per hour the workers of `tintype ablate` finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch

from tintype.config.strict import parse
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.recipes import packaged
from tintype.runtime.files import Json
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.machine import choose_device, environment
from tintype.study.runner import Message, tasks_of
from tintype.study.settings import StudySettings
from tintype.study.study import Study, resolve
from tintype.study.supervisor import Jobs, run_tasks

RUNS_PER_JOB = 3
_STUDY, _SET = "optimizers-mini", ("train.steps=500", "train.batch=128")
"""The default work: `mini` with these settings, trained and scored as in the study of this name."""


@dataclass(frozen=True)
class RunSeconds:
    """Mean seconds over some of the runs."""

    starting_s: float
    """Seconds until the worker's process has started and finished its imports."""
    training_s: float
    """Seconds of training with building the model; a worker's first run also compiles, and renders the images."""
    scoring_s: float

    @property
    def whole_s(self) -> float:
        return self.starting_s + self.training_s + self.scoring_s


@dataclass(frozen=True)
class StudySpeeds:
    """How fast the runs of a study finish."""

    environment: dict[str, Json]
    plan: str
    runs: int
    jobs: int
    wall_s: float
    """Seconds from the start of the workers to the end of the last run."""
    runs_per_hour: float
    """Number of runs divided by `wall_s`. With more runs, the start of the workers matters less."""
    warm_runs_per_hour: float | None
    """Rate from the end of each worker's first run to its last; None with one run per worker."""
    first: RunSeconds
    """Means over the first run of each worker."""
    later: RunSeconds | None


def study_to_measure(
    name: str | None, recipe: str | None, assignments: Sequence[str], runs: int, arms: bool = False
) -> Study:
    """Return a study for the measurement.

    The runs are of the baseline with one seed each or, with `arms`, of all arms. The study `name` provides the baseline
    and its scoring; `recipe` replaces only the baseline's plan.
    """
    settings = parse(StudySettings, packaged.find("studies", name or _STUDY)).located(Path(name or "").parent)
    usual = settings.set if name or recipe else _SET
    mixed = settings.arms if arms else ()
    changed = {
        "recipe": recipe or settings.recipe,
        "set": (*usual, *assignments),
        "seeds": tuple(range(-(-runs // (1 + len(mixed))))),
        "control_seeds": (),
        "resolutions": (),
        "arms": mixed,
    }
    return resolve(Path(name or _STUDY).stem, settings.model_copy(update=changed))


def plan_of_study(study: Study) -> Plan:
    return study.arms[0].plans[0]


def work_of_study(study: Study, jobs: Jobs) -> dict[str, Json]:
    """Return the settings that decide the amount of work."""
    others: list[Json] = [arm.plans[0].hash for arm in study.arms[1:]]
    return {
        "bench": "study",
        "plan": plan_of_study(study).hash,
        **({"arms": others} if others else {}),
        "protocol": study.settings.evaluation.hash,
        "runs": sum(len(arm.plans) for arm in study.arms),
        "jobs": jobs,
        "gpus": torch.cuda.device_count(),
    }


def measure_study(
    study: Study, jobs: Jobs, interrupt: Interrupt, on_message: Callable[[Message], None] = lambda message: None
) -> StudySpeeds | None:
    """Train and score the runs of the study in `jobs` processes. Return None if a signal stopped them."""
    done: dict[tuple[str, int], _Run] = {}
    begun: set[tuple[str, int]] = set()
    most = 1

    def note(message: Message) -> None:
        if message.state in ("failed", "diverged", "interrupted") and interrupt.signal is None:
            raise UserError(f"nothing was measured: seed {message.key[1]} {message.state}: {message.text.strip()}")
        nonlocal most
        begun.add(message.key)
        most = max(most, len(begun - done.keys()))
        if message.state == "done":
            done[message.key] = _Run(time.perf_counter() - began_s, message.training_s, message.scoring_s)
        on_message(message)

    with TemporaryDirectory() as folder:
        tasks = tasks_of(study, Path(folder))
        began_s = time.perf_counter()
        run_tasks(tasks, study.settings.evaluation, jobs, interrupt, note)
    if interrupt.signal is not None:
        return None
    plan = plan_of_study(study)
    at_a_time = min(most, len(tasks)) if jobs == "auto" else jobs
    runs = [done[task.key] for task in tasks]
    return _speeds(environment(choose_device(plan.run.device)), plan.hash, at_a_time, runs)


@dataclass(frozen=True)
class _Run:
    ended_s: float
    """Seconds since the start of the workers."""
    training_s: float
    scoring_s: float


def _speeds(environment: dict[str, Json], plan: str, jobs: int, runs: Sequence[_Run]) -> StudySpeeds:
    """Compute the rates of runs, which are in the order of their starts; the first `jobs` are workers' first runs."""
    first, later = runs[:jobs], runs[jobs:]
    ends_s = sorted(run.ended_s for run in runs)
    between_s = fmean(ends_s[-jobs:]) - fmean(ends_s[:jobs])
    starting_s = fmean(run.ended_s - run.training_s - run.scoring_s for run in first)
    return StudySpeeds(
        environment,
        plan,
        len(runs),
        jobs,
        wall_s=ends_s[-1],
        runs_per_hour=3600 * len(runs) / ends_s[-1],
        warm_runs_per_hour=3600 * len(later) / between_s if later else None,
        first=_seconds(first, starting_s),
        later=_seconds(later) if later else None,
    )


def _seconds(runs: Sequence[_Run], starting_s: float = 0.0) -> RunSeconds:
    return RunSeconds(starting_s, fmean(run.training_s for run in runs), fmean(run.scoring_s for run in runs))
