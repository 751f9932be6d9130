"""The order of the rooms, from the ground up. A room imports from rooms listed before it, and from nothing else.

A room is a folder or a loose file of the package. An import inside a function counts, and so does one for types alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tintype"
ORDER = (
    "wording",
    "errors",
    "rng",
    "runtime",
    "plugins",
    "seams",
    "settings",
    "schedule",
    "config",
    "recipes",
    "page",
    "pretrained",
    "model",
    "flow",
    "data",
    "vision",
    "text",
    "tokenizers",
    "losses",
    "optim",
    "plan",
    "techniques",
    "train",
    "sampling",
    "contract",
    "metrics",
    "evaluation",
    "cost",
    "study",
    "judge",
    "export",
    "audit",
    "bench",
    "tokenizer_lab",
    "serve",
    "library",
    "terminal",
    "cli",
    "__main__",
)
LOOSE = frozenset({"wording", "errors", "rng", "seams", "settings", "schedule", "plan", "__init__", "__main__"})
"""The only files beside the folders: those that every room uses, and the program."""


@dataclass(frozen=True)
class Import:
    """One imported module of the package, and where it is imported."""

    file: Path
    line: int
    name: str
    is_late: bool
    """Inside a function."""

    @property
    def source(self) -> str:
        return self.file.relative_to(PACKAGE).parts[0].removesuffix(".py")

    @property
    def target(self) -> str:
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    def __str__(self) -> str:
        return f"{self.file.relative_to(PACKAGE.parent)}:{self.line} imports {self.name}"


def imports_of(file: Path) -> Iterator[Import]:
    """Yield the imports of the package in a file, at any place in it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        for name in _names(node):
            if name.split(".")[0] == PACKAGE.name:
                yield Import(file, node.lineno, name, id(node) in late)  # type: ignore[attr-defined]


def _names(node: ast.AST) -> set[str]:
    """Return the modules that a statement imports. `from tintype import rng` imports the module `tintype.rng`."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        if node.module == PACKAGE.name:
            return {_module(f"{node.module}.{alias.name}") or node.module for alias in node.names}
        return {node.module}
    return set()


def _module(name: str) -> str | None:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return name if path.is_dir() or path.with_suffix(".py").is_file() else None


def all_imports() -> list[Import]:
    return [found for file in sorted(PACKAGE.rglob("*.py")) for found in imports_of(file)]


def against_the_order(imports: list[Import]) -> list[Import]:
    """Return the imports of rooms that are not below, without those of one given room.

    The package itself imports no room: it only names the rooms from which its names are loaded on first use.
    """
    place = {room: index for index, room in enumerate(ORDER)}
    return [
        found
        for found in imports
        if found.source not in (found.target, "__init__")
        and found.target != "__init__"
        and not place.get(found.target, len(ORDER)) < place.get(found.source, -1)
    ]
