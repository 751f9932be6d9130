"""Verdicts of a study: each arm's difference from the baseline, its interval, its test, and the correction of p values.

A study makes many comparisons, and the chance of any false verdict in the whole study is kept to 5%. The comparisons
on the primary metrics share four fifths of that, those on all other metrics one fifth, and Holm's step-down method
corrects all of them together: the share of a comparison that reached a verdict passes to those that are left. Two
families of 5% each would nearly double the chance, and one family would let the many other metrics take the primary
ones' power (docs/statistics.md has the simulation).

The correction counts the comparisons that the study planned. One that is not measured yet counts with p = 1, so a
verdict stays when the rest comes in. So does one whose seeds all differ by the same amount: its seed spread is not
measurable, so it has no p, no interval and no verdict but "no spread", or "identical" where the amount is zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from markupsafe import Markup
from pydantic import Field

from tintype.errors import UserError
from tintype.evaluation.protocol import Definition
from tintype.page.template import template
from tintype.settings import Settings
from tintype.study import results, stats

PRIMARY_SHARE = 0.8
"""The part of the study's 5% that the comparisons on primary metrics share."""

Key = tuple[str, str]
"""(arm's label, metric)."""


class AnalysisSettings(Settings):
    """The test and the interval of differences. docs/statistics.md says when to choose which."""

    test: Literal["student", "permutation"] = Field(
        "student", description="permutation needs no normal spread, but many more seeds"
    )
    interval: Literal["student", "bootstrap"] = Field(
        "student", description="bootstrap needs no normal spread, but at least five seeds"
    )


DEFAULT = AnalysisSettings()


@dataclass(frozen=True)
class Pair:
    """The values of one metric in an arm and in the baseline, seed by seed where the seeds are shared."""

    new: list[float]
    old: list[float]
    shared_seeds: bool
    complete: bool
    scale: float = 0.0
    """See `stats.rounding_of`."""
    loss: results.Loss = "incomplete"
    """Why seeds are missing where the comparison is not complete."""
    lost: str = ""
    """See `Comparison.lost`."""

    @property
    def difference(self) -> stats.Difference:
        return (stats.paired if self.shared_seeds else stats.unpaired)(self.new, self.old, self.scale)

    @property
    def rounding(self) -> float:
        return stats.rounding_of([*self.new, *self.old], self.scale)

    @property
    def same(self) -> bool:
        """Return whether the arm and the baseline have the same values, up to rounding."""
        return all(abs(one) <= self.rounding for one in self.per_seed)

    def in_unit(self) -> tuple[Pair, float]:
        """Return the pair scaled to values of size one, and the power of two that scales them back.

        Squares of huge values overflow and those of tiny ones vanish; a power of two changes no digit.
        """
        largest = max(map(abs, (*self.new, *self.old)))
        unit = 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0
        new, old = ([value / unit for value in values] for values in (self.new, self.old))
        return replace(self, new=new, old=old, scale=self.scale / unit), unit

    @property
    def per_seed(self) -> list[float]:
        """Return one difference for each seed; without pairs, from the baseline's mean."""
        partners = self.old if self.shared_seeds else [fmean(self.old)] * len(self.new)
        return [new - old for new, old in zip(self.new, partners, strict=True)]


def pair_runs(new: Sequence[results.Run], old: Sequence[results.Run], metric: str, shared_seeds: bool) -> Pair:
    """Pair the values of an arm's and the baseline's runs; a run without a value is left out with its partner."""
    values = [(a.metrics.get(metric, math.nan), b.metrics.get(metric, math.nan)) for a, b in zip(new, old, strict=True)]
    good = [(a, b) for a, b in values if math.isfinite(a) and math.isfinite(b)]
    return Pair(
        [a for a, _ in good],
        [b for _, b in good],
        shared_seeds,
        len(good) == len(values),
        loss=results.worst_loss([*new, *old], metric) or "incomplete",
        lost=results.lost_words(metric, {"": new, "baseline": old}),
    )


@dataclass(frozen=True)
class Counts:
    """Numbers of comparisons of a study, on its primary metrics and on all others."""

    primary: int
    others: int

    @property
    def all(self) -> int:
        return self.primary + self.others

    def weight(self, primary: bool) -> float:
        """Return each comparison's share of the study's 5%; the same for all where there is one kind only."""
        share = PRIMARY_SHARE if primary else 1 - PRIMARY_SHARE
        return (share if self.primary and self.others else 1.0) / (self.primary if primary else self.others)


def count_comparisons(
    arms: int, control: bool, resolutions: int, primary: Sequence[str], metrics: int, contrasts: int = 0
) -> Counts:
    """Count the comparisons of a study. `arms` does not count the control; `metrics` counts all of them.

    With several resolutions, each arm's trend over them is one more comparison for each of `trend_metrics`; each of the
    `contrasts` between factorial arms is one for each primary metric, at each resolution.
    """
    compared = resolutions * (arms + control)
    trends = arms if resolutions > 1 else 0
    others = compared * (metrics - len(primary)) + trends * (len(trend_metrics(primary)) - len(primary))
    return Counts((compared + trends + resolutions * contrasts) * len(primary), others)


def trend_metrics(primary: Sequence[str]) -> list[str]:
    """Return the metrics that are compared between resolutions: the primary ones and the throughput."""
    return list(dict.fromkeys([*primary, results.SPEED]))


def weights_of(keys: Collection[Key], primary: Collection[str]) -> dict[Key, float]:
    """Return each comparison's share of the study's 5%; they sum to one. The keys are all planned comparisons."""
    counts = counts_of(keys, primary)
    return {key: counts.weight(key[1] in primary) for key in keys}


def counts_of(keys: Collection[Key], primary: Collection[str]) -> Counts:
    asked = sum(metric in primary for _, metric in keys)
    return Counts(asked, len(keys) - asked)


def compare(
    pairs: Mapping[Key, Pair],
    meanings: Mapping[str, Definition | results.MetricInfo],
    primary: Collection[str] = (),
    analysis: AnalysisSettings = DEFAULT,
    planned: Collection[Key] | None = None,
    share: float = 1.0,
) -> dict[Key, results.Comparison]:
    """Compare all (arm, metric) pairs of a study; correct their p values together, by Holm's weighted method.

    `planned` are all comparisons that the study is to make; by default those that are given. `share` is the part of
    the study's error that this look at it may spend.
    """
    family = dict.fromkeys(pairs if planned is None else planned)
    scaled = {key: pair.in_unit() for key, pair in pairs.items() if pair.new}
    differences = {key: pair.difference for key, (pair, _) in scaled.items()}
    p_values = {key: p for key, (pair, _) in scaled.items() if (p := _p(pair, differences[key], analysis)) is not None}
    weights = weights_of(family, primary)
    whole = {key: p for key, p in p_values.items() if pairs[key].complete}
    corrected = stats.holm([whole.get(key, 1.0) for key in family], [weights[key] for key in family])
    adjusted = {key: min(1.0, p / share) for key, p in zip(family, corrected, strict=True) if key in whole}
    rows = {key: _without_seeds(pair) for key, pair in pairs.items() if not pair.new}
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


def _without_seeds(pair: Pair) -> results.Comparison:
    """Return the comparison of an arm that has no seed left to compare."""
    nothing = dict.fromkeys(("mean", "baseline_mean", "difference"), math.nan)
    return results.Comparison(**nothing, differences=[], verdict=pair.loss, lost=pair.lost)


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
    if analysis.interval == "student":
        return pair.difference.interval(stats.CONFIDENCE)
    return stats.bootstrap_interval(pair.new, pair.old, pair.shared_seeds, stats.CONFIDENCE)


def _detectable(pair: Pair, difference: stats.Difference, weight: float, analysis: AnalysisSettings) -> float | None:
    """Return the difference found with a power of 80% at the level that Holm's first step gives this comparison."""
    if analysis.test == "student":
        return difference.detectable(confidence_of(weight))
    reach = stats.permutation_detectable(len(pair.new), pair.shared_seeds, confidence_of(weight))
    return None if reach is None or difference.error is None else reach * difference.error


def confidence_of(weight: float) -> float:
    """Return one minus the level of a comparison that has this share of the study's 5%."""
    return round(1 - (1 - stats.CONFIDENCE) * weight, 12)


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
        return "not shown"
    return "better" if (difference.value < 0) == (meaning.direction == "lower") else "worse"


def check_seeds(seeds: int, counts: Counts, analysis: AnalysisSettings) -> None:
    """Refuse an analysis that needs more seeds. One seed is a sketch, which is not analysed."""
    if seeds == 1 or counts.all == 0:
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


def describe_method(
    seeds: int,
    counts: Counts,
    control: bool,
    primary: Sequence[str],
    analysis: AnalysisSettings,
    tokens: Sequence[int] = (),
) -> str:
    """Return how intervals and verdicts were computed, for the report. `tokens` are those of several resolutions."""
    level = 1 - stats.CONFIDENCE
    reach = stats.smallest_permutation_p(seeds, counts.others / (1 - PRIMARY_SHARE)) if counts.others else 0.0
    text = template("tintype.study", "method.j2", finalize=_as_it_is).render(
        seeds=seeds,
        counts=counts,
        control=control,
        primary=primary,
        analysis=analysis,
        tokens=tokens,
        patterns=f"all {2**seeds:,}" if seeds <= stats.EXACT_FLIPS else "10,000 drawn",
        primary_percent=f"{100 * level * PRIMARY_SHARE:.0f}",
        other_percent=f"{100 * level * (1 - PRIMARY_SHARE):.0f}",
        out_of_reach=analysis.test == "permutation" and reach >= level,
    )
    return " ".join(text.split())


def _as_it_is(value: object) -> Markup:
    """Keep plain text, which reports escape."""
    return Markup(str(value))
