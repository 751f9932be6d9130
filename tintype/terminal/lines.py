"""Lines and numbers, all printed alike."""

from __future__ import annotations

from rich.console import Console

from tintype.terminal.encoding import EncodedConsole

progress_console = EncodedConsole(stderr=True, emoji=False)
"""For all that is no result: stdout stays clean for `--json`. On ranks that do not lead it is quiet."""


def number(value: float | None, form: str = ".4g") -> str:
    return "" if value is None else format(value, form)


def say(console: Console, text: str, style: str | None = None) -> None:
    """One line, however long, with the text as it is: a path may have brackets or colons in it."""
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False, emoji=False)
