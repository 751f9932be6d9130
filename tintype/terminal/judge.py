"""Print verdicts on the runs of any trainer, in a table like a study's table."""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.judge.metrics import Metric
from tintype.judge.page import PAGE, document
from tintype.judge.verdicts import DECIDED, Judgement, Row, difference_words
from tintype.terminal import documents
from tintype.terminal.lines import VERDICT_STYLE, number, say, say_note
from tintype.terminal.view import View

_MOST_COLUMNS = 3
"""Largest number of metrics with their own column if no metric is primary."""


class Verdicts(View[Judgement]):
    def show(self, result: Judgement) -> None:
        show_judgement(result, self.console)
        if page := self._page:
            say(self.console, f"report: {page}")

    def document(self, result: Judgement) -> documents.Judged:
        return documents.Judged.model_validate({**document(result), "report": self._page})

    @property
    def _page(self) -> str | None:
        out = self.given["out"]
        return None if out is None else str((out / PAGE).resolve())


def show_judgement(found: Judgement, console: Console) -> None:
    shown = [one for one in found.metrics if one.primary] or list(found.metrics[:_MOST_COLUMNS])
    others = [one for one in found.metrics if one not in shown]
    heads = [f"{escape(one.name)} ({one.direction} is better)" for one in shown]
    title = "Sketch: one run for each arm, no verdicts" if found.sketch else "Verdicts"
    table = Table("arm", *heads, *(["other verdicts"] if others else []), title=title)
    means = [found.baseline_mean(one.name) for one in shown]
    written = [number(mean) if math.isfinite(mean) else "–" for mean in means]
    table.add_row(escape(found.baseline), *written, *([""] if others else []))
    for arm in found.arms:
        cells = [_cell(found[arm, one.name]) for one in shown]
        table.add_row(escape(arm), *cells, *([_decided(found, arm, others)] if others else []))
    console.print(table)
    for note in found.notes:
        say_note(console, note)


def _cell(row: Row) -> str:
    verdict = f"[{VERDICT_STYLE.get(row.verdict, 'yellow')}]{escape(row.words)}[/]"
    if not math.isfinite(row.difference):
        return verdict
    corrected = "" if row.corrected is None else f"\ncorrected for selection {row.corrected:+.3g}"
    return f"{verdict} {escape(difference_words(row))}{corrected}"


def _decided(found: Judgement, arm: str, metrics: list[Metric]) -> str:
    rows = [found[arm, one.name] for one in metrics]
    return (
        "\n".join(
            f"{escape(row.metric)}: [{VERDICT_STYLE.get(row.verdict, 'yellow')}]{row.verdict}[/]"
            for row in rows
            if row.verdict in DECIDED
        )
        or "none"
    )
