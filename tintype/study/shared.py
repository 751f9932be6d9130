"""Comparison of an arm with the baseline: unpaired means, a shared seed spread, intervals that hold together."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from statistics import fmean
from typing import overload

from tintype.evaluation.protocol import Definition
from tintype.study import results, spread, stats
from tintype.study.effect import Effect
from tintype.study.pairs import Pair, unit_of

MOST_SEEDS = 1_000
_SQUARED = 1e-100
"""Values below it, or above its inverse, are scaled to one: their squares would vanish or overflow."""
_LARGEST_LOG = 600.0
"""Bound of a logarithm: an interval of two seeds can reach beyond what a float holds."""


def measured_row(pair: Pair) -> results.Comparison:
    scaled, unit = pair.in_unit()
    return results.Comparison(
        mean=unit * fmean(scaled.new),
        baseline_mean=unit * fmean(scaled.old),
        differences=pair.per_seed,
        difference=unit * (fmean(scaled.new) - fmean(scaled.old)),
        verdict="measured" if pair.complete else pair.loss,
        lost=pair.lost,
    )


def shared_row(
    pair: Pair, meaning: Definition | results.MetricInfo, confidence: float, margin: Effect
) -> results.Comparison:
    """Compare on the scale of the terms, and write the result in the metric's unit."""
    pair = pair if pair.terms else replace(pair, terms=two_sets(pair))
    unit = 1.0 if pair.log else unit_of(max(term.groups.largest for term in pair.terms))
    if not _SQUARED < unit < 1 / _SQUARED:
        pair = replace(pair, terms=tuple(term.scaled(1 / unit) for term in pair.terms))
    else:
        unit = 1.0
    terms = pair.terms
    found = spread.difference(terms, pair.scale / unit)
    mean = terms[0].value if len(terms) > 1 else terms[0].first_mean
    if pair.level is not None:
        mean = pair.level / unit + found.value
    ratios_to = math.exp(max(term.second_mean for term in terms)) if len(terms) > 1 else None
    scale = _Scale(mean - found.value, unit, pair.log, ratios_to)
    low, high = found.interval(confidence) or (None, None)
    reach = scale.reach(margin)
    verdict = _verdict(pair, found, (low, high), reach, meaning)
    seeds = min(term.fewest for term in terms)
    return results.Comparison(
        mean=scale.value(mean),
        baseline_mean=scale.value(scale.old),
        differences=pair.per_seed,
        difference=scale.difference(found.value),
        low=scale.difference(low),
        high=scale.difference(high),
        p=found.p,
        p_adjusted=None
        if found.p is None or not pair.complete
        else min(1.0, found.p * (1 - stats.CONFIDENCE) / (1 - confidence)),
        detectable=scale.difference(found.detectable(confidence)),
        verdict=verdict,
        lost=pair.lost,
        scale="log" if pair.log else "raw",
        level=confidence,
        margin=scale.difference(reach),
        corrected=scale.difference(_corrected(found, high)) if verdict in ("better", "worse") else None,
        seeds_needed=_seeds_needed(found, seeds, confidence, reach) if verdict == "undecided" else None,
        fallen=list(pair.fallen),
        baseline_fallen=list(pair.baseline_fallen),
        note=_note(pair),
    )


@dataclass(frozen=True)
class _Scale:
    """The way back from the scale of a comparison to the metric's unit."""

    old: float
    """The baseline's mean on the scale; of a trend, the effect at the fewest tokens."""
    unit: float
    log: bool
    ratios_to: float | None = None
    """The largest baseline that the ratios of a trend are to; None of any other comparison."""

    def value(self, on_scale: float) -> float:
        return math.exp(on_scale) if self.log else self.unit * on_scale

    @overload
    def difference(self, on_scale: float) -> float: ...

    @overload
    def difference(self, on_scale: None) -> None: ...

    def difference(self, on_scale: float | None) -> float | None:
        if on_scale is None:
            return None
        return math.exp(self.old) * math.expm1(min(on_scale, _LARGEST_LOG)) if self.log else self.unit * on_scale

    def reach(self, margin: Effect) -> float:
        """Return the margin on the scale. Trends are differences of logarithms, so theirs is a ratio."""
        if self.ratios_to is not None:
            return math.log1p(margin.on(self.ratios_to) / self.ratios_to)
        size = margin.on(self.value(self.old))
        return math.log1p(size / math.exp(self.old)) if self.log else size / self.unit


def two_sets(pair: Pair) -> tuple[spread.Term]:
    sets = {"arm": dict(enumerate(pair.new)), "baseline": dict(enumerate(pair.old))}
    return (spread.against(spread.Groups(sets, {}), "arm", ["baseline"]),)


def _corrected(found: stats.Difference, high: float | None) -> float | None:
    if not found.error or high is None:
        return None
    return stats.corrected_for_selection(found.value, found.error, high - found.value)


def _verdict(
    pair: Pair,
    found: stats.Difference,
    interval: tuple[float | None, float | None],
    reach: float,
    meaning: Definition | results.MetricInfo,
) -> results.Verdict:
    low, high = interval
    if not pair.complete:
        return pair.loss
    if found.error is None:
        return "sketch"
    if low is None or high is None:
        return "identical" if pair.same else "no spread"
    if pair.fallen or pair.baseline_fallen:
        return "unstable"
    if -reach <= low and high <= reach:
        return "same"
    if low <= 0 <= high:
        return "undecided"
    return "better" if (found.value < 0) == (meaning.direction == "lower") else "worse"


def _seeds_needed(found: stats.Difference, seeds: int, confidence: float, reach: float) -> int | None:
    """Return the seeds that would decide if nothing but their number changed; None where a thousand would not."""
    error, freedom, size = found.error, found.freedom, abs(found.value)
    if not error or freedom is None:
        return None

    def decides(count: int) -> bool:
        grown = count / seeds
        half = stats.t_quantile(freedom * grown, confidence) * error / math.sqrt(grown)
        return size > half or size + half <= reach

    tried = range(seeds, MOST_SEEDS + 1)
    place = bisect_left(tried, True, key=decides)
    return tried[place] if place < len(tried) else None


def _note(pair: Pair) -> str:
    apart = sorted({arm for term in pair.terms for arm in term.stands_out})
    notes = [f"the seed spread of {', '.join(apart)} stands out, so its own is used"] if apart else []
    if pair.baseline_fallen:
        notes.append(f"runs of the baseline fell off (seed {', '.join(map(str, pair.baseline_fallen))})")
    return "; ".join(notes)
