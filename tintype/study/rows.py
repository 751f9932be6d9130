"""Make the rows of a study's verdicts, also for impossible comparisons. All output formats show exactly these rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

from tintype.page import numerals
from tintype.page.forest import Effect
from tintype.page.numerals import decimals_within, percent
from tintype.study.notes import outcome_words, source_words
from tintype.study.numbers import (
    FOUND,
    NOT_COMPARABLE,
    compared_arms,
    compared_trends,
    metric_decimals,
    primary_metrics,
    relative,
    too_few_seeds,
    trend_verdict,
    trend_words,
)
from tintype.study.results import (
    Arm,
    Between,
    Comparison,
    FactorEffect,
    MetricInfo,
    Replicated,
    StudyResults,
    arm_label,
)
from tintype.study.stats.contrast import Kind

TOO_FEW_SEEDS = "too few seeds"
_FAR = 10.0
"""An interval's end is hidden if it is this many times farther away than the means, and there are too few seeds."""
MIXED = "mixed"
"""Verdict on an arm that is better on one primary metric and worse on another."""
NO_RUNS = "no runs to compare"
_GLYPHS = {
    "better": "✓",
    "worse": "✗",
    "same": "≈",
    "undecided": "○",
    "unstable": "⚡",
    "adds up": "+",
    "overlaps": "∩",
    "cancels": "✗",
    "reinforces": "✓",
    "measured": "·",
    "identical": "=",
    "no spread": "≡",
    "sketch": "◌",
    "incomplete": "…",
    "not defined": "–",
    NOT_COMPARABLE: "–",
    MIXED: "±",
}


def glyph(verdict: str) -> str:
    """Return the sign that is shown next to a verdict; verdicts without their own sign share a common sign."""
    return _GLYPHS.get(verdict, "!")


@dataclass(frozen=True)
class Row:
    """The verdict and the numbers for one metric of an arm, of two arms, of a trend or of a factor.

    A difference is the arm minus the baseline, or the first arm minus the second; a trend has log ratios.
    """

    kind: Kind
    arm: str
    """The arm's name; for two arms "first against second", for a factor its name, for an interaction its parts."""
    resolution: str
    metric: MetricInfo
    primary: bool
    decimals: int
    """Number of decimals suited to the interval; without an interval, the number in the metric's column."""
    verdict: str
    words: str
    """The verdict with the number of diverged, failed or collapsed runs; without a verdict, the reason."""
    comparison: Comparison | None = None
    replicated: str = ""
    """Outcome of the verdict on fresh seeds, or a remark that none were run; empty if there is nothing to replicate."""
    effect: FactorEffect | None = None
    """The interaction; None except for main effects and interactions."""

    @property
    def label(self) -> str:
        """Return the name of the row, with the resolution if the study has several."""
        return arm_label(self.arm, self.resolution)

    @property
    def title(self) -> str:
        """Return the metric's label, with the direction of better values."""
        return f"{self.metric.label} ({self.metric.direction} is better)"

    @property
    def marked(self) -> str:
        """Return the verdict's text with its sign."""
        return f"{glyph(self.verdict)} {self.words}"

    # Numbers in writing; a dash for what is not known.

    def written(self, value: float | None, *, signed: bool = False) -> str:
        return numerals.fixed(value, self.decimals, signed=signed)

    @property
    def mean(self) -> str:
        return self.written(self.comparison.mean if self.comparison else None)

    @property
    def baseline_mean(self) -> str:
        return self.written(self.comparison.baseline_mean if self.comparison else None)

    @property
    def change(self) -> str:
        return self.written(self.comparison.difference if self.comparison else None, signed=True)

    @property
    def interval(self) -> str:
        """Return both ends of the interval, or a remark that there are too few seeds; empty without an interval."""
        ends = self.comparison.ends if self.comparison else None
        if ends is None or self.comparison is None:
            return ""
        if _is_unbounded(self.metric, self.comparison):
            return f"({TOO_FEW_SEEDS})"
        return numerals.interval(*ends, self.decimals)

    @property
    def difference(self) -> str:
        return f"{self.change} {self.interval}".strip()

    @property
    def contrast(self) -> str:
        """Return the difference with its interval, both absolute and relative to the reference."""
        if self.comparison is None or not self.comparison.differences:
            return numerals.UNKNOWN
        return f"{self.difference} ({self.relative})"

    @property
    def together(self) -> str:
        """Return the mean of an interaction's combination, and the mean expected if the parts added up."""
        if self.effect is None or self.effect.expected is None:
            return ""
        return f"{self.written(self.effect.means[0].value)} (sum of the parts: {self.written(self.effect.expected)})"

    @property
    def beside(self) -> str:
        """Return the corrected difference, the outcome on fresh seeds, the seeds needed to decide, and the remark."""
        note = self.comparison.note if self.comparison else ""
        return "; ".join(filter(None, [self.corrected, self.replicated, self.needed, note]))

    @property
    def relative(self) -> str:
        """Return the difference as a percentage of the baseline's mean."""
        return percent(relative(self.comparison) if self.comparison else None)

    @property
    def corrected(self) -> str:
        """Return the estimate that is corrected for the selection of large differences; empty if there is none."""
        found = self.comparison.corrected if self.comparison and self.verdict in FOUND else None
        if found is None:
            return ""
        ends = numerals.interval(found.low, found.high, self.decimals)
        return f"corrected for selection {self.written(found.value, signed=True)} {ends}"

    @property
    def blind(self) -> bool:
        """Return whether there are too few seeds to detect any possible change."""
        return self.comparison is not None and too_few_seeds(self.metric, self.comparison)

    @property
    def detectable(self) -> str:
        """Return the smallest detectable difference, or a remark that there are too few seeds to detect any."""
        return TOO_FEW_SEEDS if self.blind else self.written(self.comparison.detectable if self.comparison else None)

    @property
    def needed(self) -> str:
        """Return how many seeds would decide the comparison; empty if it is decided, or if a thousand are too few."""
        seeds = self.comparison.seeds_needed if self.comparison else None
        return f"{seeds:,} seeds would decide" if seeds else ""

    @property
    def data(self) -> dict[str, Any]:
        """Return the row as plain data, with None in place of numbers that are not finite."""
        one = self.comparison
        known = one.model_dump(include=set(_NUMBERS)) if one else dict.fromkeys(_NUMBERS)
        corrected = one.corrected if one else None
        row = {
            "kind": self.kind,
            "arm": self.arm,
            "resolution": self.resolution,
            "metric": self.metric.name,
            "label": self.metric.label,
            "better": self.metric.direction,
            "primary": self.primary,
            "verdict": self.verdict,
            "words": self.words,
            **{name: known[name] for name in _NUMBERS},
            "corrected": corrected and corrected.value,
            "corrected_low": corrected and corrected.low,
            "corrected_high": corrected and corrected.high,
            "replicated": self.replicated,
            "seeds": len(one.differences) if one else 0,
            "note": one.note if one else "",
            "expected": self.effect.expected if self.effect else None,
        }
        return {name: None if isinstance(of, float) and not math.isfinite(of) else of for name, of in row.items()}


_NUMBERS = ("mean", "baseline_mean", "difference", "low", "high", "level", "p", "margin", "seeds_needed", "look")


def rows_of(results: StudyResults, *, primary: bool = False) -> list[Row]:
    """Return rows of arms, then of pairs of arms, trends and factors; with `primary`, only for primary metrics."""
    asked = {metric.name for metric in primary_metrics(results)}
    shown = {one.name: one for one in results.metrics if not primary or one.name in asked}
    usual = {name: metric_decimals(results, name) for name in shown}

    def row(kind: Kind, arm: str, resolution: str, metric: MetricInfo, **more: Any) -> Row:
        one, decimals = more["comparison"], usual[metric.name]
        if one is not None and not _is_unbounded(metric, one):
            decimals = decimals_within(one.low, one.high, decimals)
        return Row(kind, arm, resolution, metric, metric.name in asked, decimals, **more)

    found = list[Row]()
    compared: list[Arm | Between] = [*compared_arms(results), *results.between]
    for of in compared:
        kind: Kind = "between" if isinstance(of, Between) else "control" if of.role == "control" else "arm"
        name = f"{of.first} against {of.second}" if isinstance(of, Between) else of.name
        for one in shown.values():
            said = _of_two(results, of, one)
            if said["comparison"] or said["verdict"] == NOT_COMPARABLE or one.name in asked:
                found.append(row(kind, name, of.resolution, one, **said))
    for trend, metric in compared_trends(results):
        if metric.name in shown:
            words = trend_words(trend, metric) + (f": {trend.undefined}" if trend.undefined else "")
            found.append(row("trend", trend.arm, "", metric, **_said(trend_verdict(trend), words, trend.comparison)))
    for effect in results.factors:
        if effect.metric in shown:
            kind = "interaction" if len(effect.parts) > 1 else "main effect"
            said = _said(effect.verdict, effect.words, effect.comparison)
            found.append(row(kind, effect.name, effect.resolution, shown[effect.metric], **said, effect=effect))
    return found


def _is_unbounded(metric: MetricInfo, one: Comparison) -> bool:
    """Return whether an interval is so wide that its ends are hidden."""
    usual = max(abs(one.baseline_mean), abs(one.mean))
    return one.ends is not None and too_few_seeds(metric, one) and max(map(abs, one.ends)) > _FAR * usual


def effect_of(results: StudyResults, arm: Arm, row: Row) -> Effect:
    """Return an arm's runs, mean and interval for a figure, relative to the row's baseline mean."""
    one = row.comparison
    assert one is not None
    looks = {number: look.seeds for number, look in enumerate(results.looks, 1)}
    read = looks.get(one.look or 0) if arm.role == "arm" else None
    values = {
        run.seed: value - one.baseline_mean
        for run in arm.runs
        if (value := run.metrics.get(row.metric.name)) is not None and (read is None or run.seed in read)
    }
    return Effect(
        one.difference,
        one.low,
        one.high,
        one.detectable,
        one.verdict,
        one.baseline_mean,
        [value for seed, value in values.items() if seed not in one.collapsed],
        [value for seed, value in values.items() if seed in one.collapsed],
        row.difference,
    )


def _said(verdict: str, words: str, comparison: Comparison | None = None, replicated: str = "") -> dict[str, Any]:
    return {"verdict": verdict, "words": words, "comparison": comparison, "replicated": replicated}


def _of_two(results: StudyResults, of: Arm | Between, metric: MetricInfo) -> dict[str, Any]:
    """Return the row of an arm, or of two arms, for one metric."""
    if reason := of.incomparable.get(metric.name, ""):
        return _said(NOT_COMPARABLE, f"{NOT_COMPARABLE}: {reason}")
    if (one := of.comparisons.get(metric.name)) is None:
        return _said("incomplete", NO_RUNS)
    return _said(one.verdict, one.words, one, _replicated(results, of, metric.name))


def _replicated(results: StudyResults, of: Arm | Between, metric: str) -> str:
    row, control = of.comparisons.get(metric), isinstance(of, Arm) and of.role != "arm"
    if row is None or control or row.verdict not in get_args(Replicated.model_fields["verdict"].annotation):
        return ""
    made = results.replication
    found = next((one for one in made.rows if (one.arm, one.metric) == (of.label, metric)), None) if made else None
    if made is None or found is None or found.verdict != row.verdict:
        return "not replicated"
    return f"replicated on {len(made.seeds)} fresh seeds{source_words(made)}: {outcome_words(found)}"
