"""Trends: whether an arm helps more with more tokens.

Baselines of several resolutions differ in every metric, so an effect is taken relative to its own: log(arm / baseline),
seed by seed. A trend is that at the most tokens minus that at the fewest, and it is compared with zero like any
other difference of the study. Where a value is zero or below, a relative effect means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tintype.study import spread, stats
from tintype.study.pairs import Key, Pair, pair_runs
from tintype.study.results import RelativeEffect, Run, arm_label, worst_loss
from tintype.study.shared import two_sets

NOT_POSITIVE = "a value is not positive, so there is no relative effect"
NO_RUNS = "there are no runs to compare"
ANOTHER_SPACE = "another space"
UNPAIRED = "the control has seeds of its own, so it has no pairs"


@dataclass(frozen=True)
class Level:
    """An arm's and the baseline's runs at one resolution, seed by seed."""

    resolution: str
    new: Sequence[Run]
    old: Sequence[Run]
    fallen: Collection[int] = ()
    """Seeds of the arm's runs that fell off."""
    baseline_fallen: Collection[int] = ()
    """Seeds of the baseline's runs that fell off."""


def trend_key(arm: str, metric: str) -> Key:
    """Name a trend among a study's comparisons. No resolution can have this name, so no arm has this label."""
    return arm_label(arm, "more tokens"), metric


def relative_effect(level: Level, metric: str, shared_seeds: bool) -> RelativeEffect | None:
    """Return the arm's effect at one resolution; None where it is not defined or not measured.

    Where runs fell off it is that of the means of the others, without pairs, as in the verdict.
    """
    if level.fallen or level.baseline_fallen:
        sets = (_healthy(level.new, metric, level.fallen), _healthy(level.old, metric, level.baseline_fallen))
        pair = Pair(*sets, shared_seeds=False, complete=True)
    else:
        pair = pair_runs(level.new, level.old, metric, shared_seeds)
    if not pair.new or not pair.old or min(pair.new + pair.old) <= 0:
        return None
    new, old = ([math.log(value) for value in values] for values in (pair.new, pair.old))
    logs = Pair(new, old, pair.shared_seeds, pair.complete, scale=1.0)
    found = spread.difference(two_sets(logs), logs.scale)
    low, high = found.interval(stats.CONFIDENCE) or (None, None)
    value = fmean(logs.per_seed) if logs.shared_seeds else found.value
    return RelativeEffect(resolution=level.resolution, value=value, low=low, high=high)


def _healthy(runs: Sequence[Run], metric: str, fallen: Collection[int]) -> list[float]:
    """Return the value of each run that has one and did not fall off."""
    return [run.metrics[metric] for run in runs if run.loss(metric) is None and run.seed not in fallen]


def with_terms(pair: Pair, most: Pair, fewest: Pair) -> Pair:
    """Return the trend with what the shared method compares: the effects at the most and the fewest tokens.

    A run that fell off at either makes the trend unstable.
    """
    if not most.terms or not fewest.terms:
        return pair
    return replace(
        pair,
        terms=(*most.terms, *(term.times(-1) for term in fewest.terms)),
        fallen=tuple(dict.fromkeys((*most.fallen, *fewest.fallen))),
        baseline_fallen=tuple(dict.fromkeys((*most.baseline_fallen, *fewest.baseline_fallen))),
    )


def trend_pair(fewest: Level, most: Level, metric: str) -> Pair | str:
    """Pair the effects at the most tokens as new with those at the fewest as old; or say why there are none.

    A seed that lost one of its four runs leaves the comparison, which then has no verdict.
    """
    seeds = list(zip(most.new, most.old, fewest.new, fewest.old, strict=True))
    values = [[run.metrics.get(metric, math.nan) for run in runs] for runs in seeds]
    good = [four for four in values if all(map(math.isfinite, four))]
    loss = worst_loss((run for runs in seeds for run in runs), metric) or "incomplete"
    count = sum(any(run.loss(metric) == loss for run in runs) for runs in seeds)
    lost = "" if loss == "incomplete" else f"{loss} at {count} of {len(seeds)} seeds"
    if not good and not lost:
        return NO_RUNS
    if any(value <= 0 for four in good for value in four):
        return NOT_POSITIVE
    new = [math.log(arm / baseline) for arm, baseline, _, _ in good]
    old = [math.log(arm / baseline) for _, _, arm, baseline in good]
    return Pair(new, old, True, len(good) == len(values), scale=1.0, loss=loss, lost=lost)
