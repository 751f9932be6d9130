"""A server of pages in the terminal: its address, and its end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tintype.runtime.garbage import without_pauses
from tintype.serve.server import LiveServer
from tintype.terminal.answers import put_now
from tintype.terminal.interrupts import Interrupted, begin_work
from tintype.terminal.lines import say
from tintype.terminal.progress import Heartbeat


def serve_until_stopped(server: LiveServer, folder: Path, console: Console) -> None:
    """Say where the pages are, and answer requests until a signal comes. A log gets no more than the address."""
    put_now({"url": server.url, "folder": str(folder)})
    say(console, f"{folder}: open {server.url} (stop with Ctrl-C)")
    begin_work()
    try:
        with Heartbeat(Console(quiet=True), lambda: ""), without_pauses():
            server.serve_forever()
    except Interrupted as stopped:
        stopped.kept = f"{folder} is as it was; run the same command again"
        raise
