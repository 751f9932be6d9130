"""Try the values of `tune` for the baseline and each arm, and choose the best values for each of them.

All have the same number of trials on the same seeds, and the comparison uses other seeds. So a value that was best in
its sweep by chance has no advantage in the comparison. The choice depends only on the results of the tuning runs, so a
killed study makes the same choice again. Values that a sampler proposes are written to tuning.jsonl before they are
trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from tintype.errors import UserError
from tintype.evaluation.protocol import definitions
from tintype.rng import stream_key
from tintype.runtime.files import append_line, read_lines
from tintype.runtime.locks import taking_turns
from tintype.study import results
from tintype.study.runner import Task, task_of
from tintype.study.runs import read_run
from tintype.study.search import optuna_package, range_edges, suggest
from tintype.study.study import Candidate, Study, with_choices
from tintype.wording import option

_TRIALS = "tuning.jsonl"
"""File in a study's folder with the values that a sampler has proposed, oldest first."""
_LOCK = ".tuning-lock"


def tuning_tasks(study: Study, out: Path) -> list[Task]:
    """Return the runs that tuning still needs, seed by seed, without diverged runs: divergence is a result.

    With a sampler that learns, these are the runs of the trials proposed so far (`ask_trials`).
    """
    study = with_trials(study, out)
    tasks = [
        task_of(study, label, candidate.plans[index], out)
        for index in range(len(study.settings.tune_seeds))
        for label, candidate in _tried(study)
    ]
    return [task for task in tasks if task.record.failure != "diverged"]


def _tried(study: Study) -> Iterator[tuple[str, Candidate]]:
    """Yield each candidate of each arm with a label; the control has no own choice, but the baseline's."""
    for arm in (arm for arm in study.arms if arm.role != "control"):
        for number, one in enumerate(arm.candidates, 1):
            trial = f"trial {number}: " if _learns(study) else ""  # a sampler may propose the same values again
            yield f"{arm.label} ({trial}{one.words})", one


def _learns(study: Study) -> bool:
    """Return whether the values to try depend on earlier trials."""
    return bool(study.settings.tune) and study.settings.tune_by.kind == "optuna"


def check_sampler(study: Study) -> None:
    """Raise before the first run if the study's sampler is not installed."""
    if _learns(study):
        optuna_package(study.settings.tune_by)


def ask_trials(study: Study, out: Path) -> None:
    """Ask the sampler for an arm's next trial once the arm's trials so far have ended. One process asks at a time."""
    if not _learns(study):
        return
    settings = study.settings
    with taking_turns(out / _LOCK):
        tuning, record = tuning_of(study, out), _read_trials(out)
        assert tuning is not None
        direction = definitions(settings.evaluation, study.of_scenes)[tuning.metric].direction
        seed = stream_key(settings.tune_seeds[0], "tune/optuna") & 0xFFFFFFFF
        for sweep in tuning.sweeps:
            label = results.arm_label(sweep.arm, sweep.resolution)
            ended = all(run.state in ("done", "diverged") for point in sweep.points for run in point.runs)
            if ended and len(sweep.points) < settings.tuning_trials:
                scores = [_score(point) for point in sweep.points]
                past = list(zip(record.get(label, []), scores, strict=True))
                values = suggest(settings.tune, settings.tune_by, past, direction, seed)
                version = optuna_package(settings.tune_by).__version__
                append_line(out / _TRIALS, {"arm": label, "values": values, "optuna": version})


def _score(point: results.TuningPoint) -> float | None:
    """Return the mean score of a trial; None if one of its runs diverged."""
    return fmean(point.known) if len(point.known) == len(point.runs) else None


def _read_trials(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the proposed values of each arm, by its label, oldest first."""
    begun_anew = f"begin the study again in another {option('out')}"
    remake = f"put it back from a copy, or {begun_anew}: the sampler learns from its trials"
    found: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(out / _TRIALS, remake):
        found.setdefault(line["arm"], []).append(line["values"])
    return found


def with_trials(study: Study, out: Path) -> Study:
    """Return the study with the trials proposed so far; unchanged with a grid or random draws."""
    return _with_values(study, _read_trials(out)) if _learns(study) else study


def _with_values(study: Study, by_label: Mapping[str, Sequence[Mapping[str, Any]]]) -> Study:
    """Return the study whose arms have these choices of values; the control uses the baseline's choice."""
    arms = []
    for group in study.by_resolution():
        for arm in group:
            label = group[0].label if arm.role == "control" else arm.label
            assert arm.candidate is not None
            arms.append(replace(arm, candidates=tuple(map(arm.candidate, by_label.get(label, ())))))
    return replace(study, arms=tuple(arms))


def tuning_of(study: Study, out: Path) -> results.Tuning | None:
    """Return all trials and the choices; None in a study without `tune`."""
    if not study.settings.tune:
        return None
    study, by = with_trials(study, out), study.settings.tune_by
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
        chosen = best([[run.value for run in point.runs] for point in points], direction) if points else 0
        edges = edges_of([point.values for point in points], chosen, arm.candidate) if by.kind == "grid" else []
        if points and by.kind != "grid":
            edges = range_edges(study.settings.tune, points[chosen].values)
        sweeps.append(results.Sweep(arm=arm.name, resolution=arm.resolution, points=points, chosen=chosen, edges=edges))
    seeds, trials = list(study.settings.tune_seeds), study.settings.tuning_trials
    return results.Tuning(metric=metric, seeds=seeds, sweeps=sweeps, method=by.words, trials=trials)


def _run(run: results.Run, metric: str) -> results.TuningRun:
    value = run.metrics.get(metric)
    finite = value if value is not None and math.isfinite(value) else None
    state = "diverged" if run.state == "done" and finite is None else run.state
    return results.TuningRun(seed=run.seed, hash=run.hash, state=state, value=finite, seconds=run.train_s)


def best(scores: Sequence[Sequence[float | None]], direction: Literal["lower", "higher"]) -> int:
    """Return the index of the best mean score, the first on a tie; lost runs rank a choice below the others."""
    sign = 1.0 if direction == "lower" else -1.0

    def rank(index: int) -> tuple[int, float]:
        known = [score for score in scores[index] if score is not None]
        return len(scores[index]) - len(known), sign * fmean(known) if known else math.inf

    return min(range(len(scores)), key=rank)


def edges_of(
    grid: Sequence[Mapping[str, Any]], chosen: int, candidate: Callable[[Mapping[str, Any]], object] | None = None
) -> list[str]:
    """Name the directions in which a better value may lie, for chosen numbers at an end of the grid.

    If `candidate`, which makes a plan, refuses a value beyond the edge, no better value can lie there.
    """
    values, found = grid[chosen], []
    for key, value in values.items():
        numbers = [n for n in (point[key] for point in grid) if isinstance(n, int | float) and not isinstance(n, bool)]
        if len(numbers) < len(grid) or not isinstance(value, int | float) or len(set(numbers)) == 1:
            continue
        step = 1 if isinstance(value, int) else 0.01 * abs(value) or 0.01
        for word, edge, beyond in (("below", min(numbers), value - step), ("above", max(numbers), value + step)):
            if value == edge and (candidate is None or _is_possible(candidate, {**values, key: beyond})):
                found.append(f"{key} {word} {value:g}")
    return found


def _is_possible(candidate: Callable[[Mapping[str, Any]], object], values: Mapping[str, Any]) -> bool:
    try:
        candidate(values)
    except UserError:
        return False
    return True


def untuned_words(tuning: results.Tuning | None) -> str:
    """Return why the values of `tune` cannot be chosen yet; empty if they can, and in a study without `tune`."""
    runs = [run for sweep in tuning.sweeps for point in sweep.points for run in point.runs] if tuning else []
    counts = {what: sum(run.state == what for run in runs) for what in ("failed", "missing")}
    to_come = trials_left(tuning) * len(tuning.seeds) if tuning else 0
    counts["missing"] += to_come
    if not any(counts.values()):
        return ""
    words = " and ".join(
        f"{count} {'are not done' if what == 'missing' else what}" for what, count in counts.items() if count
    )
    return (
        f"the tuning is not finished: of its {len(runs) + to_come} runs, {words}. The comparison begins when all have "
        "ended, so that each arm has the same choice; run the same `tintype ablate` command again"
    )


def trials_left(tuning: results.Tuning) -> int:
    """Return how many trials of all arms have not been proposed yet."""
    return sum(max(0, tuning.trials - len(sweep.points)) for sweep in tuning.sweeps)


def tuned(study: Study, tuning: results.Tuning | None) -> Study:
    """Return the study with the tuned values; unchanged if these cannot be chosen yet."""
    if tuning is None or untuned_words(tuning):
        return study
    chosen = {results.arm_label(one.arm, one.resolution): one for one in tuning.sweeps}
    if _learns(study):
        values = {label: [one.points[one.chosen].values] for label, one in chosen.items()}
        return with_choices(_with_values(study, values), dict.fromkeys(chosen, 0))
    return with_choices(study, {label: one.chosen for label, one in chosen.items()})
