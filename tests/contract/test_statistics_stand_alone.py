"""The statistics need numpy, scipy and the standard library: they can be read, tested and used without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STATS = Path(__file__).parents[2] / "tintype" / "study" / "stats"
OWN = "tintype.study.stats"
MODULES = sorted(STATS.rglob("*.py"))


def imports_of(source: str) -> Iterator[str]:
    """Yield the full name of each imported module, in functions and for types too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def is_allowed(name: str) -> bool:
    if name == OWN or name.startswith(f"{OWN}."):
        return True
    return name.split(".")[0] in {"numpy", "scipy", *sys.stdlib_module_names}


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_a_module_of_the_statistics_imports_nothing_else(file: Path) -> None:
    assert not [name for name in imports_of(file.read_text(encoding="utf-8")) if not is_allowed(name)]


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "from tintype.study.results import Run",
        "def f():\n    from tintype.study import stats",
        "from . import x",
    ],
)
def test_another_import_is_found(source: str) -> None:
    assert MODULES and not all(map(is_allowed, imports_of(source)))


def test_an_estimate_needs_no_torch() -> None:
    code = f"import sys, {OWN}.estimate, {OWN}.family, {OWN}.collapse; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=STATS.parents[2], check=True)
