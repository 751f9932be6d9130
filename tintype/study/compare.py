"""Gathers a study's results from the files of its runs, and compares each arm with the baseline."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tintype.images import save_png
from tintype.metrics.evaluate import (
    PREVIEWS,
    Definition,
    Protocol,
    definitions,
    evaluation_source,
    prompts,
    result_file,
)
from tintype.plan import Plan
from tintype.settings import plain
from tintype.study import stats
from tintype.study.results import Arm, Change, Comparison, Curve, MetricInfo, Results, Run, Verdict
from tintype.study.runner import FAILURE_FILE
from tintype.study.study import ArmPlan, Study
from tintype.train.folder import RunFolder

_CURVE_POINTS = 200


def collect(study: Study, out: Path) -> Results:
    protocol, settings = study.settings.evaluation, study.settings
    meanings = definitions(protocol)
    runs = {arm.name: [read_run(plan, protocol, out) for plan in arm.plans] for arm in study.arms}
    baseline = study.arms[0]
    data = baseline.plans[0].data
    return Results(
        name=study.name,
        question=settings.question,
        seeds=list(settings.seeds),
        sketch=len(settings.seeds) == 1,
        confidence=stats.CONFIDENCE,
        method=_method(study),
        metrics=[_metric_info(name, meaning, name in settings.primary) for name, meaning in meanings.items()],
        arms=_arms(study, runs, meanings),
        plan=baseline.plans[0].to_yaml(),
        protocol=plain(protocol),
        prompts=prompts(data, protocol, "long", min(PREVIEWS, protocol.count)),
        real_previews=_real_previews(study, out),
        reference=_reference(study, out),
    )


def read_run(plan: Plan, protocol: Protocol, out: Path) -> Run:
    """A run as its files tell it."""
    path = out / "runs" / plan.hash
    folder = str(path.relative_to(out))
    failure = path / FAILURE_FILE
    stored = result_file(path, protocol, plan.train.steps)
    if failure.exists() and not stored.exists():
        error = failure.read_text(encoding="utf-8").strip().splitlines()[-1]
        return Run(seed=plan.seed, hash=plan.hash, folder=folder, state="failed", error=error)
    if not stored.exists():
        return Run(seed=plan.seed, hash=plan.hash, folder=folder, state="missing")
    result = json.loads(stored.read_text(encoding="utf-8"))
    files = RunFolder(path)
    lines = files.metrics()
    environment = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    return Run(
        seed=plan.seed,
        hash=plan.hash,
        folder=folder,
        state="done",
        metrics=result["metrics"],
        details=result["details"],
        curves={name: _curve(lines, name) for name in ("loss", "validation_loss", "grad_norm")},
        time_split=result["time_split"],
        parameters=environment["parameters"],
        train_s=sum(line["seconds"] for line in lines),
        evaluate_s=result["seconds"],
        events=files.events(),
        environment=environment,
        previews=[f"{folder}/{name}" for name in result["previews"]],
    )


def _curve(lines: Sequence[Mapping[str, Any]], name: str) -> Curve:
    """A logged quantity, averaged into at most 200 points."""
    known = [line for line in lines if line.get(name) is not None]
    size = max(1, -(-len(known) // _CURVE_POINTS))
    bins = [known[start : start + size] for start in range(0, len(known), size)]
    return Curve(step=[b[-1]["step"] for b in bins], value=[fmean(line[name] for line in b) for b in bins])


def _arms(study: Study, runs: Mapping[str, list[Run]], meanings: Mapping[str, Definition]) -> list[Arm]:
    baseline, *others = study.arms
    pairs = {(arm.name, m): _pair(arm, runs, baseline.name, m) for arm in others for m in meanings}
    primary = set(study.settings.primary)
    rows: dict[tuple[str, str], Comparison] = {}
    for family in (primary, set(meanings) - primary):
        rows |= compare({key: pair for key, pair in pairs.items() if key[1] in family and pair.new}, meanings)
    found = [_arm(baseline, runs[baseline.name], {})]
    for arm in others:
        comparisons = {metric: rows[arm.name, metric] for metric in meanings if (arm.name, metric) in rows}
        found.append(_arm(arm, runs[arm.name], comparisons))
    return found


@dataclass(frozen=True)
class Pair:
    """The values of one metric in an arm and in the baseline, seed by seed where the seeds are shared."""

    new: list[float]
    old: list[float]
    shared_seeds: bool
    complete: bool

    @property
    def difference(self) -> stats.Difference:
        return (stats.paired if self.shared_seeds else stats.unpaired)(self.new, self.old)

    @property
    def per_seed(self) -> list[float]:
        """One difference for each seed; without a partner, from the baseline's mean."""
        partners = self.old if self.shared_seeds else [fmean(self.old)] * len(self.new)
        return [new - old for new, old in zip(self.new, partners, strict=True)]


def _pair(arm: ArmPlan, runs: Mapping[str, list[Run]], baseline: str, metric: str) -> Pair:
    new, old = ([run.metrics.get(metric, math.nan) for run in runs[name]] for name in (arm.name, baseline))
    good = [(a, b) for a, b in zip(new, old, strict=True) if math.isfinite(a) and math.isfinite(b)]
    return Pair([a for a, _ in good], [b for _, b in good], arm.role == "arm", len(good) == len(new))


def _arm(arm: ArmPlan, runs: list[Run], comparisons: dict[str, Comparison]) -> Arm:
    papers = [application.technique.paper for application in arm.applications if application.technique.paper]
    return Arm(
        name=arm.name,
        role=arm.role,
        summary=arm.summary,
        techniques=[application.technique.name for application in arm.applications],
        papers=papers,
        changes=[Change(key=key, before=old, after=new) for key, (old, new) in arm.changes.items()],
        runs=runs,
        comparisons=comparisons,
    )


def compare(
    family: Mapping[tuple[str, str], Pair], meanings: Mapping[str, Definition]
) -> dict[tuple[str, str], Comparison]:
    """Compares all (arm, metric) pairs of a family; their p values are corrected together, by Holm's method."""
    differences = {key: pair.difference for key, pair in family.items()}
    p_values = {key: one.p for key, one in differences.items() if one.p is not None}
    adjusted = dict(zip(p_values, stats.holm(list(p_values.values())), strict=True))
    strictest = 1 - (1 - stats.CONFIDENCE) / max(1, len(p_values))
    rows = {}
    for key, pair in family.items():
        one = differences[key]
        low, high = one.interval(stats.CONFIDENCE) or (None, None)
        rows[key] = Comparison(
            mean=fmean(pair.new),
            baseline_mean=fmean(pair.old),
            differences=pair.per_seed,
            difference=one.value,
            low=low,
            high=high,
            p=one.p,
            p_adjusted=adjusted.get(key),
            detectable=one.detectable(strictest),
            verdict=_verdict(one.value, adjusted.get(key), pair.complete, meanings[key[1]]),
        )
    return rows


def _verdict(difference: float, p_adjusted: float | None, complete: bool, meaning: Definition) -> Verdict:
    if not complete:
        return "incomplete"
    if p_adjusted is None:
        return "sketch"
    if p_adjusted >= 1 - stats.CONFIDENCE:
        return "not shown"
    return "better" if (difference < 0) == (meaning.direction == "lower") else "worse"


def _metric_info(name: str, meaning: Definition, primary: bool) -> MetricInfo:
    return MetricInfo(
        name=name,
        label=meaning.label,
        direction=meaning.direction,
        definition=meaning.definition,
        primary=primary,
    )


def _real_previews(study: Study, out: Path) -> list[str]:
    protocol = study.settings.evaluation
    source = evaluation_source(study.arms[0].plans[0].data, protocol)
    images = source.images(range(min(PREVIEWS, protocol.count)))
    (out / "real").mkdir(exist_ok=True)
    names = [f"real/preview-{index}.png" for index in range(len(images))]
    for name, image in zip(names, images, strict=True):
        save_png(image, out / name)
    return names


def _reference(study: Study, out: Path) -> dict[str, dict[str, float]]:
    """What the evaluations measured on real images: the same for every run."""
    for plan in (plan for arm in study.arms for plan in arm.plans):
        stored = result_file(out / "runs" / plan.hash, study.settings.evaluation, plan.train.steps)
        if stored.exists():
            reference: dict[str, dict[str, float]] = json.loads(stored.read_text(encoding="utf-8"))["reference"]
            return reference
    return {}


def _method(study: Study) -> str:
    count, arms = len(study.settings.seeds), len(study.arms) - 1
    if count == 1:
        return (
            "One seed for each arm: a sketch. Nothing is known of the spread, so there is no interval and no verdict."
        )
    primary = ", ".join(study.settings.primary)
    return (
        f"Each arm was trained with {count} seeds, paired with the baseline's: the same data order, noise and initial "
        f"weights. A difference is arm minus baseline, averaged over the {count} pairs, with a 95% Student interval "
        f"({count - 1} degrees of freedom). The control is the baseline's own plan with other seeds: there is nothing "
        "to pair, its interval is Welch's, and it should differ from the baseline in nothing. A verdict needs p below "
        f"0.05 after Holm's correction for all comparisons of its family: {arms} arms on the primary metrics "
        f"({primary}), or {arms} arms on all other metrics. The smallest detectable difference is the true difference "
        "that this many seeds would find with a power of 80% at the measured spread and the strictest corrected level."
    )
