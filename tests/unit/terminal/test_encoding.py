"""Every command writes to a stdout and stderr of any encoding."""

from __future__ import annotations

import io
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tintype import cli

ROOT = Path(__file__).parents[3]
COMMANDS = {
    "help": ["--help"],
    "techniques": ["techniques"],
    "arms": ["ablate", "objectives-mini", "--out", "unused", "--dry-run"],
    "plan": ["plan", "diff", "pocket", "mini"],
    "recipes": ["recipes"],
    "studies": ["studies"],
    "power": ["power", str(ROOT / "studies" / "2026-11-15_routing-mini")],
    "a mistake": ["train", "wörk → \u4e2d.yaml", "--out", "unused"],
    "an unreadable name": ["train", "\udcff.yaml", "--out", "unused"],
}


def printed(arguments: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch) -> str:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding, errors="strict", write_through=True)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "argv", ["tintype", *arguments])
    with pytest.raises(SystemExit):
        cli.main()
    return written.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.slow), "utf-8"])
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_commands_print_on_any_encoding(arguments: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(printed(arguments, encoding, monkeypatch)) > 20


def test_what_the_encoding_lacks_is_written_in_plain_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(COMMANDS["arms"], "ascii", monkeypatch)
    assert "->" in shown and "+--" in shown and "?" not in shown.replace("prompts?", "")
    assert "work -> \\u4e2d.yaml" in printed(COMMANDS["a mistake"], "ascii", monkeypatch)
    assert "wörk -> \\u4e2d.yaml" in printed(COMMANDS["a mistake"], "latin-1", monkeypatch)
    assert "wörk → \u4e2d.yaml" in printed(COMMANDS["a mistake"], "utf-8", monkeypatch)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_tables_stay_aligned(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(COMMANDS["arms"], encoding, monkeypatch).splitlines()
    tables = [list(lines) for of_table, lines in groupby(shown, _in_table) if of_table]
    assert len(tables) == 3, "the arms, their cost, and the memory of the baseline"
    for lines in tables:
        assert len({len(line) for line in lines}) == 1


def _in_table(line: str) -> bool:
    return line.startswith(tuple("|+│┃┏┡├└"))
