"""Verdicts by the method that a study was read by before, beside those of today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tintype.page import numerals
from tintype.study.replicate import CLAIMED
from tintype.study.report import findings
from tintype.study.results import SPEED, Comparison, Earlier, EarlierVerdict, MetricInfo, StudyResults

_OPEN = ("undecided", "not shown")
_INTERVALS = {"paired": "Paired method (each at 95%)", "shared": "Shared method (95% together)"}


@dataclass(frozen=True)
class Row:
    """A comparison of which the two methods say different things."""

    metric: MetricInfo
    before: EarlierVerdict
    now: Comparison
    decimals: int

    @property
    def cells(self) -> list[str]:
        """Return what a table shows: the arm, the metric, and both verdicts."""
        before, now = self._words(self.before, self.before.verdict), self._words(self.now, self.now.words)
        return [self.before.arm, self.metric.label, before, now]

    def _words(self, one: EarlierVerdict | Comparison, words: str) -> str:
        difference = numerals.fixed(one.difference, self.decimals, signed=True)
        interval = numerals.interval(one.low, one.high, self.decimals)
        return f"{findings.glyph(one.verdict)} {words}: {difference} {interval}".strip()


def rows(results: StudyResults) -> list[Row]:
    """Return the comparisons on which the methods differ, those on primary metrics first."""
    return sorted(_differing(results), key=lambda row: not row.metric.primary)


def _differing(results: StudyResults) -> list[Row]:
    metrics = {metric.name: metric for metric in results.metrics}
    decimals = {name: findings.metric_decimals(results, name) for name in metrics}
    return [
        Row(metrics[before.metric], before, now, decimals[before.metric])
        for before, now in _both(results)
        if _read(before.verdict) != _read(now.verdict)
    ]


def _both(results: StudyResults) -> list[tuple[EarlierVerdict, Comparison]]:
    now = {(arm.label, metric): row for arm in results.arms for metric, row in arm.comparisons.items()}
    known = by_another_method(results)
    pairs = [(before, now.get((before.arm, before.metric))) for before in (known.rows if known else ())]
    return [(before, row) for before, row in pairs if row is not None and row.verdict != "measured"]


def _read(verdict: str) -> str:
    """Return a verdict by its name of today."""
    return "undecided" if verdict in _OPEN else verdict


@dataclass(frozen=True)
class Counts:
    """Numbers of verdicts of better, worse and same: those of before, those of them that stand, and new ones.

    The throughput's are not counted.
    """

    before: int
    kept: int
    new: int


def counts(results: StudyResults) -> Counts:
    """Count the verdicts by both methods."""
    both = _both(results)
    claimed = [(before, now) for before, now in both if before.verdict in CLAIMED]
    kept = sum(before.verdict == now.verdict for before, now in claimed)
    new = sum(before.verdict not in CLAIMED and now.verdict in CLAIMED for before, now in both)
    return Counts(len(claimed), kept, new)


def note(results: StudyResults) -> str:
    """Say that the study was read by another method before, and how many verdicts changed; empty where it was not."""
    if (earlier := by_another_method(results)) is None:
        return ""
    count = counts(results)
    untested = " (not counting throughput, which it tested)" * any(row.metric == SPEED for row in earlier.rows)
    return (
        f"This study was read by the {earlier.method} method before. Verdicts that stand: {count.kept} of "
        f"{count.before}; new ones: {count.new}{untested}. The same seeds are the same look, so nothing of the error "
        "is charged again; but a second method is a second chance: take a verdict that only one of them gives as a "
        "hint, and replicate it."
    )


def heads(results: StudyResults) -> Sequence[str]:
    """Return the heads of the table of rows."""
    before = by_another_method(results)
    return ["Arm", "Metric", _INTERVALS[before.method] if before else "Before", "Now"]


def by_another_method(results: StudyResults) -> Earlier | None:
    """Return the verdicts by the method that these results are not of; None where the study was read by one only."""
    tests = {row.test for arm in results.arms for row in arm.comparisons.values()}
    now = "shared" if "shared spread" in tests else "paired"
    return next((one for one in results.earlier if one.method != now), None)
