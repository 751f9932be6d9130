"""Progress and results of mirroring and publishing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from tintype.errors import UserError
from tintype.export.mirror import Mirrored
from tintype.terminal.lines import say
from tintype.terminal.progress import Progress
from tintype.terminal.view import View

if TYPE_CHECKING:
    from tintype.library.publish import SyncUnit

_SHOWN = 10
"""Damaged files that an error lists."""


class Mirror(View["list[SyncUnit] | Mirrored"]):
    """The progress of a copy and its counts, or the list of what a place has. Damaged files are an error."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        if self.given["target"] is None:
            yield {}
            return
        kept = "what was copied is whole; run the same command again to copy the rest"
        with Progress(f"copying to {self.given['target']}", unit="files", kept=kept) as bars:
            yield {"on_progress": bars.count}

    def show(self, result: list[SyncUnit] | Mirrored) -> None:
        if isinstance(result, Mirrored):
            gone = f"; removed from the source meanwhile: {result.gone}" if result.gone else ""
            copied = f"copied: {result.copied} files ({decimal(result.copied_bytes)})"
            say(self.console, f"{copied}, there: {result.there}{gone}")
            return
        table = Table("name", "files", "size", box=None)
        for unit in result:
            table.add_row(escape(unit.name), str(unit.files), decimal(unit.bytes))
        self.console.print(table)

    def finish(self, result: list[SyncUnit] | Mirrored) -> None:
        super().finish(result)
        if isinstance(result, Mirrored) and result.damaged:
            lines = [f"  {name}: {reason}" for name, reason in list(result.damaged.items())[:_SHOWN]]
            more = f"\n  and {len(result.damaged) - _SHOWN} more" if len(result.damaged) > _SHOWN else ""
            raise UserError(
                f"damaged in {self.given['source']} and not copied: {len(result.damaged)}",
                "repair them (training, evaluating or "
                "reporting again does), then run the same command again:\n" + "\n".join(lines) + more,
            )
