"""Options in messages are data: below the commands no text spells `--out`, so Python can say `out`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "tintype"
COMMANDS = ("cli", "terminal")
"""Rooms of the command line, whose texts only it shows."""
COMMAND_LINES = {
    "__main__.py": "compares with the words of a command line",
    "contract/template.py": "the text of a plugin file, whose docstring has its commands",
    "data/store/export.py": "the options of a command that imports an export",
    "pretrained/hub.py": "options of `hf download`",
    "pretrained/weights.py": "arguments of pip, and a line of its requirements",
    "runtime/machine.py": "arguments of git",
    "study/launch/launcher.py": "the command line of a worker",
    "study/launch/slurm.py": "the head of a batch script",
    "study/folder.py": "finds the folder that a command of a README makes",
    "study/ranks.py": "arguments of torchrun",
}
"""Files whose strings are argument lists, scripts or whole commands, and what these are."""
OPTION = re.compile(r"(?<![\w-])--[a-z]")


def texts_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield the strings of a file but its docstrings, with their lines; a value of run time is `…`."""
    tree = ast.parse(source)
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents | inside:
            yield node.lineno, node.value


def spelt_options(source: str) -> list[int]:
    """Return the lines of strings that spell an option outside of backticks. A whole command may."""
    return [
        line
        for line, text in texts_in(source)
        if not text.startswith("tintype ") and OPTION.search("".join(text.split("`")[::2]))
    ]


def spelt() -> dict[str, list[int]]:
    files = {str(file.relative_to(ROOT)): file for file in sorted(ROOT.rglob("*.py"))}
    below = {name: file for name, file in files.items() if Path(name).parts[0] not in COMMANDS}
    return {name: lines for name, file in below.items() if (lines := spelt_options(file.read_text(encoding="utf-8")))}


def test_no_message_below_the_commands_spells_an_option() -> None:
    assert not {name: lines for name, lines in spelt().items() if name not in COMMAND_LINES}


def test_every_file_of_command_lines_still_has_one() -> None:
    assert set(COMMAND_LINES) == set(spelt()) & set(COMMAND_LINES)


def test_marks_are_written_in_one_file_only() -> None:
    marked = [
        file.name for file in ROOT.rglob("*.py") if re.search(r"\\ufd[de]|[\ufdd0-\ufdef]", file.read_text("utf-8"))
    ]
    assert marked == ["wording.py"]


def test_a_spelt_option_is_found() -> None:
    assert spelt_options('x = "choose another --out"') == [1]
    assert spelt_options('x = f"use --set {key}=1, or `tintype train --out {out}`"') == [1]
    assert not spelt_options(
        '"""Takes --out."""\nx = f"`tintype train --out {out}` makes one"\ny = "tintype work --run"'
    )
    assert not spelt_options('x = f"choose another {option(\'out\')}", "a -- b", "git--x"')
