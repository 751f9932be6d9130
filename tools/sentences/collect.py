"""Collect sentences from the docs, the docstrings, and the errors, notes and help texts of tintype.

A sentence is prose up to one of `. ! ? :`, or to the end of a paragraph or list item. Code, tables, headings and
generated blocks are not prose. A code span counts as one word, and a hole in an f-string is shown as {name}.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, get_args

Kind = Literal["docs", "docstrings", "errors"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_WORDS = 30
_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "studies/**/README.md")
_NO_PROSE = re.compile(
    r"^(`{3,})(?s:.*?)^\1`*$|^\$\$(?s:.*?)\$\$$|^<!-- made by (?s:.*?)(?=^$|\Z)|<!--(?s:.*?)-->|^\|.*$|^#.*$|^:::.*$"
    r"|(?<=:\n)\n(?: {4}.*(?:\n|\Z)|\n)+|^.*\S {3,}\S.*$|^ {8,}.*$",
    re.MULTILINE,
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"(`+)(?s:.+?)\1")
_NEW_UNIT = re.compile(r"\n[ \t]*(?:\n|(?=(?:[-*•]|\d+\.)[ \t]))")
_END = re.compile(r"[.!?:][)\"”'*_]*(?=\s|$)")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|al|cf)|^\s*\d+)\.$")
_MESSAGE = re.compile(r"Error$|note$|^damaged$|^_?refus|warn|^say_|^the_", re.IGNORECASE)
_TEXT_NAMES = {"text", "problem", "fix", "reason", "why", "message", "note", "description", "help", "summary"}


class Sentence(NamedTuple):
    file: str
    line: int
    text: str

    @property
    def words(self) -> int:
        """Return the number of words."""
        return sum(any(letter.isalnum() for letter in word) for word in _CODE.sub("x", self.text).split())


def sentences(root: Path, kind: Kind) -> list[Sentence]:
    """Return all sentences of a kind, in the order of files and lines."""
    files = sorted((root / "tintype").rglob("*.py"))
    if kind == "docs":
        files = [file for pattern in _PAGES for file in sorted(root.glob(pattern))]
    found = []
    for file in files:
        content = file.read_text(encoding="utf-8")
        pieces = [(1, content)] if kind == "docs" else _texts_in(ast.parse(content), kind)
        found += [
            Sentence(str(file.relative_to(root)), first + line, text)
            for first, prose in pieces
            for line, text in split(prose)
        ]
    return found


def split(prose: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of Markdown text, each with the number of lines before it."""
    prose = _NO_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), prose)
    prose = _LINK.sub(lambda match: match[1] + "\n" * match[0].count("\n", len(match[1])), prose)
    hidden = _CODE.sub(lambda match: re.sub(r"[.!?:]", "·", match[0]), prose)
    starts = [0, *(match.end() for match in _NEW_UNIT.finditer(hidden)), len(prose)]
    for at, end in pairwise(starts):
        for stop in [*(match.end() for match in _END.finditer(hidden, at, end)), end]:
            text = prose[at:stop]
            if stop < end and _ABBREVIATION.search(text):
                continue
            if words := re.sub(r"^([-*•]|\d+\.) ", "", " ".join(text.split())):
                yield prose.count("\n", 0, at + len(text) - len(text.lstrip())), words
            at = stop


def _texts_in(tree: ast.Module, kind: Kind) -> Iterator[tuple[int, str]]:
    """Yield docstrings; or texts in calls that make errors, notes and help, and texts with a name such as `reason`."""
    for node in ast.walk(tree):
        if kind == "docstrings":
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.lineno, cleandoc(node.value.value)
            continue
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            found = [word.value for word in node.keywords if word.arg in _TEXT_NAMES]
            found += node.args if _MESSAGE.search(ast.unparse(node.func).rpartition(".")[2]) else []
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _TEXT_NAMES:
            found = [node.value]
        yield from ((one.lineno, text) for one in found for text in _texts(one) if text.count(" ") > 2)


def _texts(node: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression of strings may have."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join("".join(_texts(part)) for part in node.values)
    elif isinstance(node, ast.FormattedValue):
        yield "{" + (re.findall(r"\w+", ast.unparse(node.value)) or [""])[-1] + "}"
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.BinOp):
        yield "".join((*_texts(node.left), *_texts(node.right)))
