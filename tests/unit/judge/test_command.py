"""`tintype judge`: its table, its document, its page, and that it needs no torch."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import tintype
from tests.unit.cli.test_imports import modules_of
from tintype.cli import app
from tintype.cli.schemas import document_type
from tintype.errors import UserError
from tintype.terminal.judge import show_judgement

ROOT = Path(__file__).parents[3]
RUNS = """arm,seed,val_loss,fid,accuracy,note
adamw,0,2.31,14.2,0.523,ok
adamw,1,2.33,13.9,0.531,ok
adamw,2,2.30,14.8,0.519,ok
adamw,3,2.32,14.1,0.527,ok
adamw,4,2.31,14.4,0.522,ok
muon,0,2.24,13.2,0.561,ok
muon,1,2.26,13.6,0.571,ok
muon,2,2.23,12.9,0.557,ok
muon,3,2.25,13.1,0.566,ok
muon,4,2.26,13.5,0.559,ok
<wide>,0,2.31,14.0,0.528,ok
<wide>,1,2.32,14.3,0.524,ok
<wide>,2,2.33,14.1,0.530,ok
<wide>,3,2.30,14.5,0.526,ok
<wide>,4,nan,14.2,0.521,ok
"""
"""Made-up numbers."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "runs.csv").write_text(RUNS)
    return tmp_path / "runs.csv"


def printed(table: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["judge", str(table), "--baseline", "adamw", *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_has_verdicts_intervals_and_notes(table: Path) -> None:
    shown = " ".join(printed(table, "--primary", "val_loss").split())
    assert "val_loss (lower is better)" in shown and "other verdicts" in shown
    row = tintype.judge(table, baseline="adamw", primary="val_loss")["muon", "val_loss"]
    assert f"better -0.066 [{row.low:+.3g}, {row.high:+.3g}]" in shown and "diverged 1 of 5 +0.000995" in shown
    assert "fid: better" in shown and "accuracy: same" in shown
    assert "note: Guessed from the names: lower is better in val_loss (loss), fid (distance)" in shown
    assert "the whole error of 5%: 6 comparisons share it, four fifths" in shown
    assert "note: Columns that were not read: note." in shown


def test_a_terminal_shows_colours_and_a_file_none(table: Path) -> None:
    found = tintype.judge(table, baseline="adamw")
    for terminal in (True, False):
        written = io.StringIO()
        show_judgement(found, Console(file=written, force_terminal=terminal, width=100))
        assert ("\x1b[32mbetter" in written.getvalue()) == terminal
        assert all(len(line) <= 100 for line in written.getvalue().splitlines() if "│" in line and not terminal)


def test_the_document_has_its_type(table: Path, tmp_path: Path) -> None:
    text = printed(table, "--json", "--out", str(tmp_path / "out"))
    document_type("judge").validate_json(text)
    found = json.loads(text)
    row = next(one for one in found["verdicts"] if (one["arm"], one["metric"]) == ("muon", "fid"))
    assert row["verdict"] == "better" and row["low"] < row["difference"] < row["high"] < 0
    assert found["report"] == str(tmp_path / "out" / "report.html")


def test_the_report_is_one_page_with_charts_and_tables_beside_it(table: Path, tmp_path: Path) -> None:
    printed(table, "--out", str(tmp_path / "out"))
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 3 and "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert "&lt;wide&gt;" in page and "<wide>" not in page
    assert "diverged 1 of 5" in page and ">diverged<" in page
    written = json.loads((tmp_path / "out" / "verdicts.json").read_text())
    with (tmp_path / "out" / "verdicts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["verdict"] for row in rows] == [row["verdict"] for row in written["verdicts"]]


def test_a_sketch_is_shown_without_verdicts(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("arm,seed,fid\nadamw,0,14\nmuon,0,13\n")
    shown = printed(tmp_path / "one.csv", "--out", str(tmp_path / "out"))
    assert "Sketch: one run for each arm, no verdicts" in " ".join(shown.split()) and "sketch -1" in shown
    assert "Sketch: one run for each arm" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no arm is called 'baseline'; name the baseline with --baseline. The arms are: adamw, muon, <wide>"),
        (["--baseline", "adam"], "no arm has the name 'adam', which --baseline gives; did you mean 'adamw'?"),
        (
            ["--baseline", "adamw", "--margin", "x"],
            "--margin x is not a valid size of a difference; write a percentage of",
        ),
        (["--baseline", "adamw", "--arm-column", "x"], "has no column 'x'; name the column with --arm-column"),
    ],
)
def test_mistakes_name_the_option(options: list[str], words: str, table: Path) -> None:
    result = CliRunner().invoke(app, ["judge", str(table), *options])
    assert isinstance(result.exception, UserError) and words in str(result.exception)


def test_the_library_names_its_arguments(table: Path) -> None:
    with pytest.raises(UserError, match="name the baseline with `baseline`"):
        tintype.judge(table)


def test_the_command_imports_no_torch(table: Path, tmp_path: Path) -> None:
    modules = modules_of("judge", str(table), "--baseline", "adamw", "--out", str(tmp_path / "out"))
    assert "tintype.judge.page" in modules and "scipy" in modules
    assert not {"torch", "transformers", "pyarrow", "diffusers"} & set(modules)


def test_the_functions_import_no_torch(table: Path) -> None:
    program = f"""
import sys, tintype
print(tintype.estimate({{"baseline": [1.0, 1.1], "a": [2.0, 2.1]}}, direction="higher"))
print(tintype.judge({str(table)!r}, baseline="adamw"))
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True)
