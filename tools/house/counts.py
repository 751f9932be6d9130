"""Counts of the package: lines, `Any`, late imports, and docstrings that do not name their subject."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.house.rooms import PACKAGE, all_imports

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

_VAGUE = ("Of ", "What ", "Those ", "So ", "Who ")


@dataclass(frozen=True)
class Counts:
    files: int
    lines: int
    code_lines: int
    """Without blank lines, comments and docstrings."""
    any_names: int
    late_imports: int
    """Inside functions, of the package's own modules."""
    vague_docstrings: int
    """Beginning with "Of", "What" or the like."""


def count() -> Counts:
    files = sorted(PACKAGE.rglob("*.py"))
    sources = [file.read_text(encoding="utf-8") for file in files]
    trees = [ast.parse(source) for source in sources]
    return Counts(
        files=len(files),
        lines=sum(len(source.splitlines()) for source in sources),
        code_lines=sum(map(code_lines, sources)),
        any_names=sum(isinstance(n, ast.Name) and n.id == "Any" for tree in trees for n in ast.walk(tree)),
        late_imports=sum(found.is_late for found in all_imports()),
        vague_docstrings=len(vague_docstrings()),
    )


def vague_docstrings() -> list[str]:
    """Return the docstrings, those of attributes too, that do not name their subject."""
    files = [*sorted(PACKAGE.rglob("*.py")), *sorted(Path(__file__).parents[1].rglob("*.py"))]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    return [text for tree in trees for text in _docstrings(tree) if text.startswith(_VAGUE)]


def code_lines(source: str) -> int:
    """Return the number of lines with code on them."""
    strings = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    prose = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {n for token in tokens if token.type not in _LAYOUT for n in range(token.start[0], token.end[0] + 1)}
    return len(code - prose)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def prints_of(file: Path) -> list[int]:
    """Return the lines of a file that call `print` or use the process's output streams."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    streams = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in {"stdout", "stderr"}]
    printed = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    return printed + [n.lineno for n in streams if isinstance(n.value, ast.Name) and n.value.id == "sys"]
