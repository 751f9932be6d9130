"""Print the answer to one proposal to a study, or a list of all proposals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.page.numerals import significant
from tintype.study.ledger import ERROR, left_after
from tintype.study.propose import Proposal
from tintype.terminal.lines import say, say_note
from tintype.terminal.studies import OfRuns

_STYLE = {"keep": "green", "drop": "red"}


class Answers(OfRuns[Proposal | list[Proposal]]):
    """View of `propose`, which shows the progress of a proposal's runs and its answer, or the list of all proposals."""

    def show(self, result: Proposal | list[Proposal]) -> None:
        if isinstance(result, list):
            show_proposals(result, self.console)
        else:
            show_proposal(result, self.console)


def show_proposal(found: Proposal, console: Console) -> None:
    """Print the answer to a proposal, its comparisons, and the error rate left for later proposals."""
    say(console, f"{found.name}: {found.words}", _STYLE.get(found.answer, "yellow"))
    for metric, row in found.comparisons.items():
        interval = " [{:+.3g}, {:+.3g}]".format(*ends) if (ends := row.ends) else ""
        say(console, f"  {metric}: {row.difference:+.3g}{interval}, {row.verdict}, with {found.seeds} seeds")
    for line in found.failed:
        say(console, f"failed: {line}", "red")
    if found.repeats is not None:
        say_note(
            console,
            f"proposal {found.number} ('{found.repeats}') has the same plan, so this is the answer to that proposal",
        )
    elif found.answer == "more seeds needed":
        say_note(console, f"{found.reason}; to continue, run the same command with a larger --budget or without it")
    if found.kept_plan is not None:
        say_note(
            console, f"to build on this proposal, start a new study with fresh seeds and recipe: {found.kept_plan}"
        )
    say(console, f"proposal {found.number} spends {_percent(found.level)}; {_percent(found.error_left)} are left")


def show_proposals(found: Sequence[Proposal], console: Console) -> None:
    table = Table("", "proposal", "answer", "seeds", "spent", title="Proposals")
    for one in found:
        answer = f"[{_STYLE.get(one.answer, 'yellow')}]{one.answer}[/]: {escape(one.reason)}"
        table.add_row(str(one.number), escape(one.name), answer, str(one.seeds or ""), _percent(one.level))
    console.print(table)
    say(console, f"{_percent(left_after(len(found)))} are left for all that follow, of {ERROR:.0%} in all")


def _percent(share: float) -> str:
    return f"{significant(100 * share, 2)}%"
