"""Print the findings of `tintype audit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tintype.audit.findings import Finding
from tintype.audit.run import Audit
from tintype.audit.seen import Bad, Group, Role, Seen

_STYLE = {"mistake": "red", "note": "yellow"}
_MOST_PLACES = 3
"""Named on the terminal; JSON has all."""
_TYPE_COLUMNS: dict[Role, str] = {
    "weights": "weights",
    "gradients": "grads",
    "moments": "moments",
    "averages": "average",
    "buffers": "buffers",
}
_LEGEND = (
    "inputs: as they arrive at the modules; lost: steps that did not move the stored weight; stuck: averages that are "
    "apart from their weight and did not move"
)


def show_audit(audit: Audit, title: str, console: Console) -> None:
    """Show a row for each group, then the findings. In a command of several processes only rank 0 calls this."""
    seen = audit.seen
    console.print(_groups_table(seen, title))
    steps = f"{seen.steps} step{'' if seen.steps == 1 else 's'}"
    for line in (_LEGEND, "; ".join((steps, *audit.remarks))):
        console.print(line, style="dim", highlight=False, markup=False)
    if seen.error is not None:
        console.print(f"the steps were ended by {seen.error_words}", style="yellow", highlight=False, markup=False)
    if not audit.findings:
        console.print("nothing found: no step, average or input loses precision", style="green", highlight=False)
    for finding in audit.findings:
        _show_finding(finding, console)


def _show_finding(finding: Finding, console: Console) -> None:
    share = "" if finding.share is None else f", {percent(finding.share)}"
    places = ", ".join(finding.where[:_MOST_PLACES])
    more = f" and {len(finding.where) - _MOST_PLACES} more" if len(finding.where) > _MOST_PLACES else ""
    grid = Table.grid(Column(width=8, no_wrap=True), Column(), padding=(0, 1))
    grid.add_row(f"[{_STYLE[finding.severity]}]{finding.severity}[/]", f"[bold]{finding.name}[/]{share}")
    for head, text in (("", finding.what), ("where", places + more), ("remedy", finding.remedy)):
        if text:
            grid.add_row(f"[dim]{head:>8}[/]", escape(text))
    console.print(grid, highlight=False)


Cell = Callable[[Group], str]


def _groups_table(seen: Seen, title: str) -> Table:
    """Return a line for each room, with the inputs of its modules, and below it one for each kind of tensor.

    Columns in which nothing stands are left out.
    """
    groups = seen.in_order
    columns: list[tuple[str, Cell]] = [
        ("size", lambda g: _size(g.elements)),
        *((head, _types_of(role)) for role, head in _TYPE_COLUMNS.items()),
        ("lost", lambda g: percent(g.updates.share)),
        ("stuck", lambda g: percent(g.averages.share)),
        ("not finite", lambda g: _count(g.bad.values(), lambda bad: bad.non_finite)),
        ("saturated", lambda g: _count(g.bad.values(), lambda bad: bad.saturated)),
    ]
    shown = [(head, cell) for head, cell in columns if any(cell(group) for group in groups)]
    table = Table(title=f"{escape(title)}\n", title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("group", no_wrap=True)
    for head, _ in shown:
        table.add_column(head, justify="left" if head in _TYPE_COLUMNS.values() else "right", no_wrap=True)
    table.add_column("inputs", no_wrap=True)
    for room in dict.fromkeys(group.room for group in groups):
        table.add_row(f"[bold]{escape(room)}[/]", *[""] * len(shown), " ".join(sorted(seen.input_types(room))))
        for group in (group for group in groups if group.room == room):
            table.add_row(f"  {group.kind}", *(cell(group) for _, cell in shown), "")
    return table


def _size(numbers: int) -> str:
    """Write three digits at most, rounded: 288, 498k, 1.2M."""
    for unit, one in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if numbers >= one:
            return f"{numbers / one:.3g}{unit}"
    return str(numbers)


def _types_of(role: Role) -> Cell:
    return lambda group: " ".join(sorted(group.types.get(role, ())))


def percent(share: float | None) -> str:
    """Write a share; one that is not zero is never written as zero."""
    if share is None:
        return ""
    if 0 < share < 0.001:
        return "<0.1%"
    return "100%" if share == 1 else f"{share:.1%}"


def _count(bad: Iterable[Bad], number: Callable[[Bad], int]) -> str:
    total = sum(number(one) for one in bad)
    return f"{total:,}" if total else ""
