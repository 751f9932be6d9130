"""Describe the power of a planned study by the seeds needed to detect an effect, and by the reachable margins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tintype.page.numerals import decimals_showing, fixed, significant
from tintype.study.effect import Effect
from tintype.study.power import MOST_SEEDS, Group, MetricPower, PowerPlan, degrees, planned_margins
from tintype.study.results import read_results_file
from tintype.study.stats.estimate import POWER
from tintype.study.stats.family import FIRST_SHARE
from tintype.study.study import Study
from tintype.wording import option

_UNREACHED = 0.005
"""A margin counts as unreachable if the verdict "same" has a lower probability than this."""


def heads(group: Group) -> list[str]:
    """Return the column heads of a group's table, for the rows that `cells` returns."""
    counts = list(group.metrics[0].by_seeds)
    return ["metric", "baseline", "spread", f"{counts[0]} seeds", *map(str, counts[1:])]


def cells(plan: PowerPlan, row: MetricPower) -> list[str]:
    """Return the row of a metric, with the smallest change that each number of seeds detects in 80% of studies."""
    return [
        row.metric.name + (" *" if row.metric.primary else ""),
        significant(row.baseline),
        _size(row.deviation, row.baseline, plan.effect),
        *(reach(changes[0], row, plan.effect) for changes in row.by_seeds.values()),
    ]


def caption(group: Group) -> str:
    freedoms = dict.fromkeys(degrees(freedom) for freedom in sorted(row.spread.freedom for row in group.metrics))
    return (
        "Below each number of seeds: the smallest change that it finds in 80% of studies (–: more than there can be). "
        "* primary. Spread: standard deviation of single runs over seeds, from "
        f"{' or '.join(freedoms)} degrees of freedom."
    )


def reach(change: float, row: MetricPower, effect: Effect) -> str:
    """Return a detectable change as text; a dash if the metric cannot change by that much."""
    low, high = row.metric.range
    most = max(math.inf if high is None else high - row.baseline, math.inf if low is None else row.baseline - low)
    if change > most:
        return "–"
    return ">100%" if effect.relative and change > abs(row.baseline) > 0 else _size(change, row.baseline, effect)


def advice(plan: PowerPlan, row: MetricPower) -> str:
    """Return how many seeds the study needs to detect the effect, in a sentence or two."""
    name, effect = row.metric.name, plan.effect
    if row.power is None or row.seeds_needed is None:
        give = f"give {option('effect')} as a difference"
        return f"{name}: its mean is zero in the baseline, so {effect} of it is nothing; {give}."
    if row.power[2] >= POWER:
        return f"{name}: {plan.seeds} seeds are enough for {effect}, even if the spread is as large as it may be."
    needed, _, most = row.seeds_needed
    if row.power[0] >= POWER:
        return (
            f"{name}: {plan.seeds} seeds are enough for {effect} at the measured spread; to be safe against a larger "
            f"one take {_count(most)}."
        )
    weak = f"{name}: {plan.seeds} seeds find {effect} in {_percent(row.power[0])} of studies"
    payable = max(row.by_seeds)
    if needed is None or needed > payable:
        change = reach(row.by_seeds[payable][0], row, effect)
        found = f"{payable} seeds find {change}" if change != "–" else f"{payable} seeds find nothing"
        return f"{weak}, and it would take {_count(needed)}. Plan for a larger change ({found}), or another metric."
    return f"{weak}. Take {needed} to find it in 80%, or {_count(most)} to be safe against a larger spread."


def margin_advice(plan: PowerPlan, row: MetricPower) -> str:
    """Return whether the planned seeds can show that an arm equals the baseline within the metric's margin."""
    name = row.metric.name
    if row.same is None or row.same_seeds is None:
        return f"{name}: the margin of {row.margin} is zero here; give it in the metric's unit, as 0.01."
    if row.same[0] >= POWER:
        return f"{name}: {plan.seeds} seeds are enough to call arms the same within the margin of {row.margin}."
    needed = _count(row.same_seeds[0])
    if row.same[0] < _UNREACHED:
        return f"{name}: the margin of {row.margin} cannot be reached with {plan.seeds} seeds; it takes {needed}."
    chance = _percent(row.same[0])
    return f"{name}: {plan.seeds} seeds reach the margin of {row.margin} in {chance} of studies; {needed} do in 80%."


def comparisons_words(group: Group) -> str:
    """Describe the number of comparisons for which the levels of a group are corrected."""
    counts = group.comparisons
    kinds = f": {counts.primary} on primary metrics, {counts.others} on others" if counts.primary else ""
    return f"The levels are for {counts.all} comparisons{kinds}."


def planned_words(plan: PowerPlan) -> str:
    where = f" at {plan.resolutions} resolutions" if plan.resolutions > 1 else ""
    control = "one of them the control" if plan.control else "no control"
    return (
        f"For a study of {plan.arms} arms ({control}){where}, at its first look, which spends "
        f"{FIRST_SHARE:.0%} of the study's error."
    )


def margins_out_of_reach(study: Study, past: Sequence[Path]) -> list[str]:
    """Name the margins that the planned seeds cannot reach, for metrics with a known spread from `past` studies."""
    files = [path / "results.json" if path.is_dir() else path for path in past]
    known = [read_results_file(file) for file in dict.fromkeys(files) if file.is_file()]
    return [
        f"at {resolution}: {margin_advice(plan, row)}" if resolution else margin_advice(plan, row)
        for resolution, plan, rows in planned_margins(study, known)
        for row in rows
        if row.same is None or row.same[0] < POWER
    ]


def _size(value: float, baseline: float, effect: Effect) -> str:
    return _percent(value / abs(baseline)) if effect.relative and baseline else significant(value, 2)


def _percent(share: float) -> str:
    decimals = min(2, max(0, decimals_showing(100 * share) if share < 0.995 else 0))
    return fixed(100 * share, 0 if share >= 0.1 else decimals) + "%"


def _count(seeds: int | None) -> str:
    return f"over {MOST_SEEDS:,}" if seeds is None else str(seeds)
