"""Print the number of seeds that a study needs, as tables and sentences."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from tintype.study import advice
from tintype.study.power import Group, PowerPlan
from tintype.terminal.lines import say
from tintype.terminal.view import View
from tintype.wording import rendered


class Seeds(View[PowerPlan]):
    """View of `power`, with the smallest change that each number of seeds detects, and the recommended number."""

    def show(self, result: PowerPlan) -> None:
        for reason in result.skipped:
            say(self.console, f"left out: {reason}")
        for group in result.groups:
            say(self.console, f"Spread measured in: {', '.join(dict.fromkeys(group.studies))}")
            if group.stored:
                say(
                    self.console,
                    f"With analysis.bank: {group.stored} stored runs of the baseline serve the new study.",
                )
            self.console.print(_table(result, group))
            for row in group.metrics:
                if row.metric.primary or len(group.metrics) == 1:
                    say(self.console, rendered(advice.advice(result, row)))
                    say(self.console, advice.margin_advice(result, row))
            for note in group.notes:
                say(self.console, f"Note: {note}")
            say(self.console, advice.comparisons_words(group))
        say(self.console, advice.planned_words(result))


def _table(plan: PowerPlan, group: Group) -> Table:
    table = Table(show_header=True, header_style="bold", box=None, pad_edge=False, caption=advice.caption(group))
    for head in advice.heads(group):
        table.add_column(head, justify="left" if head == "metric" else "right", no_wrap=True)
    for row in group.metrics:
        table.add_row(*map(escape, advice.cells(plan, row)))
    table.caption_justify = "left"
    return table
