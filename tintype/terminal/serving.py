"""Print the address of the web server, and handle the end of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console

from tintype.library.serve import Served
from tintype.terminal.answers import put_now
from tintype.terminal.interrupts import Interrupted, begin_work
from tintype.terminal.lines import say
from tintype.terminal.progress import Heartbeat
from tintype.terminal.view import View


class Serving(View[Served]):
    """View of `serve`, with the pages' address, which `--json` writes immediately. A log gets no other line."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        """Print the address of the pages. If a signal ends the command, print that no data is lost."""

        def on_start(served: Served) -> None:
            put_now(asdict(served))
            say(self.lines, f"{served.folder}: open {served.url} (stop with Ctrl-C)")
            begin_work()

        try:
            with Heartbeat(Console(quiet=True), lambda: ""):
                yield {"on_start": on_start}
        except Interrupted as stopped:
            stopped.kept = f"{self.given['folder']} is as it was; run the same command again"
            raise

    def finish(self, result: Served) -> None:
        """Print nothing at the end, since the address was printed at the start."""
