"""The examples of docs/library run as they are written, page by page, in the folder that the first page fills."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

import tintype
from tests.plugin_files import only_these_plugins
from tests.studies import studies_in_process

PAGES = Path(__file__).parents[3] / "docs" / "library"
ORDER = [
    "index",
    "load_plan",
    "apply",
    "train",
    "load_run",
    "sample",
    "evaluate",
    "run_study",
    "results",
    "pool",
    "compare",
    "judge",
    "commands",
    "load_plugins",
]
OPTIONAL = ("pandas", "polars")


def run_examples(page: str) -> int:
    """Run the Python of a page in one namespace; return the number of examples that were run."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    wanted = [one for one in examples if not any(f"import {name}" in one and not find_spec(name) for name in OPTIONAL)]
    for number, example in enumerate(wanted, 1):
        exec(compile(example, f"{page}.md, example {number}", "exec"), namespace)
    return len(wanted)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the pages that later ones rest on: a trained run, and a study."""
    folder = tmp_path_factory.mktemp("workshop")
    with pytest.MonkeyPatch.context() as patch, studies_in_process():
        patch.chdir(folder)
        run_examples("index")
        with ThreadPoolExecutor(1) as pool:  # no signal handlers can be set there
            pool.submit(run_examples, "run_study").result()
    return folder


@pytest.mark.parametrize("page", ORDER)
def test_the_examples_of_a_page_run(
    page: str, workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = shutil.copytree(workshop, tmp_path / "here")
    monkeypatch.chdir(here)
    with studies_in_process(), only_these_plugins():
        assert run_examples(page) >= 1
    assert not capsys.readouterr().err


def test_every_page_is_run_and_listed() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(ORDER)
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    assert all(f"({page}.md)" in index for page in ORDER[1:])
    listed = index + (PAGES / "commands.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in listed for name in tintype.__all__)


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES.glob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (PAGES / link).resolve().exists(), f"{page.name}: {link}"


def test_rows_are_plain_tables(workshop: Path) -> None:
    """Data frames take dictionaries of plain values; `rows` have the same keys, whatever the verdict."""
    results = tintype.load_results(workshop / "studies" / "learning-rate")
    for rows in (results.rows(), results.runs()):
        assert rows and len({tuple(row) for row in rows}) == 1
        assert all(isinstance(value, str | int | float | None) for row in rows for value in row.values())
    assert {row["verdict"] for row in results.rows(primary=True)} == {"worse"}
    assert results.content == tintype.load_results(results.path / "results.json").content
    assert results.report.is_file() and not results.failed


def test_a_notebook_shows_the_verdicts_as_a_table(workshop: Path) -> None:
    results = tintype.load_results(workshop / "studies" / "learning-rate")
    html = results._repr_html_()
    assert html.startswith("<table>") and "<td>a tenth</td>" in html and "<td>worse</td>" in html
    assert "<p>Verdicts from 2 seeds are a sketch" in html and str(results).splitlines()[-1] == results.notes[-1]
    assert "a tenth · validation loss (lower is better) · worse" in str(results)
    assert repr(results) == f"<Results {results.path}: Is a tenth of the learning rate enough?>"
