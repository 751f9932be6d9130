"""Arms against other arms in writing, as the page and the Markdown both show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tintype.page import numerals
from tintype.study.report import findings
from tintype.study.report.view import Column, View
from tintype.study.results import Between, Comparison

LEAD = (
    "Pairs of arms that the study declares to compare. A difference is the first arm minus the second; better and "
    "worse are of the first. These comparisons share the study's error with those against the baseline."
)
HEADS = ("Arms", "Metric", "Verdict", "First", "Second", "Difference")


@dataclass(frozen=True)
class Row:
    """A pair of arms, and one metric."""

    pair: Between
    column: Column
    comparison: Comparison | None
    """None where the metric is not compared, or has no runs."""

    @property
    def verdict(self) -> str:
        if self.comparison is not None:
            return self.comparison.verdict
        return findings.NOT_COMPARABLE if self.column.info.name in self.pair.incomparable else "incomplete"

    @property
    def words(self) -> str:
        """Return the verdict, or why there is none."""
        if self.comparison is not None:
            return self.comparison.words
        reason = self.pair.incomparable.get(self.column.info.name)
        return f"{findings.NOT_COMPARABLE}: {reason}" if reason else "no runs to compare"

    @property
    def means(self) -> tuple[str, str]:
        """Return the mean of the first arm and of the second."""
        one = self.comparison
        if one is None:
            return numerals.UNKNOWN, numerals.UNKNOWN
        return self.column.written(one.mean), self.column.written(one.baseline_mean)

    @property
    def difference(self) -> str:
        """Return the difference with its interval, and relative to the second arm."""
        one = self.comparison
        if one is None or not one.differences:
            return numerals.UNKNOWN
        return f"{self.column.difference(one)} ({numerals.percent(findings.relative(one))})"

    @property
    def beside(self) -> str:
        """Return the corrected difference and what fresh seeds show; of an undecided one, the seeds that would decide.

        Notes on collapsed runs and on spreads that stand out follow.
        """
        one = self.comparison
        if one is None:
            return ""
        needed = f"{one.seeds_needed:,} seeds would decide" if one.seeds_needed else ""
        fresh = findings.replication_words(self.column.results, self.pair, self.column.info.name)
        return "; ".join(filter(None, [self.column.corrected(one), fresh, needed, one.note]))

    @property
    def cells(self) -> list[str]:
        """Return what the Markdown table shows."""
        verdict = f"{findings.glyph(self.verdict)} {self.words}"
        verdict = "; ".join(filter(None, [verdict, self.beside]))
        return [self.pair.label, self.column.info.label, verdict, *self.means, self.difference]


def rows(view: View) -> Iterator[Row]:
    """Yield the rows of one resolution, by pair, the primary metrics first."""
    for pair in view.results.between:
        for column in (*view.primary, *view.others):
            yield Row(pair, column, pair.comparisons.get(column.info.name))
