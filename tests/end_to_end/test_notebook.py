"""The notebook in examples/ runs from its first cell to its last, with the event loop running as in Jupyter."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import tintype
from tests.tiny import TINY
from tools.notebook import NOTEBOOK, code_cells, code_hash, read, run

BOOK = read()
CELLS, CODE = BOOK["cells"], code_cells(BOOK)
MOST_BYTES = 64 * 1024


def test_it_is_a_valid_notebook_with_small_outputs_of_its_own_code() -> None:
    """Check what the schema of nbformat 4.5 asks for, and that the outputs are of the code that is there now."""
    assert (BOOK["nbformat"], BOOK["nbformat_minor"]) == (4, 5) and set(BOOK) >= {"metadata", "cells"}
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        extra = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | extra
        assert all(isinstance(line, str) for line in cell["source"])
    assert BOOK["metadata"]["tintype"]["code_sha256"] == code_hash(CODE), "run `python -m tools.notebook` again"
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    assert [bool(cell["outputs"]) for cell in CODE] == [False, *[True] * (len(CODE) - 1)], "all but the install"
    kinds = [kind for cell in CODE for one in cell["outputs"] for kind in one.get("data", {"text": ""})]
    assert kinds.count("image/png") == 3 and "text/html" in kinds
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES and "/tmp" not in text and str(Path.home()) not in text


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the first cell in a folder, and return what it gives to pip."""
    asked: list[str] = []
    monkeypatch.chdir(folder)
    assert list(run(CODE[:1], asked.append)) == [("", None)]
    return asked


def test_the_first_cell_installs_the_checkout_that_it_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CODE[0]["metadata"]["tags"] == ["install"]
    assert install(NOTEBOOK.parent, monkeypatch) == [], "it is installed"

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert install(NOTEBOOK.parent, monkeypatch) == [f"install --quiet {NOTEBOOK.parents[1]}"]
    assert install(tmp_path, monkeypatch) == ["install --quiet tintype"]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def notebook() -> list[Any]:
        return [value for _, value in run(CODE, pytest.fail)]

    shown = asyncio.run(notebook())
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
