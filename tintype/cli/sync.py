"""The command that mirrors studies and runs to object stores, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from tintype.cli import options
from tintype.cli.shared import app, console, print_json
from tintype.errors import UserError
from tintype.terminal.lines import say

_SHOWN = 10
"""Damaged files that an error lists."""


@app.command()
def sync(
    source: Annotated[str, Argument(help="Folder of a study or run, or its address: s3://, gs://, file://, memory://")],
    target: Annotated[str | None, Argument(help="Folder or address to copy to")] = None,
    list_: Annotated[bool, Option("--list", help="List what the source has, and copy nothing")] = False,
    json_: options.Json = False,
) -> None:
    """Mirror a study or run to an object store, or back: only what is whole, and each copy is checked."""
    if (target is None) != list_:
        problem = "no target is given" if target is None else "--list and a target exclude each other"
        raise UserError(problem, f"give a target to copy {source} to, or --list and no target")
    from tintype.export.mirror import mirror, units_of
    from tintype.export.places import open_place
    from tintype.terminal.progress import Progress

    if target is None:
        units = units_of(open_place(source).sizes())
        if json_:
            print_json([{"name": unit.name, "files": len(unit.names), "bytes": unit.bytes} for unit in units])
            return
        table = Table("name", "files", "size", box=None)
        for unit in units:
            table.add_row(escape(unit.name), str(len(unit.names)), decimal(unit.bytes))
        console.print(table)
        return
    kept = "what was copied is whole; run the same command again to copy the rest"
    with Progress(f"copying to {target}", unit="files", kept=kept) as bars:
        counts = mirror(open_place(source), open_place(target), bars.count)
    if json_:
        print_json(asdict(counts))
    else:
        gone = f"; removed from the source meanwhile: {counts.gone}" if counts.gone else ""
        say(console, f"copied: {counts.copied} files ({decimal(counts.copied_bytes)}), there: {counts.there}{gone}")
    if counts.damaged:
        lines = [f"  {name}: {reason}" for name, reason in list(counts.damaged.items())[:_SHOWN]]
        more = f"\n  and {len(counts.damaged) - _SHOWN} more" if len(counts.damaged) > _SHOWN else ""
        raise UserError(
            f"damaged in {source} and not copied: {len(counts.damaged)}",
            "repair them (training, evaluating or "
            "reporting again does), then run the same command again:\n" + "\n".join(lines) + more,
        )
