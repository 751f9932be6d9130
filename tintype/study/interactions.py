"""Main effects and interactions of factorial arms: contrasts of the means of several arms, and their verdicts.

A contrast is compared with zero like any other difference of the study, on the metric's scale: logarithms for distances
and losses, so that effects add up where their ratios multiply, and plain values for shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from tintype.seams import Direction
from tintype.study.factorial import Contrast
from tintype.study.groups import MetricGroups
from tintype.study.pairs import Key, Pair
from tintype.study.results import Comparison, FactorVerdict, Run, arm_label, lost_words, worst_loss
from tintype.study.spread import Term

_VERDICTS: dict[str, FactorVerdict] = {
    "better": "reinforces",
    "same": "adds up",
    "identical": "adds up",
}
"""Verdicts on an interaction by those on the difference; all others but `worse` keep their name."""


def factor_key(contrast: Contrast, resolution: str, metric: str) -> Key:
    """Name a contrast among a study's comparisons. No resolution can have this name, so no arm has this label."""
    return arm_label(" × ".join(contrast.parts), f"factors {resolution}".strip()), metric


def factor_pair(
    contrast: Contrast, runs: Mapping[str, Sequence[Run]], metric: str, groups: MetricGroups, labels: Mapping[str, str]
) -> Pair:
    """Pair the baseline's value plus the contrast, as new, with the baseline's, seed by seed.

    `runs` and `labels` are by the arm's name, '' for the baseline. A seed that lost one of its runs leaves the pairs,
    and the comparison then has no verdict.
    """
    weighed = {name: runs[name] for name in contrast.weights}
    values = {name: {run.seed: run.metrics.get(metric, math.nan) for run in of} for name, of in weighed.items()}
    seeds = [seed for seed in values[""] if all(seed in of for of in values.values())]
    whole = [seed for seed in seeds if all(math.isfinite(of[seed]) for of in values.values())]
    old = [values[""][seed] for seed in whole]
    new = [
        base + math.fsum(weight * values[name][seed] for name, weight in contrast.weights.items())
        for seed, base in zip(whole, old, strict=True)
    ]
    pair = Pair(
        new,
        old,
        shared_seeds=True,
        complete=len(whole) == len(seeds),
        scale=max((abs(of[seed]) for of in values.values() for seed in whole), default=0.0),
        loss=worst_loss((run for of in weighed.values() for run in of), metric) or "incomplete",
        lost=lost_words(metric, {name or "baseline": of for name, of in weighed.items()}),
    )
    return _with_term(pair, contrast, groups, labels)


def _with_term(pair: Pair, contrast: Contrast, groups: MetricGroups, labels: Mapping[str, str]) -> Pair:
    """Return the pair with what the shared method compares; the baseline's weight is shared by all runs of its plan."""
    healthy = groups.healthy.values
    if not all(healthy.get(labels[name]) for name in contrast.weights):
        return pair
    weights = {labels[name]: weight for name, weight in contrast.weights.items() if name}
    known = {label: len(healthy[label]) for label in groups.baselines if healthy.get(label)}
    shares = {label: count / sum(known.values()) for label, count in known.items()}
    weights |= {label: contrast.weights[""] * share for label, share in shares.items()}
    level = math.fsum(share * fmean(healthy[label].values()) for label, share in shares.items())
    arms = [label for label in weights if label not in groups.baselines]
    fallen, of_baseline = (
        tuple(dict.fromkeys(seed for label in some for seed in groups.fallen.get(label, ())))
        for some in (arms, groups.baselines)
    )
    term = Term(groups.healthy, weights)
    return replace(pair, terms=(term,), log=groups.log, level=level, fallen=fallen, baseline_fallen=of_baseline)


def means_of(contrast: Contrast, groups: MetricGroups, labels: Mapping[str, str]) -> dict[str, float]:
    """Return the mean of each arm of a contrast in the metric's unit.

    It is geometric where logarithms are compared, and the baseline's is over the control's runs too.
    """
    found = {name: list(groups.healthy.values.get(labels[name], {}).values()) for name in contrast.weights}
    if found.get(""):
        found[""] = [value for label in groups.baselines for value in groups.healthy.values.get(label, {}).values()]
    means = {name: fmean(of) for name, of in found.items() if of}
    return {name: math.exp(mean) for name, mean in means.items()} if groups.log else means


def expected_mean(contrast: Contrast, means: Mapping[str, float], log: bool) -> float | None:
    """Return the mean of the combination if its parts added up; None of a main effect, or where a mean is missing."""
    if not contrast.is_interaction or any(name not in means for name in contrast.weights):
        return None
    first, second, base = means[contrast.parts[0]], means[contrast.parts[1]], means[""]
    return first * second / base if log else first + second - base


def factor_verdict(
    contrast: Contrast, row: Comparison, means: Mapping[str, float], direction: Direction
) -> FactorVerdict:
    """Return the verdict on a contrast: of an interaction, whether its parts add up.

    A combination that falls short of the sum of its parts cancels them where its mean is no better than that of the
    best of its parts or the baseline, and else overlaps.
    """
    if not contrast.is_interaction:
        return row.verdict
    if row.verdict != "worse":
        return _VERDICTS.get(row.verdict, row.verdict)
    sign = 1.0 if direction == "higher" else -1.0
    both = next(iter(contrast.weights))
    best = max(sign * means[name] for name in contrast.weights if name != both)
    return "overlaps" if sign * means[both] > best else "cancels"
