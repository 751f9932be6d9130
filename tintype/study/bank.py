"""Use stored runs of the baseline from other studies as more baseline runs and as a prior of the spread.

The study file names the other studies (`analysis: {bank: [PATH, …]}`). The runs are copied into the study's folder when
the study begins, and into the study's results. So the verdicts can be recomputed without the other studies.

A stored run must have the baseline's plan (except for the seed), and the same protocol, `NUMERICS`, frozen networks and
kind of device. Also, the study itself must not have a run with the same seed.

Each metric is checked separately, by an 80% interval of the difference between the study's own baseline runs and the
stored runs. If this interval excludes zero, the stored runs are not used for this metric.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from pydantic import ValidationError

import tintype
from tintype.errors import UserError
from tintype.runtime.files import damaged, read_checked, write_checked
from tintype.study.contrasts import is_tested
from tintype.study.results import Bank, BankCheck, BankRun, BankSource, Interval, MetricInfo, Role, Run
from tintype.study.runs import Metrics, Runs, metric_infos
from tintype.study.stats.cells import Cells
from tintype.study.stats.contrast import against
from tintype.study.stats.estimate import Estimate, estimate
from tintype.study.stored import StoredStudy, identities, other_networks, read_stored, runs_like, why_apart
from tintype.study.study import Study
from tintype.study.verdicts import STORED, cells_of

FILE = "bank.json"
LEVEL = 0.8
"""Confidence of the interval for the difference between a study's own baseline runs and stored runs.

With a higher confidence, the check would accept more stored runs that really differ. At 80%, the check rejects stored
runs by chance in a fifth of the metrics, even if the runs do not differ (docs/stored.json).
"""


def take_bank(study: Study) -> Bank | None:
    """Read the stored runs that the study's settings name; None if the settings name none."""
    if not study.settings.analysis.bank:
        return None
    sources, taken = list[BankSource](), set[str]()
    for path in study.settings.analysis.bank:
        source = _read_source(study, read_stored(Path(path)))
        again = [run for run in source.runs if run.hash in taken]
        taken |= {run.hash for run in source.runs}
        left = [*source.left_out, *([f"{_runs(len(again))} stand in another source too"] if again else [])]
        sources.append(
            source.model_copy(update={"runs": [run for run in source.runs if run not in again], "left_out": left})
        )
    return Bank(sources=sources, level=LEVEL)


def _read_source(study: Study, other: StoredStudy) -> BankSource:
    """Return the baseline's runs in another study; raise if no such run can be used."""
    if reason := why_apart(other, study.settings.evaluation.hash, tintype.NUMERICS):
        raise UserError(f"analysis.bank: {reason}", "remove this study from analysis.bank")
    found = runs_like(study, other, metric_infos(study))
    resolutions = {arm.label: arm.resolution for arm in study.arms if arm.role == "baseline"}
    runs = [(resolutions[label], run) for label, some in found.items() if label in resolutions for run in some]
    if not runs:
        raise UserError(
            f"analysis.bank: {other.name} has no run of this study's baseline: its plans differ in more than the seed",
            "remove this study from analysis.bank, or change the baseline",
        )
    lost = [f"{sum(run.state == state for _, run in runs)} {state}" for state in ("diverged", "failed")]
    lost = [words for words in lost if not words.startswith("0 ")]
    done = [(resolution, run) for resolution, run in runs if run.state == "done"]
    return BankSource(
        study=other.name,
        numerics=other.numerics,
        protocol=other.protocol,
        identities=identities(run for _, run in done),
        revisions={info.name: info.revision for info in other.results.metrics},
        runs=[
            BankRun(
                seed=run.seed,
                hash=run.hash,
                resolution=resolution,
                device=_device(run),
                metrics=run.metrics,
            )
            for resolution, run in done
        ],
        left_out=[f"{' and '.join(lost)} there"] if lost else [],
    )


def _device(run: Run) -> str:
    return str(run.environment.get("device", ""))


def keep_bank(study: Study, out: Path, looked: bool) -> None:
    """Copy the stored runs into the study's folder; after the first interim analysis, keep existing copies."""
    file, paths = out / FILE, list(study.settings.analysis.bank)
    if not paths:
        file.unlink(missing_ok=True)
    elif not (file.exists() and looked):
        bank = take_bank(study)
        assert bank is not None
        write_checked(file, bank.model_dump(mode="json"))


def read_bank(out: Path) -> Bank | None:
    file = out / FILE
    if not file.exists():
        return None
    remake = f"remove it and run `tintype ablate STUDY --out {quote(str(out))}` again: it copies the stored runs"
    content = read_checked(file, remake)
    try:
        return Bank.model_validate_json(json.dumps({k: v for k, v in content.items() if k in Bank.model_fields}))
    except ValidationError as error:
        raise damaged(file, str(error.errors()[0]["msg"]), remake) from None


@dataclass(frozen=True)
class Served:
    """The stored runs that a study uses in addition to its own runs."""

    runs: Mapping[str, Sequence[Run]]
    """By resolution."""
    left_out: list[str]


def serve(bank: Bank | None, study: Study, runs: Runs, metrics: Metrics) -> Served:
    """Return the stored runs that can be used with the study's own `runs`, except plans that the study has run."""
    if bank is None:
        return Served({}, [])
    own = {plan.hash for arm in study.arms for plan in arm.plans}
    done = [run for some in runs.values() for run in some if run.state == "done"]
    networks, devices = identities(done), {_device(run) for run in done}
    found, left = dict[str, list[Run]](), list[str]()
    for source in bank.sources:
        if others := other_networks(networks, source.identities):
            left.append(f"all of {source.study}: {', '.join(others)} had other weights")
            continue
        again = [run for run in source.runs if run.hash in own]
        fresh = [run for run in source.runs if run.hash not in own]
        elsewhere = [run for run in fresh if devices and run.device not in devices]
        if again:
            left.append(f"{_runs(len(again))} of {source.study}: the study has their seeds itself")
        if elsewhere:
            where = " and ".join(sorted({run.device or "a device that was not recorded" for run in elsewhere}))
            left.append(f"{_runs(len(elsewhere))} of {source.study}: made on {where}")
        alike = {name for name, info in metrics.items() if source.revisions.get(name) == info.revision}
        for run in fresh:
            if run not in elsewhere:
                values = {name: value for name, value in run.metrics.items() if name in alike}
                made = Run(seed=run.seed, hash=run.hash, folder="", state="done", metrics=values)
                found.setdefault(run.resolution, []).append(made)
    return Served(found, left)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def against_stored(cells: Cells, level: float = LEVEL) -> Estimate | None:
    """Estimate the mean of the study's own baseline runs minus the stored runs' mean; None if either is missing.

    Stored runs count as a separate plan: they contribute to the pooled spread, but not to the mean of own runs.
    """
    baseline = next(iter(cells.values))
    if not cells.seeds(baseline) or not cells.seeds(STORED):
        return None
    apart = replace(cells, plans={arm: plan for arm, plan in cells.plans.items() if arm != STORED}, stored=0)
    return estimate(apart, against(baseline, STORED), level)


def agrees(cells: Cells, found: Estimate | None) -> bool:
    """Return whether stored runs agree with the study's own runs; False if the difference is unknown."""
    if found is None or found.error is None:
        return False
    if found.interval is None:  # all runs have the same value
        return abs(found.value) <= cells.rounding(cells.values)
    return found.interval[0] <= 0 <= found.interval[1]


def check_stored(
    arms: Mapping[str, Role], runs: Runs, metric: str, meaning: MetricInfo, stored: Sequence[Run], resolution: str = ""
) -> BankCheck:
    """Compare the study's own baseline runs with the stored runs for one metric."""
    cells = cells_of(arms, runs, metric, meaning, stored=stored)
    baseline, found = next(iter(arms)), against_stored(cells)
    own = [label for label in cells.values if cells.plan_of(label) == baseline and label != STORED]

    def units(change: float) -> float:
        return cells.scale.difference(found.old, change) if found else 0.0

    low, high = map(units, found.interval) if found and found.interval else (None, None)
    return BankCheck(
        metric=metric,
        resolution=resolution,
        own=sum(map(cells.seeds, own)),
        stored=cells.seeds(STORED),
        collapsed=len(cells.collapsed.get(STORED, ())),
        difference=Interval(value=units(found.value) if found else 0.0, low=low, high=high),
        agrees=agrees(cells, found),
    )


def with_checks(
    bank: Bank, served: Served, arms: Mapping[str, Mapping[str, Role]], runs: Runs, metrics: Metrics
) -> Bank:
    """Return the bank with the stored runs that are used, and with each metric's comparison to the study's own runs."""
    checks = [
        check_stored(arms[resolution], runs, metric, info, stored, resolution)
        for resolution, stored in served.runs.items()
        for metric, info in metrics.items()
        if resolution in arms and is_checked(metric, stored)
    ]
    count = sum(len(stored) for resolution, stored in served.runs.items() if resolution in arms)
    return bank.model_copy(update={"served": count, "left_out": served.left_out, "checks": checks})


def is_checked(metric: str, stored: Sequence[Run]) -> bool:
    """Return whether stored runs can be used for a metric; the metric must be tested and in all of these runs."""
    return is_tested(metric) and any(run.loss(metric) is None for run in stored)
