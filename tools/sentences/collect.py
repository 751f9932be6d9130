"""Collect sentences from the docs, the docstrings, and the errors, notes and help texts of tintype.

A sentence is prose up to one of `. ! ? :`, or to the end of a paragraph or list item. Code, tables, headings and
generated blocks are not prose. A code span counts as one word, and a hole in an f-string is shown as {name}.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import cleandoc
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
_END = re.compile(r"[.!?:][)\"”'*_]*(?=\s|\0|$)")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|al|cf|No|approx)|^\s*\d+)\.$")
_MESSAGE = re.compile(r"Error$|^Note$|note$|^damaged$|^unsealed$|^_?refus|warn|^say_|^the_", re.IGNORECASE)
_TEXT_NAMES = {"text", "problem", "fix", "reason", "why", "message", "note"}
_TEXT_KEYWORDS = {"description", "help", "summary", "text", "fix"}


class Sentence(NamedTuple):
    file: str
    line: int
    text: str

    @property
    def words(self) -> int:
        """Return the number of words."""
        text = _CODE.sub("x", self.text)
        return sum(any(letter.isalnum() for letter in word) for word in text.split())


def sentences(root: Path, kind: Kind) -> list[Sentence]:
    """Return all sentences of a kind, in the order of files and lines."""
    if kind == "docs":
        files = [file for pattern in _PAGES for file in sorted(root.glob(pattern))]
        pieces = [(file, 1, file.read_text(encoding="utf-8")) for file in files]
    else:
        find = _docstrings if kind == "docstrings" else _messages
        files = sorted((root / "tintype").rglob("*.py"))
        pieces = [(file, *found) for file in files for found in find(ast.parse(file.read_text(encoding="utf-8")))]
    return [
        Sentence(str(file.relative_to(root)), first + line, text)
        for file, first, prose in pieces
        for line, text in split(prose)
    ]


def split(prose: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of Markdown text, each with the number of lines before it."""
    prose = _NO_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), prose)
    prose = _LINK.sub(lambda match: match[1] + "\n" * match[0].count("\n", len(match[1])), prose)
    hidden = _CODE.sub(lambda match: re.sub(r"[.!?:]", "·", match[0]), prose)
    starts = [0, *(match.end() for match in _NEW_UNIT.finditer(hidden))]
    for start, end in zip(starts, [*starts[1:], len(prose)], strict=True):
        at = start
        for stop in [*(match.end() for match in _END.finditer(hidden, start, end)), end]:
            text = prose[at:stop]
            if stop < end and _ABBREVIATION.search(text):
                continue
            if words := re.sub(r"^([-*•]|\d+\.) ", "", " ".join(text.split())):
                yield prose.count("\n", 0, at + len(text) - len(text.lstrip())), words
            at = stop


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, cleandoc(node.value.value)


def _messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield texts in the calls that make errors, notes and help, and texts with a name such as `reason`."""
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            found = [word.value for word in node.keywords if word.arg in _TEXT_KEYWORDS]
            found += node.args if _MESSAGE.search(ast.unparse(node.func).rpartition(".")[2]) else []
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _TEXT_NAMES:
            found = [node.value]
        for one in found:
            yield from ((one.lineno, text) for text in _texts(one) if text.count(" ") > 2)


def _texts(node: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression of strings may have."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else _hole(part) for part in node.values)  # type: ignore[misc, arg-type]
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.BinOp):
        yield "".join((*_texts(node.left), *_texts(node.right)))


def _hole(part: ast.FormattedValue) -> str:
    words = re.findall(r"\w+", ast.unparse(part.value))
    return f"{{{words[-1] if words else ''}}}"
