"""A line is one line, with the text as it is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tintype.cli import _say_error
from tintype.terminal.lines import say


def test_brackets_colons_and_long_paths_are_shown_as_they_are() -> None:
    shown = io.StringIO()
    text = f"trained 3 steps in runs/[red]a:b:{'long/' * 40}"
    say(Console(file=shown, width=80), text)
    assert shown.getvalue() == f"{text}\n"


def test_colons_in_errors_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    _say_error("--attribute a:b: a name")
    assert capsys.readouterr().err == "error: --attribute a:b: a name\n"
