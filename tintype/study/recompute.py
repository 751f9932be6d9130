"""Recompute a study's verdicts from results.json if the files of the runs were deleted.

The results have the metrics of every run, so the same code compares them. Each metric keeps the definition that was
used for scoring, and values with different definitions are never compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tintype.errors import UserError
from tintype.study.along import with_along
from tintype.study.compare import Rows, read_at_looks
from tintype.study.contrasts import between_key, own_key
from tintype.study.looks import MadeLook
from tintype.study.results import Run, StudyResults
from tintype.study.study import ArmPlan, Study


def recompute(study: Study, stored: StudyResults, made: Sequence[MadeLook]) -> StudyResults:
    """Return results with new comparisons, but old sampling errors, which may need values of single images."""
    arms = {arm.label: arm for arm in stored.arms}
    if unknown := arms.keys() - {arm.label for arm in study.arms}:
        raise UserError(f"the results have arms that study.yaml does not have: {', '.join(sorted(unknown))}")
    study = replace(study, arms=tuple(arm for arm in study.arms if arm.label in arms))
    runs = {arm.label: _stored_runs(arm, arms[arm.label].runs) for arm in study.arms}
    reading = read_at_looks(study, runs, {info.name: info for info in stored.metrics}, made, bank=stored.bank)
    reading = replace(reading, rows=_with_errors(reading.rows, _comparisons(stored)))
    kept = [arms[arm.label].model_copy(update={"runs": reading.runs[arm.label]}) for arm in reading.study.arms]
    found = {
        **reading.verdicts(),
        "metrics": list(reading.metrics.values()),
        "arms": [reading.with_verdicts(arm) for arm in kept],
    }
    return with_along(stored.model_copy(update=found))


def _stored_runs(arm: ArmPlan, runs: Sequence[Run]) -> list[Run]:
    """Return one run for each seed of an arm."""
    known = {run.seed: run for run in runs}
    missing = {
        plan.seed: Run(seed=plan.seed, hash=plan.hash, folder=f"runs/{plan.hash}", state="missing")
        for plan in arm.plans
    }
    return [known.get(seed, run) for seed, run in missing.items()]


def _with_errors(rows: Rows, stored: Rows) -> Rows:
    errors = {key: row.sampling_error for key, row in stored.items() if row.sampling_error is not None}
    return {
        key: row.model_copy(update={"sampling_error": errors.get(key, row.sampling_error)}) for key, row in rows.items()
    }


def _comparisons(found: StudyResults) -> Rows:
    of_two = {
        between_key(pair.first, pair.second, pair.resolution, metric): row
        for pair in found.between
        for metric, row in pair.comparisons.items()
    }
    return of_two | {
        own_key(arm.name, arm.role, arm.resolution, metric): row
        for arm in found.arms
        for metric, row in arm.comparisons.items()
    }
