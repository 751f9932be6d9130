"""A line is one line, with the text as it is."""

from __future__ import annotations

import io

from rich.console import Console

from tintype.terminal.lines import say


def test_brackets_and_long_paths_are_shown_as_they_are() -> None:
    shown = io.StringIO()
    text = f"trained 3 steps in runs/[red]{'long/' * 40}"
    say(Console(file=shown, width=80), text)
    assert shown.getvalue() == f"{text}\n"
