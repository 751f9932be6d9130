"""Commands in documents, help and messages exist, and can be pasted into any shell.

zsh reads unquoted brackets as a pattern.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.plan_fields import fields
from tests.unit.cli.test_help import ALL
from tintype.evaluation.protocol import ImageProtocol, Protocol
from tintype.plan import Plan
from tintype.settings import Settings
from tintype.study.settings import StudySettings
from tintype.techniques import TECHNIQUES

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "studies").glob("*/README.md")])
SOURCES = sorted((ROOT / "tintype").rglob("*.py"))
PLANS = sorted((ROOT / "tintype" / "recipes").rglob("*.yaml"))
SHELL = ("sh", "bash", "zsh", "console")
GLOBS = "[]{}*?()<>#"
"""A comment too: typed into zsh it is more arguments, and its apostrophe opens a quote."""
COMMAND = r"(?:\$ )?(?:tintype|torchrun|pip|python|make) "
IS_TINTYPE = re.compile(r"^tintype |-m tintype ")
UNKNOWN = "\0"
"""Stands for a value that a message has at run time and that no function quoted."""


def unquoted(command: str) -> str:
    """The characters of a command that a shell reads as more than text."""
    found, quote, escaped = [], "", False
    for letter in command:
        if escaped or (letter == "\\" and quote != "'"):
            escaped = not escaped
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in GLOBS + UNKNOWN:
            found.append(letter)
    return "".join(found) + quote


def commands_in(text: str) -> Iterator[str]:
    """Commands of shell blocks, and inline code that begins with a command or an option."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if block.startswith("#!"):
            continue  # a file, which no one types
        for line in block.replace("\\\n", " ").splitlines():
            if language in SHELL or (not language and re.match(COMMAND, line)):
                command = line.strip().removeprefix("$ ")
                yield re.sub(r"\$\(.*?\)| > \S+$", " X", command)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", prose):
        if re.match(f"{COMMAND}|--[a-z]", code):
            yield " ".join(code.split())


def options_in(text: str) -> Iterator[str]:
    """Options with their values in running text: up to the next space outside quotes."""
    for option in re.findall(r"""--(?:set|technique|where)[ =](?:"[^"]*"|'[^']*'|[^\s`])+""", text):
        yield option.rstrip(".,;:)")


def texts_in(source: str) -> Iterator[str]:
    """The strings of a Python file but its docstrings; values that come at run time are UNKNOWN, or X where quoted."""
    tree = ast.parse(source)
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inside |= {id(node.format_spec) for node in ast.walk(tree) if isinstance(node, ast.FormattedValue)}
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and "quote(" in ast.unparse(node.value)]
    quoted, hidden = {ast.unparse(target) for node in assigned for target in node.targets}, documents | inside
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in inside:
            yield "".join(shown(part, quoted) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.value


def shown(part: ast.expr, names: set[str]) -> str:
    """A piece of an f-string. A value is quoted by a function, or its name says so."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    called = part.value.func if isinstance(part.value, ast.Call) else part.value
    quoted = ast.unparse(called) in names or "quote" in ast.unparse(called)
    number = part.format_spec is not None and ast.unparse(part.format_spec).strip("f'\"") in ("d", "g")
    return "X" if quoted or number else UNKNOWN


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_commands_in_documents_are_quoted(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    found = [*commands_in(text), *options_in(re.sub(r"^```(?!sh).*?^```", "", text, flags=re.MULTILINE | re.DOTALL))]
    assert not [command for command in found if unquoted(command)]


def problem_of(command: str) -> str | None:
    """Return what is wrong with a command line of tintype: an unknown command or option, too many arguments."""
    words = shlex.split(command)
    words = words[words.index("tintype") + 1 :]
    found: Any = ALL[()]
    path: tuple[str, ...] = ()
    while words and hasattr(found, "commands"):
        options = {name: one for one in found.params for name in one.opts}
        if words[0] in options:
            words = words[1 if options[words[0]].is_flag else 2 :]
        elif (*path, words[0]) in ALL:
            path = (*path, words.pop(0))
            found = ALL[path]
        elif words[0].isupper() or words[0] in ("…", "--help"):  # stands for any command
            return None
        else:
            return f"no such command: {words[0]}"
    if hasattr(found, "commands"):
        return None
    if words and any(words[-1] in one.opts and not one.is_flag for one in found.params if one.opts[0][:2] == "--"):
        words = [*words, "X"]  # prose names an option without its value
    context = found.make_context(" ".join(path), [], resilient_parsing=True)
    context.resilient_parsing = False
    try:
        _, left, _ = found.make_parser(context).parse_args([word for word in words if word != "--help"])
    except Exception as error:  # typer has its own copy of click, whose errors it does not export
        return str(error) or type(error).__name__
    return f"too many arguments: {left}" if left else None


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_commands_in_documents_exist_with_their_options(file: Path) -> None:
    found = [command for command in commands_in(file.read_text(encoding="utf-8")) if IS_TINTYPE.search(command)]
    assert not {command: problem for command in found if (problem := problem_of(command))}


def test_commands_that_do_not_exist_are_found() -> None:
    assert problem_of("tintype train pocket --out runs/first --set a=1") is None
    assert problem_of("torchrun --nproc-per-node 8 -m tintype train mini --out x") is None
    assert problem_of("tintype --version") is None and problem_of("tintype COMMAND --help") is None
    assert "no such command" in (problem_of("tintype tran pocket --out runs/first") or "")
    assert "no such command" in (problem_of("tintype data imprt x") or "")
    assert "--outt" in (problem_of("tintype train pocket --outt runs/first") or "")
    assert "too many" in (problem_of("tintype train pocket mini --out runs/first") or "")


def keys_of(*settings: type[Settings]) -> set[str]:
    return {".".join(map(str, place)) for one in settings for place, _, _ in fields(one)}


KEYS = {
    "ablate": keys_of(StudySettings),
    "evaluate": keys_of(Protocol, ImageProtocol) | {"preset"},
    "ema": keys_of(Protocol) | {"preset"},
    **dict.fromkeys(("train", "plan", "bench", "audit"), keys_of(Plan)),
}
"""The settings that `--set` of a command knows."""


OWN = ("plugins.md", "your-own-technique.md")
"""Pages on techniques that their reader writes."""


def unknown_in(text: str) -> list[str]:
    """Return the settings and techniques in the options of commands that do not exist."""
    unknown = []
    for command in commands_in(text):
        words = shlex.split(command) if IS_TINTYPE.search(command) else []
        known = KEYS.get(words[words.index("tintype") + 1]) if words else None
        for option, value in pairwise(words):
            if option == "--set" and known is not None and value.partition("=")[0] not in known:
                unknown.append(value)
            if option == "--technique" and value.partition(":")[0] not in {*TECHNIQUES, "NAME"}:
                unknown.append(value)
    return unknown


@pytest.mark.parametrize("file", [one for one in DOCUMENTS if one.name not in OWN], ids=lambda file: file.stem)
def test_settings_and_techniques_of_commands_in_documents_exist(file: Path) -> None:
    assert not unknown_in(file.read_text(encoding="utf-8"))


def test_settings_and_techniques_that_do_not_exist_are_found() -> None:
    assert unknown_in("`tintype train pocket --set train.stepz=2 --technique muon --technique muom:lr=1`") == [
        "train.stepz=2",
        "muom:lr=1",
    ]


def settings_in(text: str) -> Iterator[str]:
    """Settings in prose that have a list as their value, with the quotes around them."""
    if " " in text:
        yield from re.findall(r"""["']?\b[a-z_]+(?:\.[a-z_]+)*=\[[^"'\s]+(?:\s[^"']*)?["']?""", text)


def test_commands_in_messages_are_quoted() -> None:
    wrong = [
        (str(file.relative_to(ROOT)), command.replace(UNKNOWN, "{…}"))
        for file in SOURCES
        for text in texts_in(file.read_text(encoding="utf-8"))
        for command in (*commands_in(text), *options_in(text), *settings_in(text))
        if unquoted(command)
    ]
    assert not wrong


def test_commands_in_comments_of_recipes_are_quoted() -> None:
    for file in PLANS:
        comments = " ".join(re.findall(r"^#(.*)", file.read_text(encoding="utf-8"), re.MULTILINE))
        assert not [command for command in (*commands_in(comments), *options_in(comments)) if unquoted(command)], file


def test_examples_of_values_in_help_are_quoted() -> None:
    for path, command in ALL.items():
        for parameter in command.params:
            for word in re.findall(r"""(?:"[^"]*"|[^\s"])+""", parameter.help or ""):
                assert "=" not in word or not unquoted(word.strip(",;()")), (path, word)


def test_what_a_shell_would_read_is_found() -> None:
    assert unquoted("tintype evaluate run --set encoders=[clip]") == "[]"
    assert unquoted("tintype evaluate run --set \"encoders=[clip]\" --x='{a}' \\[") == ""
    assert unquoted('tintype evaluate "run') == '"'
    assert list(commands_in("```sh\ntintype a [x]  # y?\n```\n`--set a=[1]` and `plain[0]`")) == [
        "tintype a [x]  # y?",
        "--set a=[1]",
    ]
    assert list(options_in('use --set a=[1], or --set "b=[2]" or --technique x:y=1.')) == [
        "--set a=[1]",
        '--set "b=[2]"',
        "--technique x:y=1",
    ]
    assert list(texts_in('x = f"train {run}", f"{quote(run)} {n:d}"')) == [f"train {UNKNOWN}", "X X"]
