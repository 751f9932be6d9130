"""Format the priority of arms as text; it needs the costs of the baseline and an arm, measured alone on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from tintype.page import numerals
from tintype.study.numbers import baseline_of
from tintype.study.priority import Priority, no_order, priorities
from tintype.study.report import findings
from tintype.study.results import Arm, Interval, MetricInfo, StudyResults

LEAD = (
    "An arm is on the front unless another plan that is no dearer is shown better: by a verdict, by the contrast of "
    "two arms, or because one is better and the other worse than the baseline. Arms on the front come first, then the "
    "rank decides; arms with the same ranks are in the study's order."
)
NOTE = (
    "Gain: the difference from the baseline as a share of its mean; more is better. With a verdict it is corrected for "
    "selection, with a 95% interval; else the interval is the simultaneous one. Step time was measured once, so steps "
    "within 2% of each other count as equally long; an unknown one is neither longer nor shorter. Contrasts of arms "
    "that the study does not declare share 1% of error, beside the 4% of the primary verdicts."
)
HEADS = ("Gain", "Step alone", "Gain at equal time", "Rank", "Front")


@dataclass(frozen=True)
class Table:
    """The arms and the baseline for one metric and resolution, in order of priority."""

    view: StudyResults
    metric: MetricInfo
    rows: list[Priority]

    @property
    def title(self) -> str:
        return self.metric.label + (f" at {self.view.resolution.name}" if self.view.resolution.name else "")

    def arm(self, row: Priority) -> Arm:
        return next(arm for arm in self.view.arms if arm.name == row.arm)

    def cells(self, row: Priority) -> list[str]:
        """Return the cells in the order of `HEADS`."""
        step = findings.step_time(row.step_s)
        more = "" if row.cost is None or row.arm == self._baseline else f" ({numerals.percent(row.cost - 1)})"
        return [_gain(row.gain), step + more, _gain(row.equal_time), _rank(row), _front(row)]

    @property
    def words(self) -> str:
        """State in a sentence or two which arm to try first."""
        if no_order(self.rows):
            return f"{self.title}: no order shown."
        alike = groupby((row for row in self.rows if row.front), _rank)
        front = "; ".join(f"{', '.join(row.arm for row in rows)} (rank {rank})" for rank, rows in alike)
        others = "; ".join(f"{row.arm} (than {_dominating(row)})" for row in self.rows if row.dominated_by)
        return f"{self.title}: on the front {front}." + (f" Shown worse and no cheaper: {others}." if others else "")

    @property
    def _baseline(self) -> str:
        return baseline_of(self.view).name


def tables(results: StudyResults) -> list[Table]:
    """Return a table for each primary metric and for each resolution with steps measured alone."""
    timed = {
        view.resolution.name: view
        for view in results.by_resolution()
        if baseline_of(view).step_s is not None
        and any(arm.role == "arm" and arm.step_s is not None for arm in view.arms)
    }
    if not timed:
        return []
    rows, metrics = priorities(results), {metric.name: metric for metric in results.metrics}
    named = dict.fromkeys((row.resolution, row.metric) for row in rows if row.resolution in timed)
    return [
        Table(timed[name], metrics[metric], [row for row in rows if (row.resolution, row.metric) == (name, metric)])
        for name, metric in named
    ]


def _gain(one: Interval | None) -> str:
    if one is None:
        return numerals.UNKNOWN
    ends = f" [{numerals.percent(one.low)}, {numerals.percent(one.high)}]" if one.ends else ""
    return numerals.percent(one.value) + ends


def _rank(row: Priority) -> str:
    if row.rank is None:
        return numerals.UNKNOWN
    first, last = row.rank
    return f"{first} of {row.of}" if first == last else f"{first}–{last} of {row.of}"


def _front(row: Priority) -> str:
    if row.rank is None:
        return row.verdict
    return f"no: {_dominating(row)}" if row.dominated_by else "on the front"


def _dominating(row: Priority) -> str:
    """Name one plan that is better and does not cost more, and count the other such plans."""
    first, *others = row.dominated_by
    return f"{first} and {len(others)} more" if others else first
