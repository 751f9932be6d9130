"""Run the notebook in examples/ and store its outputs: `python -m tools.notebook`.

The cells run in a temporary folder, without Jupyter. A hash of their code is stored too, so that a test can detect
outputs of other code.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import json
import os
import re
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tintype.runtime.files import write_text

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_study.ipynb"
Cell = dict[str, Any]
_PIP = re.compile(r"^(\s*)%pip (.*)$", re.MULTILINE)


def read(file: Path = NOTEBOOK) -> dict[str, Any]:
    book: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return book


def code_cells(book: dict[str, Any]) -> list[Cell]:
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def code_hash(cells: Sequence[Cell]) -> str:
    """Return the SHA-256 of the code of all cells."""
    return hashlib.sha256("\0".join("".join(cell["source"]) for cell in cells).encode()).hexdigest()


def run(cells: Sequence[Cell], pip: Callable[[str], None]) -> Iterator[tuple[str, Any]]:
    """Yield the output of each cell, and the value of its last line if that is an expression.

    `pip` gets the arguments of `%pip`, in which names between braces are replaced as in Jupyter.
    """
    namespace: dict[str, Any] = {"__name__": "__main__", "_pip": pip}
    for cell in cells:
        tree = ast.parse(_PIP.sub(r"\1_pip(f'''\2''')", "".join(cell["source"])))
        last = tree.body[-1]
        shown = last.value if isinstance(last, ast.Expr) else ast.Constant(None)
        tree.body = tree.body[:-1] if isinstance(last, ast.Expr) else tree.body
        with redirect_stdout(StringIO()) as printed:
            exec(compile(tree, "<cell>", "exec"), namespace)
            value = eval(compile(ast.fix_missing_locations(ast.Expression(shown)), "<cell>", "eval"), namespace)
        yield printed.getvalue(), value


def outputs_of(printed: str, value: Any, number: int) -> list[Cell]:
    """Return the outputs of a cell in the notebook format."""
    found: list[Cell] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if html := getattr(value, "_repr_html_", None):
            data["text/html"] = html().splitlines(keepends=True)
        if png := getattr(value, "_repr_png_", None):
            data = {"image/png": b64encode(png()).decode() + "\n", "text/plain": [f"<image of {value.size} pixels>"]}
        found.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return found


def main() -> int:
    book = read()
    cells, before = code_cells(book), Path.cwd()

    async def notebook() -> None:  # in a notebook an event loop runs
        for number, (cell, (printed, value)) in enumerate(zip(cells, run(cells, _refuse), strict=True), 1):
            cell["outputs"], cell["execution_count"] = outputs_of(printed, value, number), number

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            asyncio.run(notebook())
        finally:
            os.chdir(before)
    book["metadata"]["tintype"] = {"code_sha256": code_hash(cells)}
    write_text(NOTEBOOK, json.dumps(book, indent=1, ensure_ascii=False) + "\n")
    return 0


def _refuse(arguments: str) -> None:
    raise SystemExit(f"tintype is not installed here: pip {arguments}")


if __name__ == "__main__":
    sys.exit(main())
