"""`--help` shows every text as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tintype.cli import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command and group with the words that call it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


def squeezed(text: str) -> str:
    """The text without white space: help breaks lines."""
    return "".join(text.split())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_shows_every_text_with_its_brackets(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0, result.output
    shown = squeezed(result.output)
    texts = [ALL[path].help, *(parameter.help for parameter in ALL[path].params if not parameter.hidden)]
    for text in filter(None, texts):
        assert squeezed(text) in shown


def test_some_help_has_brackets() -> None:
    """Without any, the test above would show nothing."""
    texts = [getattr(parameter, "help", None) or "" for command in ALL.values() for parameter in command.params]
    assert sum("[" in text for text in texts) > 5


def test_a_group_lists_its_commands_with_their_whole_first_sentence() -> None:
    shown = squeezed(CliRunner().invoke(app, ["--help"]).output)
    for path, command in ALL.items():
        if len(path) == 1 and not command.hidden:
            assert squeezed(command.help.partition(". ")[0]) in shown
    assert "..." not in shown.replace("[ARGS]...", "")
