"""Compute the priority of each arm, with its gain, cost and possible ranks, and whether it is on the Pareto front.

For a metric at a resolution, a plan is *shown better* than another plan by any of these:
- The verdict on an arm against the baseline, or on two arms that the study declares to compare.
- The contrast of two arms for which the study declares no comparison. The pairs of undeclared contrasts, over all
  primary metrics and resolutions, share 1% of error equally. The verdicts on primary metrics share the remaining 4%.
- A conclusion: one plan is better than the baseline, and the other plan is worse than the baseline.

Among K plans (the arms and the baseline), an arm's best rank is 1 + the number of plans that are shown better than the
arm. The arm's worst rank is K - the number of plans that the arm is shown better than. An arm is *on the front* unless
a plan with equal or lower cost is shown better than the arm. The cost is the duration of a training step, measured
alone on a GPU. A plan with unknown cost is neither cheaper nor more expensive than another plan.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, get_args

from tintype.study.along import SAME_TIME
from tintype.study.contrasts import is_tested
from tintype.study.results import Arm, Comparison, Interval, Loss, MetricInfo, StudyResults
from tintype.study.stats.cells import Cells, with_alike
from tintype.study.stats.family import PRIMARY_SHARE, confidence_of
from tintype.study.stats.pairing import correlations, estimate_arm
from tintype.study.verdicts import cells_of


@dataclass(frozen=True)
class Priority:
    """The priority of a plan for one metric; gains are fractions of the baseline's mean, and larger is better."""

    arm: str
    resolution: str
    metric: str
    verdict: str
    """The verdict against the baseline, or the reason why the arm is not ranked; empty for the baseline."""
    gain: Interval | None = None
    """The gain, corrected for selection if there is a verdict; None if the arm is not ranked."""
    equal_time: Interval | None = None
    """The gain at the training time of the baseline; None if there is no score at that time."""
    step_s: float | None = None
    """Seconds of a training step, measured alone on a GPU."""
    cost: float | None = None
    """Seconds of a training step, divided by the baseline's seconds."""
    rank: tuple[int, int] | None = None
    """Best and worst possible rank of the arm; None if the arm is not ranked."""
    of: int = 0
    """Number of ranked plans."""
    dominated_by: tuple[str, ...] = ()
    """Plans that are shown better than the arm and do not cost more."""

    @property
    def front(self) -> bool | None:
        """Return whether the arm is on the front; None if the arm is not ranked."""
        return None if self.rank is None else not self.dominated_by

    @property
    def row(self) -> dict[str, Any]:
        gain, then, rank = self.gain, self.equal_time, self.rank
        row = {
            "arm": self.arm,
            "resolution": self.resolution,
            "metric": self.metric,
            "verdict": self.verdict,
            "gain": gain and gain.value,
            "low": gain and gain.low,
            "high": gain and gain.high,
            "equal_time": then and then.value,
            "equal_time_low": then and then.low,
            "equal_time_high": then and then.high,
            "step_s": self.step_s,
            "cost": self.cost,
            "rank_low": rank and rank[0],
            "rank_high": rank and rank[1],
            "of": self.of,
            "front": self.front,
            "dominated_by": list(self.dominated_by),
        }
        return {name: None if isinstance(of, float) and not math.isfinite(of) else of for name, of in row.items()}


def priorities(results: StudyResults) -> list[Priority]:
    """Return priorities by primary metric and resolution: the front first, then by rank, then in the study's order."""
    views, metrics = results.by_resolution(), [one for one in results.metrics if one.primary] or results.metrics[:1]
    tested = [metric for metric in metrics if is_tested(metric.name)]
    pairs = sum(len(_undeclared(view)) for view in views) * len(tested)
    share = min((look.share for look in results.looks if look.made), default=1.0)
    level = confidence_of(share * (1 - PRIMARY_SHARE) / max(pairs, 1))
    found = []
    for view in views:
        sheets = _sheets(view)
        for metric in tested:
            rows = _of_metric(view, metric, sheets, level)
            found += sorted(rows, key=lambda row: (row.rank is None, not row.front, row.rank or (0, 0)))
    return found


def no_order(rows: Collection[Priority]) -> bool:
    """Return whether, for one metric, no plan is shown better than another plan."""
    return all(row.rank in (None, (1, row.of)) for row in rows)


def _undeclared(view: StudyResults) -> list[tuple[Arm, Arm]]:
    """Return the pairs of arms at one resolution for which the study declares no comparison."""
    declared = {frozenset((pair.first, pair.second)) for pair in view.between}
    arms = [arm for arm in view.arms if arm.role == "arm"]
    return [pair for pair in combinations(arms, 2) if frozenset(arm.name for arm in pair) not in declared]


def _sheets(view: StudyResults) -> dict[str, Cells]:
    roles, runs = {arm.name: arm.role for arm in view.arms}, {arm.name: arm.runs for arm in view.arms}
    tested = [metric for metric in view.metrics if is_tested(metric.name)]
    return with_alike({metric.name: cells_of(roles, runs, metric.name, metric) for metric in tested})


def _of_metric(view: StudyResults, metric: MetricInfo, sheets: Mapping[str, Cells], level: float) -> list[Priority]:
    baseline = next(arm for arm in view.arms if arm.role == "baseline")
    rows = {arm.name: row for arm in view.arms if arm.role == "arm" and (row := _ranked_row(arm, metric.name))}
    better, names = _shown_better(view, metric, rows, sheets, level), [baseline.name, *rows]
    steps_s = {arm.name: arm.step_s for arm in view.arms}
    usual, found = baseline.step_s, []
    for arm in (one for one in view.arms if one.role != "control"):
        step_s = arm.step_s
        cost = step_s / usual if step_s is not None and usual is not None else None
        one = Priority(arm.name, arm.resolution, metric.name, "", step_s=step_s, cost=cost, of=len(names))
        if arm.name not in names:
            found.append(replace(one, verdict=_why_unranked(arm, metric.name)))
            continue
        above = [name for name in names if (name, arm.name) in better]
        below = [name for name in names if (arm.name, name) in better]
        no_dearer = [
            name
            for name in above
            if step_s is not None and (other := steps_s[name]) is not None and other <= (1 + SAME_TIME) * step_s
        ]
        one = replace(one, rank=(1 + len(above), len(names) - len(below)), dominated_by=tuple(no_dearer))
        if (row := rows.get(arm.name)) is not None:
            then = _gain_at_equal_time(view, arm, metric)
            one = replace(one, verdict=row.words, gain=_gain(row, metric), equal_time=then)
        found.append(one)
    return found


def _ranked_row(arm: Arm, metric: str) -> Comparison | None:
    """Return the comparison of an arm that can be ranked, with all of its runs and in the baseline's space."""
    row = arm.comparisons.get(metric)
    if row is None or row.verdict in get_args(Loss) or not math.isfinite(row.difference):
        return None
    return None if metric in arm.incomparable else row


def _why_unranked(arm: Arm, metric: str) -> str:
    if reason := arm.incomparable.get(metric):
        return f"not comparable: {reason}"
    row = arm.comparisons.get(metric)
    return row.words if row is not None else "not measured"


def _shown_better(
    view: StudyResults,
    metric: MetricInfo,
    rows: Mapping[str, Comparison],
    sheets: Mapping[str, Cells],
    level: float,
) -> set[tuple[str, str]]:
    """Return (better, worse) for each pair of plans with a known order."""
    (baseline,) = (arm.name for arm in view.arms if arm.role == "baseline")
    compared = [(name, baseline, row) for name, row in rows.items()]
    compared += [
        (pair.first, pair.second, row)
        for pair in view.between
        if {pair.first, pair.second} <= rows.keys() and (row := pair.comparisons.get(metric.name))
    ]
    better = set()
    for first, second, row in compared:
        said = row.healthy_verdict or row.verdict
        better |= {(first, second)} if said == "better" else {(second, first)} if said == "worse" else set()
    for one, other in _undeclared(view):
        if one.name in rows and other.name in rows:
            better |= _ordered(one, other, metric, rows[other.name].margin or 0.0, sheets, level)
    # An arm whose runs collapse more often than the baseline's is never shown better than another plan.
    better = {(first, second) for first, second in better if first == baseline or rows[first].verdict != "unstable"}
    while follows := {(a, d) for a, b in better for c, d in better if b == c} - better:
        better |= follows
    return {(a, b) for a, b in better if (b, a) not in better}  # looks with different seeds may contradict each other


def _ordered(
    one: Arm, other: Arm, metric: MetricInfo, margin: float, sheets: Mapping[str, Cells], level: float
) -> set[tuple[str, str]]:
    """Return the order of two arms if their contrast decides it, on the seeds of both arms' last interim analysis."""
    seeds = [{run.seed for run in arm.runs} for arm in (one, other)]
    extra = {arm.name: own - (seeds[0] & seeds[1]) for arm, own in zip((one, other), seeds, strict=True)}
    shared = {name: cells.without(extra) for name, cells in sheets.items()} if any(extra.values()) else sheets
    cells = shared[metric.name]
    if not cells.values[one.name] or not cells.values[other.name]:
        return set()
    pairs = correlations(shared, one.name, other.name)
    found = estimate_arm(cells, one.name, other.name, level, pairs.get(metric.name))
    if found.interval is None:
        return set()
    said = found.says(cells.scale.margin(found.old, margin))
    if said in ("same", "undecided"):
        return set()
    return {(one.name, other.name) if (said == "above") == (metric.direction == "higher") else (other.name, one.name)}


def _gain(row: Comparison, metric: MetricInfo) -> Interval | None:
    return _relative(row.corrected or row.interval, row.baseline_mean, metric)


def _gain_at_equal_time(view: StudyResults, arm: Arm, metric: MetricInfo) -> Interval | None:
    for one in view.along:
        then = one.equal_time.difference
        if (one.arm, one.metric) == (arm.name, metric.name) and then is not None:
            return _relative(then, one.target, metric)
    return None


def _relative(difference: Interval, baseline: float, metric: MetricInfo) -> Interval | None:
    """Return a difference as a fraction of the baseline's mean, with a sign such that larger is better."""
    if not baseline:
        return None
    unit = abs(baseline) * (1 if metric.direction == "higher" else -1)
    low, high = sorted(end / unit for end in difference.ends) if difference.ends else (None, None)
    return Interval(value=difference.value / unit, low=low, high=high)
