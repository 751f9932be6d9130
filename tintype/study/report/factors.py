"""Main effects and interactions of factorial arms in writing, as the page and the Markdown both show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tintype.page import numerals
from tintype.study.report import findings
from tintype.study.report.view import Column, View
from tintype.study.results import FactorEffect

LEAD = (
    "A main effect is that of a factor, averaged over all pairs of arms that differ in it alone. An interaction is "
    "what a combination gains beyond the sum of what its parts gain alone; distances and losses are compared as "
    "logarithms, so there the ratios of the parts multiply."
)
MEANINGS = {
    "adds up": "the interaction is within the margin",
    "overlaps": "the combination gains less than its parts together",
    "cancels": "so much less that it is no better than the best of them alone, or than the baseline",
    "reinforces": "it gains more than its parts together",
}


@dataclass(frozen=True)
class Row:
    """A factor or a pair, and one metric."""

    effect: FactorEffect
    column: Column

    @property
    def is_interaction(self) -> bool:
        return len(self.effect.parts) > 1

    @property
    def contrast(self) -> str:
        """Return the effect with its interval, and relative to the baseline."""
        one = self.effect.comparison
        return f"{self.column.difference(one)} ({numerals.percent(findings.relative(one))})"

    @property
    def together(self) -> str:
        """Return the mean of the combination, and what the sum of its parts would be; empty of a main effect."""
        if self.effect.expected is None:
            return ""
        both = self.effect.means[0]
        return f"{self.column.written(both.value)} (sum of the parts: {self.column.written(self.effect.expected)})"

    @property
    def needed(self) -> str:
        """Return how many seeds would decide; empty where it is decided, or a thousand would not."""
        needed = self.effect.comparison.seeds_needed
        return f"{needed:,} seeds would decide" if needed else ""

    @property
    def cells(self) -> list[str]:
        """Return what the Markdown table shows."""
        first, second = ("", self.contrast) if self.is_interaction else (self.contrast, "")
        verdict = f"{findings.glyph(self.effect.verdict)} {self.effect.words}" + (
            f", {self.needed}" if self.needed else ""
        )
        return [self.effect.name, self.column.info.label, verdict, first, second, self.together]


def rows(view: View) -> Iterator[Row]:
    """Yield the rows of one resolution, by metric: the factors, then their interactions."""
    for column in view.primary:
        yield from (Row(one, column) for one in view.results.factors if one.metric == column.info.name)


def verdicts_key(view: View) -> str:
    """Explain the verdicts on interactions that the study has."""
    found = dict.fromkeys(one.verdict for one in view.results.factors)
    return "; ".join(f"{findings.glyph(word)} {word}: {MEANINGS[word]}" for word in MEANINGS if word in found)
