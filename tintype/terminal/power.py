"""A power plan as a table, with advice in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.page.numerals import decimals_showing, fixed, significant
from tintype.study import stats
from tintype.study.power import MOST_SEEDS, Effect, Group, MetricPower, PowerPlan, degrees
from tintype.terminal.lines import say


def show_power(plan: PowerPlan, console: Console) -> None:
    for reason in plan.skipped:
        say(console, f"left out: {reason}")
    for group in plan.groups:
        say(console, f"Spread measured in: {', '.join(dict.fromkeys(group.studies))}")
        console.print(_table(plan, group))
        for row in group.metrics:
            if row.metric.primary or len(group.metrics) == 1:
                say(console, advice(plan, row))
        for note in group.notes:
            say(console, f"Note: {note}")
        say(console, _about_levels(group))
    where = f" at {plan.resolutions} resolutions" if plan.resolutions > 1 else ""
    say(
        console,
        f"For a study of {plan.arms} arms ({'the control counts' if plan.control else 'no control'}){where}, tested by "
        "the paired Student test at the level that the correction for all its comparisons has at its first step. In "
        "brackets: the range that the uncertainty of the measured spread allows (95%).",
    )


def _about_levels(group: Group) -> str:
    counts = group.comparisons
    kinds = f": {counts.primary} on primary metrics, {counts.others} on others" if counts.primary else ""
    return f"The levels are for {counts.all} comparisons{kinds}."


def _table(plan: PowerPlan, group: Group) -> Table:
    table = Table(show_header=True, header_style="bold", box=None, pad_edge=False)
    for head in (
        "metric",
        "baseline",
        "spread",
        f"finds {plan.effect} with {plan.seeds} seeds",
        f"smallest found with {plan.seeds}",
        f"seeds to find {plan.effect}",
    ):
        plain_word = head in ("metric", "baseline", "spread")
        table.add_column(head, justify="left" if head == "metric" else "right", no_wrap=plain_word)
    for row in group.metrics:
        table.add_row(
            escape(row.metric.name) + (" *" if row.metric.primary else ""),
            significant(row.baseline),
            _size(row.differences.deviation, row.baseline, plan.effect),
            _ranged([_percent(share) for share in (row.power[0], *sorted(row.power))]) if row.power else "–",
            _ranged([_size(value, row.baseline, plan.effect) for value in row.detectable]),
            _ranged([_count(count) for count in row.seeds_needed]) if row.seeds_needed else "–",
        )
    freedoms = dict.fromkeys(degrees(freedom) for freedom in sorted(row.differences.freedom for row in group.metrics))
    table.caption = (
        "* primary. Spread: standard deviation of an arm's differences from the baseline over seeds, "
        f"from {' or '.join(freedoms)} degrees of freedom."
    )
    return table


def advice(plan: PowerPlan, row: MetricPower) -> str:
    """Return advice in a sentence or two."""
    name, effect = row.metric.name, plan.effect
    if row.power is None or row.seeds_needed is None:
        return f"{name}: its mean is zero in the baseline, so {effect} of it is nothing; give --effect as a difference."
    if row.power[2] >= stats.POWER:
        return f"{name}: {plan.seeds} seeds are enough for {effect}, even if the spread is as large as it may be."
    needed, _, most = row.seeds_needed
    if row.power[0] >= stats.POWER:
        return (
            f"{name}: {plan.seeds} seeds are enough for {effect} at the measured spread; to be safe against a larger "
            f"one take {_count(most)}."
        )
    weak = f"{name}: {plan.seeds} seeds would find {effect} in {_percent(row.power[0])} of studies"
    detectable = _size(row.detectable[0], row.baseline, effect)
    if needed is None:
        return f"{weak}, and even {MOST_SEEDS:,} seeds in fewer than 80%. Ask for a larger change, or another metric."
    return (
        f"{weak}. Take {needed} seeds to find it in 80%, or {_count(most)} to be safe against a larger spread; with "
        f"{plan.seeds}, only a change of {detectable} or more would be found that often."
    )


def _size(value: float, baseline: float, effect: Effect) -> str:
    return _percent(value / abs(baseline)) if effect.relative and baseline else significant(value, 2)


def _percent(share: float) -> str:
    decimals = min(2, max(0, decimals_showing(100 * share) if share < 0.995 else 0))
    return fixed(100 * share, 0 if share >= 0.1 else decimals) + "%"


def _count(seeds: int | None) -> str:
    return f"over {MOST_SEEDS:,}" if seeds is None else str(seeds)


def _ranged(words: Sequence[str]) -> str:
    """Write the measured value, then the lowest and the highest; one word where all are the same."""
    first, low, high = words[0], words[1], words[-1]
    return first if first == low == high else f"{first} ({low} to {high})"
