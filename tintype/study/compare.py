"""Compare the runs of a study by testing every planned contrast at each interim analysis (look)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch

from tintype.metrics.resample import mean_error
from tintype.settings import plain
from tintype.study import results
from tintype.study.adaptive import Standing, follow, study_at
from tintype.study.along import with_along
from tintype.study.analysis import DEFAULT, AnalysisSettings
from tintype.study.bank import Served, check_stored, is_checked, read_bank, serve, with_checks
from tintype.study.contrasts import (
    ANOTHER_SPACE,
    UNPAIRED,
    Asked,
    asked_of,
    between_key,
    factor_key,
    incomparable,
    is_tested,
    labels_of,
    own_key,
    trends_of,
)
from tintype.study.crowded import read_crowded
from tintype.study.factorial import FactorContrast
from tintype.study.interactions import expected_mean, factor_verdict
from tintype.study.looks import (
    DECIDED,
    Look,
    MadeLook,
    SeedPlan,
    describe_looks,
    every_key,
    planned_looks,
    read_looks,
    replay,
    unplanned_looks,
    with_look,
)
from tintype.study.method import describe_bank, describe_method
from tintype.study.picked import read_picked
from tintype.study.replicate import read_replication
from tintype.study.runs import (
    NO_IMAGES,
    Metrics,
    PerImage,
    Runs,
    check_identities,
    describe_arm,
    describe_resolution,
    last_results,
    metric_infos,
    read_commands,
    read_images,
    read_runs,
    warnings_of,
)
from tintype.study.shapes import read_alone
from tintype.study.stats.cells import LOG, RATIO, Cells, with_alike
from tintype.study.stats.contrast import OF_ARMS, OF_TWO, Key, against
from tintype.study.stats.estimate import CONFIDENCE, Estimate, estimate
from tintype.study.stats.family import UNSTABLE, confidence_of, weights_of
from tintype.study.stats.pairing import Correlation, correlations, estimate_arm
from tintype.study.study import ArmPlan, Study
from tintype.study.verdicts import (
    STORED,
    Collapse,
    cells_of,
    match,
    measured_row,
    tested_row,
    without_bias,
    without_seeds,
)
from tintype.study.version import read_version

Rows: TypeAlias = Mapping[Key, results.Comparison]
StoredRuns: TypeAlias = Mapping[str, Sequence[results.Run]]
"""Runs of the baselines that come from other studies, by resolution."""
NO_RUNS: StoredRuns = MappingProxyType({})
ONE_SIDED = 2.0
"""Factor on the error of a one-sided test, whose sign was predicted, so that each end of its interval gets 5%."""


def collect(study: Study, out: Path, known: Runs | None = None, images: PerImage | None = None) -> results.StudyResults:
    """Read the runs of a study from its folder, and compare them.

    If `known` runs and their values per `images` are given, as for the live page, no file is written.
    """
    protocol, settings = study.settings.evaluation, study.settings
    every = read_runs(study, out) if known is None else known
    check_identities(every)
    per_image = read_images(study, out) if images is None else images
    reading = read_at_looks(study, every, metric_infos(study), made_looks(out), per_image, read_bank(out))
    study, runs = reading.study, reading.runs
    along, alone = study.along(study.arms[0].plans[0]), read_alone(study, out, runs)
    found = results.StudyResults(
        name=study.name,
        question=settings.question,
        metrics=list(reading.metrics.values()),
        arms=[reading.with_verdicts(describe_arm(arm, runs[arm.label], alone.get(arm.label))) for arm in study.arms],
        **reading.verdicts(),
        protocol=plain(protocol),
        encoders={name: one for of_arm in runs.values() for run in of_arm for name, one in run.encoders.items()},
        warnings=warnings_of(runs),
        resolutions=[describe_resolution(arms, protocol, out, write=known is None) for arms in study.by_resolution()],
        commands=read_commands(out) if known is None else [],
        along_images=along.protocol.count if along else 0,
        replication=read_replication(out),
        picked=read_picked(out),
        crowded=read_crowded(out) if known is None else [],
        numerics=read_version(out).get("numerics"),
    )
    return with_along(found)


@dataclass(frozen=True)
class Reading:
    """A study with its comparisons at each interim analysis."""

    study: Study
    runs: Runs
    at_looks: Sequence[Study]
    """The arms and seeds of each interim analysis; the field `look` of a comparison counts these from one."""
    metrics: Metrics
    family: Sequence[Key]
    """The comparisons that share the study's error, including comparisons of removed arms."""
    rows: Rows
    looks: list[results.LookInfo]
    planned: bool
    stopped: Mapping[str, str]
    bank: results.Bank | None = None
    """The stored runs that the last interim analysis uses, and their checks."""
    stored: StoredRuns = field(default_factory=dict)

    def with_verdicts(self, arm: results.Arm) -> results.Arm:
        keys = {metric: own_key(arm.name, arm.role, arm.resolution, metric) for metric in self.metrics}
        apart = incomparable(self.study)
        return arm.model_copy(
            update={
                "comparisons": {metric: self.rows[key] for metric, key in keys.items() if key in self.rows},
                "incomparable": {metric: apart[key] for metric, key in keys.items() if key in apart},
                "stopped": self.stopped.get(arm.name, ""),
            }
        )

    def verdicts(self) -> dict[str, Any]:
        """Return the fields of the results that are computed from the comparisons, except the arms."""
        seeds = [plan.seed for plan in self.study.arms[0].plans]
        method = describe_method(self.study, self.family, asked_of(self.study, self.metrics), self.metrics)
        return {
            "seeds": seeds,
            "sketch": len(seeds) == 1,
            "confidence": CONFIDENCE,
            "method": " ".join(
                filter(None, [method, describe_bank(self.bank), describe_looks(self.looks, self.planned)])
            ),
            "between": [self._between(first, second) for first, second in self.study.declared()],
            "trends": [self._trend(key, reason) for key, reason in trends_of(self.study).items()],
            "factors": self._factor_effects(),
            "looks": self.looks,
            "looks_planned": self.planned,
            "bank": self.bank,
        }

    def _between(self, first: ArmPlan, second: ArmPlan) -> results.Between:
        keys = {metric: between_key(first.name, second.name, first.resolution, metric) for metric in self.metrics}
        apart = incomparable(self.study)
        return results.Between(
            first=first.name,
            second=second.name,
            resolution=first.resolution,
            comparisons={metric: self.rows[key] for metric, key in keys.items() if key in self.rows},
            incomparable={metric: apart[key] for metric, key in keys.items() if key in apart},
        )

    def _trend(self, key: Key, reason: str) -> results.Trend:
        """Return a trend with the arm's effect at each resolution, or the reason why no trend can be computed."""
        if not reason:
            matched = match(asked_of(self.study, self.metrics)[key], self.runs, key.metric)
            reason = matched if isinstance(matched, str) else ""
        effects = {} if reason.startswith(ANOTHER_SPACE) else self._relative_effects(key, reason == UNPAIRED)
        return results.Trend(
            arm=key.arm, metric=key.metric, effects=effects, comparison=self.rows.get(key), undefined=reason
        )

    def _relative_effects(self, key: Key, by_order: bool) -> dict[str, results.Interval]:
        """Return log(arm / baseline), without collapsed runs, for each resolution where it is defined."""
        found = dict[str, results.Interval]()
        for arm, baseline in self.study.compared():
            if arm.name != key.arm:
                continue
            new, old = self.runs[arm.label], self.runs[baseline.label][: len(self.runs[arm.label])]
            row = self.rows.get(own_key(arm.name, arm.role, arm.resolution, key.metric))
            collapsed = (set(row.collapsed), set(row.baseline_collapsed)) if row else (set(), set())
            pairs = [
                (a, b)
                for a, b in zip(new, old, strict=not by_order)
                if a.loss(key.metric) is None and b.loss(key.metric) is None
            ]
            values = {
                "arm": {i: a.metrics[key.metric] for i, (a, _) in enumerate(pairs) if a.seed not in collapsed[0]},
                "baseline": {i: b.metrics[key.metric] for i, (_, b) in enumerate(pairs) if b.seed not in collapsed[1]},
            }
            if not all(values.values()) or any(value <= 0 for of in values.values() for value in of.values()):
                continue
            logs = {name: {i: math.log(value) for i, value in of.items()} for name, of in values.items()}
            one = estimate(Cells(logs, LOG), against("arm", "baseline"))
            low, high = one.interval or (None, None)
            found[arm.resolution] = results.Interval(value=one.value, low=low, high=high)
        return found

    def _factor_effects(self) -> list[results.FactorEffect]:
        found = []
        for arms, contrast in self.study.contrasts():
            for metric in (self.metrics[name] for name in self.study.settings.primary):
                row = self.rows.get(factor_key(contrast, arms[0].resolution, metric.name))
                if row is not None and row.look is not None:
                    at_look = self.at_looks[row.look - 1]
                    roles = _roles(at_look)[arms[0].resolution]
                    runs, stored = _runs_of(at_look, self.runs), self.stored.get(arms[0].resolution, ())
                    cells = cells_of(roles, runs, metric.name, metric, stored=agreeing(roles, runs, metric, stored))
                    found.append(_factor_effect(row, metric, arms, contrast, cells))
        return found


def _factor_effect(
    row: results.Comparison,
    metric: results.MetricInfo,
    arms: Sequence[ArmPlan],
    contrast: FactorContrast,
    cells: Cells,
) -> results.FactorEffect:
    """Return the effect of a contrast of factors, with its arms' means at the deciding interim analysis."""
    labels = labels_of(arms)
    collapsed = [arm.name for arm in arms if arm.name in contrast.weights and cells.collapsed.get(arm.label)]
    if collapsed:
        row = row.model_copy(update={"note": f"runs of {', '.join(collapsed)} collapsed"})
    there = [name for name in contrast.weights if cells.values.get(labels[name])]
    means = {name: cells.scale.value(cells.mean_of_plan(labels[name])) for name in there}
    return results.FactorEffect(
        parts=list(contrast.parts),
        metric=metric.name,
        resolution=arms[0].resolution,
        comparison=row,
        means=[results.ArmMean(arm=name, value=value) for name, value in means.items()],
        expected=expected_mean(contrast, means, cells.scale),
        verdict=factor_verdict(contrast, row, means, metric.direction),
    )


def read_at_looks(
    study: Study,
    runs: Runs,
    metrics: Metrics,
    made: Sequence[MadeLook],
    images: PerImage = NO_IMAGES,
    bank: results.Bank | None = None,
) -> Reading:
    """Compare runs at each past interim analysis in `made`, and at a new one if seeds or comparisons are new."""
    served = serve(bank, study, runs, metrics)
    reading = _read_at_looks(study, runs, metrics, made, images, served)
    if bank is None:
        return reading
    return replace(reading, bank=with_checks(bank, served, _roles(reading.study), reading.runs, metrics))


def _read_at_looks(
    study: Study, runs: Runs, metrics: Metrics, made: Sequence[MadeLook], images: PerImage, served: Served
) -> Reading:
    known = _looks_of(study, metrics, made)
    family = every_key(known, asked_of(study, metrics))
    if isinstance(study.settings.seeds, SeedPlan):
        return _read_planned(study, study.settings.seeds, runs, metrics, images, family, served)
    every, looks = study.settings.every_seed, unplanned_looks(known)
    at_looks = [_known_arms(study_at(study, look), known[:number]) for number, look in enumerate(looks, 1)]
    held = [
        set(look.seeds) <= set(every.seeds) and set(look.control_seeds) <= set(every.control_seeds) for look in looks
    ]
    rows = [
        compare_at(study, at_look, look, runs, metrics, images, one.keys, served.runs)
        if there
        else {}  # a study that dropped seeds has still spent their error
        for at_look, look, one, there in zip(at_looks, looks, known, held, strict=True)
    ]
    done = [number < len(made) or any(is_read(row) for row in of.values()) for number, of in enumerate(rows)]
    infos, of_study = _look_infos(looks, done), _runs_of(study, runs)
    return Reading(study, of_study, at_looks, metrics, family, replay(rows), infos, False, {}, stored=served.runs)


def _looks_of(study: Study, metrics: Iterable[str], made: Sequence[MadeLook]) -> list[MadeLook]:
    """Return a study's interim analyses and families, which are either planned, or past and present."""
    planned, seeds = list(asked_of(study, metrics)), study.settings.seeds
    if isinstance(seeds, SeedPlan):
        return [MadeLook.of(look.read, every_key(made, planned)) for look in planned_looks(seeds)]
    return with_look(made, study.settings.every_seed, planned)


def looks_to_record(study: Study, found: results.StudyResults, out: Path) -> list[MadeLook]:
    """Return the interim analyses of a study, including the interim analysis of these results."""
    looks = _looks_of(study, [metric.name for metric in found.metrics], made_looks(out))
    return [look for look, info in zip(looks, found.looks, strict=True) if info.made]


def _known_arms(at_look: Study, looks: Sequence[MadeLook]) -> Study:
    """Return the study without arms that were added later, so that the pooled spread leaves those arms out."""
    known = {(key.arm, key.resolution) for look in looks for key in look.keys if key.kind in OF_ARMS}
    arms = [arm for arm in at_look.arms if arm.role == "baseline" or (arm.name, arm.resolution) in known]
    return replace(at_look, arms=tuple(arms))


def _read_planned(
    study: Study,
    plan: SeedPlan,
    runs: Runs,
    metrics: Metrics,
    images: PerImage,
    family: Sequence[Key],
    served: Served,
) -> Reading:
    looks = planned_looks(plan)
    standing = follow_runs(study, runs, family, metrics=metrics, images=images, stored=served.runs)
    infos = _look_infos(looks, [look in standing.made for look in looks])
    if not standing.made:
        first = study_at(study, looks[0])
        rows = replay([compare_at(study, first, looks[0], runs, metrics, images, family, served.runs)])
        of_first = _runs_of(first, runs)
        return Reading(first, of_first, [first], metrics, family, rows, infos, True, {}, stored=served.runs)
    arms = [replace(arm, plans=arm.plans[: standing.counts[arm.name]]) for arm in study.arms]
    read = replace(study, arms=tuple(arms))
    of_read = _runs_of(read, runs)
    stopped = standing.stopped
    return Reading(
        read, of_read, standing.read, metrics, family, standing.rows, infos, True, stopped, stored=served.runs
    )


def _look_infos(looks: Sequence[Look], made: Sequence[bool]) -> list[results.LookInfo]:
    return [
        results.LookInfo(**look.read.model_dump(), share=look.share, made=done)
        for look, done in zip(looks, made, strict=True)
    ]


def is_read(row: results.Comparison) -> bool:
    """Return whether a comparison was tested; reading a tested comparison spends error."""
    return row.verdict in (*DECIDED, "undecided")


def made_looks(out: Path) -> list[MadeLook]:
    """Return the past interim analyses; a report from a version that recorded none counts as one analysis."""
    if (recorded := read_looks(out)) is not None:
        return recorded
    last = last_results(out)
    if last is None or not any(is_read(row) for arm in last.arms for row in arm.comparisons.values()):
        return []
    control = [run.seed for run in next((arm.runs for arm in last.arms if arm.role == "control"), [])]
    keys = _reported_keys(last)
    looks = [MadeLook.of(one, keys) for one in last.looks if one.made]
    return looks or [MadeLook.of(results.SeedSet(seeds=last.seeds, control_seeds=control), keys)]


def _reported_keys(last: results.StudyResults) -> list[Key]:
    arms = [arm for arm in last.arms if arm.role != "baseline"]
    planned = [
        own_key(arm.name, arm.role, arm.resolution, one.name)
        for arm in arms
        for one in last.metrics
        if one.name not in arm.incomparable
    ]
    trends = [Key(trend.arm, trend.metric, "", "trend") for trend in last.trends if not trend.undefined]
    factors = [factor_key(FactorContrast(tuple(one.parts), {}), one.resolution, one.metric) for one in last.factors]
    between = [
        between_key(pair.first, pair.second, pair.resolution, one.name)
        for pair in last.between
        for one in last.metrics
        if one.name not in pair.incomparable
    ]
    return [*planned, *between, *trends, *factors]


def every_comparison(study: Study, out: Path) -> list[Key]:
    """Return the comparisons that share a study's error, which are planned or were in earlier interim analyses."""
    return every_key(made_looks(out), asked_of(study, metric_infos(study)))


def follow_runs(
    study: Study,
    runs: Runs,
    family: Sequence[Key],
    tried: Collection[tuple[str, int]] | None = None,
    metrics: Metrics | None = None,
    images: PerImage = NO_IMAGES,
    stored: StoredRuns = NO_RUNS,
) -> Standing:
    """Return the progress of a study with interim analyses. The comparisons in `family` share the study's error.

    A failed or diverged run counts as ended if `tried` contains its (arm, seed); by default, always.
    """
    assert isinstance(study.settings.seeds, SeedPlan)

    def ended(at_look: Study) -> bool:
        return all(
            run.state == "done" or (run.state != "missing" and (tried is None or (label, run.seed) in tried))
            for label, of_arm in _runs_of(at_look, runs).items()
            for run in of_arm
        )

    looks, known = planned_looks(study.settings.seeds), metrics or metric_infos(study)

    def compared(at_look: Study, look: Look) -> dict[Key, results.Comparison]:
        return compare_at(study, at_look, look, runs, known, images, family, stored)

    return follow(study, looks, compared, ended)


def compare_at(
    study: Study,
    at_look: Study,
    look: Look,
    runs: Runs,
    metrics: Metrics,
    images: PerImage,
    family: Sequence[Key],
    stored: StoredRuns = NO_RUNS,
) -> dict[Key, results.Comparison]:
    """Compare at an interim analysis; the comparisons of its `family` share the error of this analysis."""
    there = {arm.label for arm in at_look.arms}
    asked = {
        key: one
        for key, one in asked_of(study, metrics).items()
        if key in family and there.issuperset(one.contrast.weights)
    }
    read, settings = _runs_of(at_look, runs), study.settings
    return compare(
        _roles(at_look), read, metrics, asked, settings.primary, family, look.share, settings.analysis, images, stored
    )


def compare_fresh(study: Study, runs: Runs, keys: Sequence[Key]) -> dict[Key, results.Comparison]:
    """Compare the fresh runs of a replication, with a confidence of 90% for each single comparison.

    The first study predicted the sign of each difference, so each test is one-sided at 95%. The spread is pooled over
    all arms with fresh runs.
    """
    metrics = metric_infos(study)
    check_identities(runs)
    asked, roles, settings = asked_of(study, metrics), _roles(study), study.settings
    rows = dict[Key, results.Comparison]()
    for key in keys:
        rows |= compare(
            roles, runs, metrics, {key: asked[key]}, settings.primary, [key], ONE_SIDED, analysis=settings.analysis
        )
    return rows


def _roles(study: Study) -> dict[str, dict[str, results.Role]]:
    return {arms[0].resolution: {arm.label: arm.role for arm in arms} for arms in study.by_resolution()}


def _runs_of(study: Study, runs: Runs) -> dict[str, list[results.Run]]:
    """Return the runs whose seeds are among the seeds of the study's arms."""
    return {
        arm.label: [run for run in runs[arm.label] if run.seed in {plan.seed for plan in arm.plans}]
        for arm in study.arms
    }


def compare(
    arms: Mapping[str, Mapping[str, results.Role]],
    runs: Runs,
    metrics: Metrics,
    asked: Mapping[Key, Asked],
    primary: Collection[str],
    family: Collection[Key],
    share: float = 1.0,
    analysis: AnalysisSettings = DEFAULT,
    images: PerImage = NO_IMAGES,
    stored: StoredRuns = NO_RUNS,
) -> dict[Key, results.Comparison]:
    """Make the planned comparisons on all measured metrics. All comparisons of the `family` share the study's error.

    For each resolution, `arms` has the roles by label, with the baseline first. `share` is the fraction of the study's
    5% error for this interim analysis. `stored` runs are used for metrics in which they agree with own runs.
    """
    rows, sheets = dict[Key, results.Comparison](), _Sheets(arms, runs, metrics, asked, stored)
    weights = weights_of([key for key in dict.fromkeys(family) if is_tested(key.metric)], primary)
    judged = {key._replace(metric="") for key in family if key.kind in OF_TWO}
    for key, one in asked.items():
        matched = match(one, runs, key.metric)
        if isinstance(matched, str) or not (matched.differences or matched.lost):
            continue
        if not matched.differences:
            rows[key] = without_seeds(matched)
        elif not is_tested(key.metric):
            rows[key] = measured_row(matched)
        else:
            cells, meaning = sheets.of(key), metrics[key.metric]
            level, margin = confidence_of(share * weights[key]), analysis.margin_of(key.metric, meaning.margin)
            if not all(cells.values.get(label) for label in one.contrast.weights):
                continue
            collapse = sheets.collapse(one, primary) if key.kind in OF_TWO else None
            unstable = collapse is not None and collapse.p < UNSTABLE / len(judged)
            found = sheets.estimate(one, level)
            bare = without_bias(cells, runs, key.metric)
            unbiased = (bare, sheets.estimate(one, level, bare)) if bare else None
            rows[key] = tested_row(one, matched, found, cells, meaning, margin, collapse, unstable, unbiased)
            if rows[key].collapsed or rows[key].baseline_collapsed:
                whole = sheets.of(key, search=False)
                every = tested_row(one, matched, estimate(whole, one.contrast, level), whole, meaning, margin)
                note = "; ".join(filter(None, [rows[key].note, f"with collapsed runs: {every.verdict}"]))
                update = {"all_runs": every.interval, "all_runs_verdict": every.verdict, "note": note}
                rows[key] = rows[key].model_copy(update=update)
        if key.kind in OF_TWO:
            new, old = (runs[label] for label in one.contrast.weights)
            rows[key] = rows[key].model_copy(update={"sampling_error": _sampling_error(new, old, key.metric, images)})
    return rows


class _Sheets:
    """Cells of each metric, computed on demand for one resolution, or as ratios over all resolutions for a trend."""

    def __init__(
        self,
        arms: Mapping[str, Mapping[str, results.Role]],
        runs: Runs,
        metrics: Metrics,
        asked: Mapping[Key, Asked],
        stored: StoredRuns,
    ) -> None:
        self._arms, self._runs, self._metrics, self._asked, self._stored = arms, runs, metrics, asked, stored
        self._made: dict[tuple[str, bool, bool], dict[str, Cells]] = {}
        self._correlated: dict[Key, dict[str, Correlation]] = {}

    def of(self, key: Key, search: bool = True) -> Cells:
        """Return the cells (values by arm) of a comparison. If `search` is true, leave out collapsed runs."""
        if key.kind != "trend":
            return self._at(key.resolution, key.metric, False, search)
        sheets = {resolution: self._at(resolution, key.metric, True, search) for resolution in self._arms}
        return Cells(
            {label: of for one in sheets.values() for label, of in one.values.items()},
            RATIO,
            {label: plan for one in sheets.values() for label, plan in one.plans.items()},
            {label: resolution for resolution, one in sheets.items() for label in one.values},
            {label: some for one in sheets.values() for label, some in one.collapsed.items()},
            alike=min(one.alike for one in sheets.values()),
        )

    def _at(self, resolution: str, metric: str, ratios: bool, search: bool) -> Cells:
        place = resolution, ratios, search
        if place not in self._made:  # for all metrics: together they show how similar the arms' spreads are
            arms, stored = self._arms[resolution], () if ratios else self._stored.get(resolution, ())
            tested = {name: info for name, info in self._metrics.items() if is_tested(name)}
            sheets = {
                name: cells_of(arms, self._runs, name, info, ratios, agreeing(arms, self._runs, info, stored), search)
                for name, info in tested.items()
            }
            self._made[place] = with_alike(sheets)
        return self._made[place][metric]

    def estimate(self, one: Asked, level: float, cells: Cells | None = None) -> Estimate:
        """Estimate a comparison from its own or the given cells, paired by seed if this narrows the interval."""
        key, cells = one.key, cells or self.of(one.key)
        if key.kind not in ("arm", "between"):
            return estimate(cells, one.contrast, level)
        own, baseline = one.contrast.weights
        if (both := key._replace(metric="")) not in self._correlated:
            metrics = [
                other.metric
                for other in self._asked
                if other._replace(metric=key.metric) == key and is_tested(other.metric)
            ]
            sheets = {metric: self._at(key.resolution, metric, False, True) for metric in metrics}
            self._correlated[both] = correlations(sheets, own, baseline)
        return estimate_arm(cells, own, baseline, level, self._correlated[both].get(key.metric))

    def collapse(self, one: Asked, primary: Collection[str]) -> Collapse:
        """Count the collapsed runs of an arm and of its reference for a primary metric."""
        sheets = [self._at(one.key.resolution, metric, False, True) for metric in primary if metric in self._metrics]
        labels = [*self._arms[one.key.resolution], STORED]
        collapsed = {label: {seed for cells in sheets for seed in cells.collapsed.get(label, ())} for label in labels}
        runs = {label: {*collapsed[label], *(s for c in sheets for s in c.values.get(label, ()))} for label in labels}
        alike = [label for label in (*one.baselines, STORED) if label != one.own and label in labels]
        return Collapse(
            len(runs[one.own]),
            len(collapsed[one.own]),
            sum(len(runs[label]) for label in alike),
            sum(len(collapsed[label]) for label in alike),
            one.names[alike[0]] if one.key.kind == "between" else "the baseline",
        )


def agreeing(
    arms: Mapping[str, results.Role], runs: Runs, metric: results.MetricInfo, stored: Sequence[results.Run]
) -> Sequence[results.Run]:
    """Return the stored runs if they agree with the study's own runs for a metric; otherwise return no runs."""
    if not is_checked(metric.name, stored):
        return ()
    return stored if check_stored(arms, runs, metric.name, metric, stored).agrees else ()


def _sampling_error(
    new: Sequence[results.Run], old: Sequence[results.Run], metric: str, images: PerImage
) -> float | None:
    """Return the component of a mean difference's standard error that comes from sampling images.

    All runs use the same prompts and noises, so values per image are paired. Other metrics have independent means.
    """
    values = [
        [images.get(run.hash, {}).get(metric, []) for run in runs if metric in run.metrics] for runs in (new, old)
    ]
    if all(values) and len({len(one) for of_arm in values for one in of_arm}) == 1 and values[0][0]:
        mean_new_N, mean_old_N = (torch.from_numpy(np.array(of_arm, float)).mean(0) for of_arm in values)
        return mean_error(mean_new_N - mean_old_N)
    pairs = [(a.errors.get(metric), b.errors.get(metric)) for a, b in zip(new, old, strict=False)]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    return math.sqrt(sum(a * a + b * b for a, b in both)) / len(both) if both else None
