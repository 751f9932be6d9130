"""The notebook in examples/ runs from its first cell to its last, with the event loop running as in Jupyter."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import tintype
from tests.tiny import TINY

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_study.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line where that is an expression, which a notebook shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), namespace)
    return (
        eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace) if isinstance(last, ast.Expr) else None
    )


def is_install(cell: dict[str, Any]) -> bool:
    return "install" in cell["metadata"].get("tags", [])


def test_it_is_a_valid_notebook_without_outputs() -> None:
    """Check what the schema of nbformat 4.5 asks for; opening it on a hosted notebook takes one install."""
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5) and set(book) >= {"metadata", "cells"}
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        extra = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | extra
        assert all(isinstance(line, str) for line in cell["source"])
    assert all(cell["execution_count"] is None and cell["outputs"] == [] for cell in CODE)
    assert ["".join(cell["source"]) for cell in CODE if is_install(cell)] == ["%pip install --quiet tintype"]
    assert is_install(CODE[0])


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shown: list[Any] = []

    async def notebook() -> None:
        for cell in CODE:
            if not is_install(cell):
                shown.append(run_cell("".join(cell["source"]), namespace))

    asyncio.run(notebook())
    assert len([value for value in shown if isinstance(value, Image.Image)]) == 3
    (results,) = [value for value in shown if isinstance(value, tintype.Results)]
    assert "<td>worse</td>" in results._repr_html_()
    assert results.report.is_file() and not results.failed


SCRIPT = """
import threading
import tintype

print("begins", flush=True)


def work():
    protocol = {"count": 8, "reference_count": 16, "validation_count": 4, "also": [], "sampler": {"steps": 1}}
    study = tintype.make_study("q", "tiny.yaml", {"fast": "muon"}, seeds=[0], evaluation=protocol)
    results = tintype.run_study(study, "study")
    print(*(run["state"] for run in results.runs()), flush=True)


thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.slow
def test_a_study_needs_neither_a_main_guard_nor_the_main_thread(tmp_path: Path) -> None:
    """Workers would run a script again that starts a study at its top level."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "tiny.yaml").write_text(TINY)
    environment = {**os.environ, "PYTHONPATH": str(NOTEBOOK.parents[1])}
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["begins", "done", "done"], "")
