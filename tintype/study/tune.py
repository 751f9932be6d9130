"""Tuned arms: try the values of `tune` for the baseline and each arm alike, and choose the best for each.

All have the same values and the same seeds, and the comparison does not use those seeds: a value that was lucky in its
sweep is not lucky again. Tuning runs are runs like others, in the study's runs/. The choice is a function of their
results alone, so a study that was killed chooses the same again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

from tintype.evaluation.protocol import definitions
from tintype.study import results
from tintype.study.compare import read_run
from tintype.study.runner import FAILURES, Task
from tintype.study.study import ArmPlan, Candidate, Study, with_choices


def tuning_tasks(study: Study, out: Path) -> list[Task]:
    """Return the runs that tuning needs, seed by seed; not those that diverged, which is their result."""
    tasks = [
        Task(
            f"{arm.label} ({candidate.words})",
            candidate.plans[index],
            out / "runs" / candidate.plans[index].hash,
            retries=study.settings.retries,
        )
        for index in range(len(study.settings.tune_seeds))
        for arm, candidate in _tried(study)
    ]
    return [task for task in tasks if not (task.folder / FAILURES["diverged"]).exists()]


def _tried(study: Study) -> Iterator[tuple[ArmPlan, Candidate]]:
    """Yield each arm with each of its candidates. The control has the baseline's plan, so it has its choice too."""
    yield from ((arm, one) for arm in study.arms if arm.role != "control" for one in arm.candidates)


def tuning_of(study: Study, out: Path) -> results.Tuning | None:
    """Return what was tried and chosen; None in a study without `tune`."""
    if not study.settings.tune:
        return None
    protocol, metric = study.settings.evaluation, study.settings.primary[0]
    direction = definitions(protocol, study.of_scenes)[metric].direction
    sweeps = []
    for arm in (arm for arm in study.arms if arm.role != "control"):
        points = [
            results.TuningPoint(
                values=dict(one.values), runs=[_run(read_run(plan, protocol, out), metric) for plan in one.plans]
            )
            for one in arm.candidates
        ]
        chosen = best([[run.value for run in point.runs] for point in points], direction)
        edges = edges_of([point.values for point in points], chosen)
        sweeps.append(results.Sweep(arm=arm.name, resolution=arm.resolution, points=points, chosen=chosen, edges=edges))
    return results.Tuning(metric=metric, seeds=list(study.settings.tune_seeds), sweeps=sweeps)


def _run(run: results.Run, metric: str) -> results.TuningRun:
    value = run.metrics.get(metric)
    finite = value if value is not None and math.isfinite(value) else None
    state = "diverged" if run.state == "done" and finite is None else run.state
    return results.TuningRun(seed=run.seed, hash=run.hash, state=state, value=finite, seconds=run.train_s)


def best(scores: Sequence[Sequence[float | None]], direction: Literal["lower", "higher"]) -> int:
    """Return the index of the best mean; one that lost runs comes after all that lost fewer, the first of equals."""
    sign = 1.0 if direction == "lower" else -1.0

    def rank(index: int) -> tuple[int, float]:
        known = [score for score in scores[index] if score is not None]
        return len(scores[index]) - len(known), sign * fmean(known) if known else math.inf

    return min(range(len(scores)), key=rank)


def edges_of(grid: Sequence[Mapping[str, object]], chosen: int) -> list[str]:
    """Say in which directions a better value may lie: keys whose chosen number is the grid's smallest or largest."""
    found = []
    for key, value in grid[chosen].items():
        numbers = [n for n in (point[key] for point in grid) if isinstance(n, int | float) and not isinstance(n, bool)]
        if len(numbers) == len(grid) and isinstance(value, int | float) and len(set(numbers)) > 1:
            found += [f"{key} below {value:g}"] if value == min(numbers) else []
            found += [f"{key} above {value:g}"] if value == max(numbers) else []
    return found


def untuned_words(tuning: results.Tuning | None) -> str:
    """Return why the values of `tune` cannot be chosen yet; empty where they can, and in a study without `tune`."""
    runs = [run for sweep in tuning.sweeps for point in sweep.points for run in point.runs] if tuning else []
    counts = {what: sum(run.state == what for run in runs) for what in ("failed", "missing")}
    if not any(counts.values()):
        return ""
    words = " and ".join(
        f"{count} {'are not done' if what == 'missing' else what}" for what, count in counts.items() if count
    )
    return (
        f"the tuning is not finished: of its {len(runs)} runs, {words}. The comparison begins when all have ended, so "
        "that each arm has the same choice; run the same `tintype ablate` command again"
    )


def tuned(study: Study, tuning: results.Tuning | None) -> Study:
    """Return the study with the values that its tuning chose; as it is where they cannot be chosen yet."""
    if tuning is None or untuned_words(tuning):
        return study
    return with_choices(study, {results.arm_label(one.arm, one.resolution): one.chosen for one in tuning.sweeps})
