"""The way of a verdict in docs/architecture.md is that of the code: each step is a function or class that is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_STEPS = 8
SURFACES = ("study/report/html.py", "study/report/markdown.py", "terminal", "serve", "library", "train/trackers")


def steps() -> list[tuple[str, list[str]]]:
    text = (
        (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## The way of a verdict")[1].split("## ")[0]
    )
    found = re.findall(r"^   │  (\S+\.py) +(\w+(?:, \w+)*)  ", text, re.MULTILINE)
    return [(file, names.split(", ")) for file, names in found]


def test_every_step_is_in_its_file() -> None:
    assert len(steps()) == MOST_STEPS - 1  # the last step is the renderers
    for file, names in steps():
        tree = ast.parse((ROOT / "tintype" / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert set(names) <= defined, file


def test_only_the_steps_make_verdicts() -> None:
    """No renderer estimates, and none builds a row or a note of its own."""
    makers = {"estimate_arm", "tested_row", "cells_of", "Row", "Note", "Comparison"}
    for place in SURFACES:
        path = ROOT / "tintype" / place
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            calls = {
                node.func.id
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert not calls & makers, file
