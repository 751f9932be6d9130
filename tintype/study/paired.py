"""Comparison by the paired method: each arm by itself, seed by seed; Holm's method corrects all p values together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from tintype.errors import UserError
from tintype.evaluation.protocol import Definition
from tintype.study import results, spread, stats
from tintype.study.analysis import AnalysisSettings
from tintype.study.pairs import Key, Pair, without_seeds
from tintype.study.shared import two_sets
from tintype.study.shares import Counts, confidence_of, weights_of


def compare_paired(
    pairs: Mapping[Key, Pair],
    meanings: Mapping[str, Definition | results.MetricInfo],
    primary: Collection[str],
    analysis: AnalysisSettings,
    family: Sequence[Key],
    share: float,
) -> dict[Key, results.Comparison]:
    """Compare seed by seed; correct all p values together, by Holm's weighted method."""
    scaled = {key: pair.in_unit() for key, pair in pairs.items() if pair.new}
    differences = {key: pair.difference for key, (pair, _) in scaled.items()}
    p_values = {key: p for key, (pair, _) in scaled.items() if (p := _p(pair, differences[key], analysis)) is not None}
    weights = weights_of(family, primary)
    whole = {key: p / share for key, p in p_values.items() if pairs[key].complete}
    corrected = stats.holm([whole.get(key, 1.0) for key in family], [weights[key] for key in family])
    adjusted = {key: p for key, p in zip(family, corrected, strict=True) if key in whole}
    rows = {key: without_seeds(pair) for key, pair in pairs.items() if not pair.new}
    for key, (pair, unit) in scaled.items():
        one = differences[key]
        low, high = interval_of(pair, analysis) or (None, None)
        detectable = _detectable(pair, one, share * weights[key], analysis) if key in p_values else None
        rows[key] = results.Comparison(
            mean=unit * fmean(pair.new),
            baseline_mean=unit * fmean(pair.old),
            differences=pairs[key].per_seed,
            difference=unit * one.value,
            low=None if low is None else unit * low,
            high=None if high is None else unit * high,
            p=p_values.get(key),
            p_adjusted=adjusted.get(key),
            detectable=None if detectable is None else unit * detectable,
            verdict=_verdict(pair, one, adjusted.get(key), meanings[key[1]]),
            test=used_test(pair.shared_seeds, analysis),
            interval=used_interval(pair.shared_seeds, analysis),
            lost=pair.lost,
        )
    return rows


def used_test(shared_seeds: bool, analysis: AnalysisSettings) -> results.TestName:
    if analysis.test == "permutation":
        return "sign-flip permutation" if shared_seeds else "label permutation"
    return "paired Student" if shared_seeds else "Welch"


def used_interval(shared_seeds: bool, analysis: AnalysisSettings) -> results.IntervalName:
    if analysis.interval == "bootstrap":
        return "bootstrap"
    return "Student" if shared_seeds else "Welch"


def _p(pair: Pair, difference: stats.Difference, analysis: AnalysisSettings) -> float | None:
    """Return the p value of the chosen test; None without a seed spread, whatever the test."""
    if analysis.test == "student" or not difference.error:
        return difference.p
    if pair.shared_seeds:
        return stats.sign_flip_p(pair.per_seed, pair.rounding)
    return stats.label_p(pair.new, pair.old, pair.rounding)


def interval_of(pair: Pair, analysis: AnalysisSettings) -> tuple[float, float] | None:
    """Return the 95% interval of a single comparison."""
    if analysis.method == "shared":
        return spread.difference(pair.terms or two_sets(pair), pair.scale).interval(stats.CONFIDENCE)
    if analysis.interval == "student":
        return pair.difference.interval(stats.CONFIDENCE)
    return stats.bootstrap_interval(pair.new, pair.old, pair.shared_seeds, stats.CONFIDENCE)


def _detectable(pair: Pair, difference: stats.Difference, weight: float, analysis: AnalysisSettings) -> float | None:
    """Return the difference found with a power of 80% at the level that Holm's first step gives this comparison."""
    if analysis.test == "student":
        return difference.detectable(confidence_of(weight))
    reach = stats.permutation_detectable(len(pair.new), pair.shared_seeds, confidence_of(weight))
    return None if reach is None or difference.error is None else reach * difference.error


def _verdict(
    pair: Pair, difference: stats.Difference, p_adjusted: float | None, meaning: Definition | results.MetricInfo
) -> results.Verdict:
    if not pair.complete:
        return pair.loss
    if difference.error is None:
        return "sketch"
    if p_adjusted is None:
        return "identical" if pair.same else "no spread"
    if p_adjusted >= 1 - stats.CONFIDENCE:
        return "undecided"
    return "better" if (difference.value < 0) == (meaning.direction == "lower") else "worse"


def check_seeds(seeds: int, counts: Counts, analysis: AnalysisSettings) -> None:
    """Refuse an analysis that needs more seeds. One seed is a sketch, which is not analysed."""
    if seeds == 1 or counts.all == 0 or analysis.method == "shared":
        return
    if analysis.interval == "bootstrap" and seeds < stats.BOOTSTRAP_SEEDS:
        raise UserError(
            f"analysis.interval: a bootstrap interval needs at least {stats.BOOTSTRAP_SEEDS} seeds, and the study has "
            f"{seeds}: resamples of so few often hold one seed only. Give more seeds, or set interval: student"
        )
    effective = 1 / counts.weight(primary=True)
    smallest = stats.smallest_permutation_p(seeds, effective)
    if analysis.test == "permutation" and smallest >= 1 - stats.CONFIDENCE:
        needed = stats.seeds_for_permutation(effective)
        more = f"Give {needed} seeds" if needed else "Ask fewer primary metrics or arms, as no number of seeds can"
        raise UserError(
            f"analysis.test: a permutation test of {seeds} seeds can never give a verdict. It knows {2**seeds} "
            f"patterns of signs, so its smallest p is {stats.smallest_permutation_p(seeds):.2g}, and after the "
            f"correction for {counts.primary} comparisons on the primary metrics {smallest:.2g}. {more}, or set "
            "test: student"
        )
