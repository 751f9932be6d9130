"""Compute the verdicts of a study from the difference of each contrast and its interval.

The interval uses the comparison's share of the study's error, so the interval is the test. The verdict is better or
worse if the interval excludes zero, same if it lies within the margin, and undecided otherwise. One share of error
covers both claims (a difference, or same), since at most one of them can be false for any true difference. If all seeds
differ by the same amount, the spread cannot be measured: there is no p and no interval. The verdict is then "no
spread", or "identical" if the amount is zero. The throughput is only measured, and not tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import overload

from tintype.study.contrasts import Asked
from tintype.study.effect import Effect
from tintype.study.results import Comparison, Interval, Loss, MetricInfo, Role, Run, Verdict, lost_words, worst_loss
from tintype.study.stats.cells import LOG, Cells, rounding_of, scale_for
from tintype.study.stats.collapse import collapse_p, collapsed_runs
from tintype.study.stats.estimate import CONFIDENCE, Estimate

NOT_POSITIVE = "a value is not positive, so there is no relative effect"
NO_RUNS = "there are no runs to compare"
STORED = "stored runs"
"""Label of baseline runs that come from other studies."""


def cells_of(
    arms: Mapping[str, Role],
    runs: Mapping[str, Sequence[Run]],
    metric: str,
    meaning: MetricInfo,
    ratios: bool = False,
    stored: Sequence[Run] = (),
    search: bool = True,
) -> Cells:
    """Return a metric's cells by label for the arms of one resolution, with the baseline first.

    For `ratios` to the baseline, arms with zero or negative values are left out. The `stored` baseline runs come from
    other studies. Collapsed runs are left out, unless `search` is None.
    """
    values = {label: _finite(runs[label], metric) for label in arms}
    baseline, *controls = (label for label, role in arms.items() if role != "arm")
    if stored:
        values[STORED] = _finite(stored, metric)
    if ratios:
        values = {label: of for label, of in values.items() if all(value > 0 for value in of.values())}
    sets = [list(of.values()) for of in values.values()]
    scale = LOG if ratios else scale_for(meaning.scale or "raw", sets, meaning.pad)
    placed = {label: {seed: scale.place(value) for seed, value in of.items()} for label, of in values.items()}
    plans = dict.fromkeys([*controls, *([STORED] if stored else [])], baseline)
    cells = Cells(placed, scale, plans, stored=len(values.get(STORED, ())))
    if not search:
        return cells
    collapsed = {label: some for label in values if (some := collapsed_runs(cells, label, meaning.direction))}
    return replace(cells.without(collapsed), collapsed=collapsed)


def without_bias(cells: Cells, runs: Mapping[str, Sequence[Run]], metric: str) -> Cells | None:
    """Return cells of logarithms without each run's sampling bias; None if the bias of a run is unknown.

    If a bias exceeds the run's value, no logarithm exists: values are compared raw, and ratios not at all.
    """
    if cells.scale.kind not in ("log", "ratio"):
        return None
    biases = {(label, run.seed): run.biases.get(metric) for label, some in runs.items() for run in some}
    left: dict[str, dict[int, float]] = {}
    for label, of in cells.values.items():
        for seed, place in of.items():
            if (bias := biases.get((label, seed))) is None:
                return None
            left.setdefault(label, {})[seed] = math.exp(place) - bias
    scale = scale_for("log", [list(of.values()) for of in left.values()])
    if cells.scale.kind == "ratio" and scale.kind != "log":
        return None
    placed = {label: {seed: scale.place(value) for seed, value in of.items()} for label, of in left.items()}
    return replace(cells, values=placed, scale=scale if cells.scale.kind == "log" else cells.scale)


def _finite(runs: Sequence[Run], metric: str) -> dict[int, float]:
    values = {run.seed: run.metrics.get(metric, math.nan) for run in runs if run.loss(metric) is None}
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


@dataclass(frozen=True)
class Matched:
    """The runs of a contrast, seed by seed. A seed is left out if one of its runs was lost."""

    old: list[float]
    """Value of the contrast's reference for each seed; for a trend, as a logarithm."""
    differences: list[float]
    """Value of the contrast for each seed."""
    complete: bool
    loss: Loss
    """The reason why seeds are missing, if the comparison is incomplete."""
    lost: str
    """See `Comparison.lost`."""
    same: bool
    """Whether all differences are zero, except for rounding."""


def match(asked: Asked, runs: Mapping[str, Sequence[Run]], metric: str) -> Matched | str:
    """Match the runs of a contrast by seed, or return the reason why a trend is not defined.

    The control's seeds are matched by order; each of its runs is compared with the baseline's mean.
    """
    weights, reference = asked.contrast.weights, asked.contrast.reference
    own, *others = weights
    by_seed = {label: {run.seed: run for run in runs[label]} for label in weights}
    if asked.key.kind == "control":
        by_seed[others[0]] = dict(zip(by_seed[own], runs[others[0]], strict=False))
    seeds = [seed for seed in by_seed[own] if all(seed in by_seed[label] for label in others)]
    matched = {label: [by_seed[label][seed] for seed in seeds] for label in weights}
    loss = worst_loss((run for of in matched.values() for run in of), metric) or "incomplete"
    lost = lost_words(metric, {asked.names[label]: of for label, of in matched.items()})

    # Values of the seeds that have all of their runs.
    whole = [seed for seed in seeds if all(by_seed[label][seed].loss(metric) is None for label in weights)]
    values = {label: [by_seed[label][seed].metrics[metric] for seed in whole] for label in weights}
    if asked.key.kind == "trend":
        if not whole and not lost:
            return NO_RUNS
        done = [run for of in matched.values() for run in of if run.loss(metric) is None]
        if any(run.metrics[metric] <= 0 for run in done):
            return NOT_POSITIVE
        values = {label: [math.log(value) for value in of] for label, of in values.items()}

    def weighed(by: Mapping[str, float]) -> list[float]:
        sets = [[weight * value for value in values[label]] for label, weight in by.items()]
        return [sum(of_seed) for of_seed in zip(*sets, strict=True)]  # fsum would raise on overflow

    old, differences = weighed(reference), weighed(weights)
    if asked.key.kind == "control" and whole:
        centre = fmean(old)
        differences = [value - centre for value in values[own]]
    known = [value for of in values.values() for value in of]
    rounding = rounding_of(known, 1.0 if asked.key.kind == "trend" else 0.0)
    same = all(abs(one) <= rounding for one in differences)
    return Matched(old, differences, len(whole) == len(seeds), loss, lost, same)


def without_seeds(matched: Matched) -> Comparison:
    """Return the comparison of an arm for which no seed is left to compare."""
    nothing = dict.fromkeys(("mean", "baseline_mean", "difference"), math.nan)
    return Comparison(**nothing, differences=[], verdict=matched.loss, lost=matched.lost)


def measured_row(matched: Matched) -> Comparison:
    """Return a comparison that was not tested."""
    old, difference = fmean(matched.old), fmean(matched.differences)
    return Comparison(
        mean=old + difference,
        baseline_mean=old,
        differences=matched.differences,
        difference=difference,
        verdict="measured" if matched.complete else matched.loss,
        lost=matched.lost,
    )


@dataclass(frozen=True)
class Collapse:
    """The collapsed runs of an arm and its reference, on any primary metric."""

    runs: int
    collapsed: int
    baseline_runs: int
    baseline_collapsed: int
    against: str = "the baseline"

    @property
    def p(self) -> float:
        return collapse_p(self.collapsed, self.runs, self.baseline_collapsed, self.baseline_runs)

    @property
    def words(self) -> str:
        return (
            f"{self.collapsed} of {self.runs} runs collapsed; of {self.against}'s, {self.baseline_collapsed} of "
            f"{self.baseline_runs}"
        )


def tested_row(
    asked: Asked,
    matched: Matched,
    found: Estimate,
    cells: Cells,
    meaning: MetricInfo,
    margin: Effect,
    collapse: Collapse | None = None,
    unstable: bool = False,
    unbiased: tuple[Cells, Estimate] | None = None,
) -> Comparison:
    """Return an estimate in the metric's unit, with its verdict.

    If `unstable`, a test shows that the arm collapses more often than the baseline. `unbiased` is the comparison
    without sampling bias. For the verdict "same", both intervals must lie within the margin.
    """
    scale, old = cells.scale, found.old
    low, high = found.interval or (None, None)
    reach = _margin_on_scale(asked, cells, old, margin)
    healthy, of_bias = _verdict(found, matched, reach, meaning), ""
    needed = found.seeds_needed(reach) if healthy == "undecided" else None
    strict, strict_reach = found, reach
    if unbiased:
        bare, strict = unbiased
        within = bare.scale.kind == "raw" and strict.old <= 0  # of a baseline within its bias there is no share
        strict_reach = 0.0 if within else _margin_on_scale(asked, bare, strict.old, margin)
        said = _verdict(strict, matched, strict_reach, meaning)
        if healthy in ("better", "worse", "same") and said != healthy:
            change = bare.scale.difference(strict.old, strict.value)
            of_bias = f"without the bias of finite sets of images the difference is {change:+.2g}: {said}"
            needed = strict.seeds_needed(strict_reach) if said == "undecided" else None
            healthy = "undecided" if healthy == "same" else healthy
    own = {asked.own, STORED}  # a stored run is named by no seed of the study
    of_baseline = [arm for arm in cells.values if cells.plan_of(arm) in asked.baselines and arm not in own]
    seeds = {arm: cells.collapsed.get(arm, ()) for arm in {**asked.contrast.weights, **dict.fromkeys(of_baseline)}}
    collapsed = dict.fromkeys(seed for arm, some in seeds.items() if arm not in of_baseline for seed in some)
    baseline_collapsed = dict.fromkeys(seed for arm in of_baseline for seed in seeds[arm])
    verdict = "unstable" if unstable and collapsed and matched.complete else healthy

    @overload
    def units(change: float) -> float: ...
    @overload
    def units(change: None) -> None: ...
    def units(change: float | None) -> float | None:
        return None if change is None else scale.difference(old, change)

    corrected = found.corrected if healthy in ("better", "worse") else None
    return Comparison(
        mean=scale.value(old + found.value),
        baseline_mean=scale.value(old),
        differences=matched.differences,
        difference=units(found.value),
        low=units(low),
        high=units(high),
        p=found.p,
        p_adjusted=None
        if found.p is None or not matched.complete
        else min(1.0, found.p * (1 - CONFIDENCE) / (1 - found.level)),
        detectable=None if found.detectable is None else scale.size(old, found.detectable),
        verdict=verdict,
        lost=matched.lost,
        scale=scale.kind,
        level=found.level,
        margin=scale.size(old, reach),
        corrected=corrected and Interval(value=units(corrected[0]), low=units(corrected[1]), high=units(corrected[2])),
        correlation=found.correlation,
        margin_seeds=strict.seeds_for_same(strict_reach) if meaning.margin else None,
        seeds_needed=needed if healthy == "undecided" else None,
        collapsed=list(collapsed),
        baseline_collapsed=list(baseline_collapsed),
        collapse_p=collapse.p if collapse and collapsed else None,
        healthy_verdict=healthy if verdict == "unstable" else None,
        note=_note(found, collapse if collapsed or baseline_collapsed else None, unstable, of_bias),
    )


def _margin_on_scale(asked: Asked, cells: Cells, old: float, margin: Effect) -> float:
    """Return the margin as a change on the scale, the smaller of two sides; for a trend, at its largest baseline."""
    scale = cells.scale
    if asked.key.kind == "trend":
        old, scale = max(cells.mean_of_plan(arm) for arm in asked.contrast.weights if arm in asked.baselines), LOG
    return scale.margin(old, margin.on(scale.value(old)))


def _verdict(found: Estimate, matched: Matched, reach: float, meaning: MetricInfo) -> Verdict:
    if not matched.complete:
        return matched.loss
    if found.error is None:
        return "sketch"
    if found.interval is None:
        return "identical" if matched.same else "no spread"
    said = found.says(reach)
    if said in ("same", "undecided"):
        return "same" if said == "same" else "undecided"
    return "better" if (said == "above") == (meaning.direction == "higher") else "worse"


def _note(found: Estimate, collapse: Collapse | None, unstable: bool, of_bias: str) -> str:
    apart = sorted(set(found.stands_out))
    notes = [f"the seed spread of {', '.join(apart)} stands out, so mostly its own is used"] if apart else []
    if collapse and not unstable:
        notes.append(collapse.words)
    if of_bias:
        notes.append(of_bias)
    return "; ".join(notes)
