"""Write the files of a study's report: JSON and two CSV files for programs, and Markdown and a page for readers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from tintype.runtime.files import write_checked, write_text
from tintype.runtime.printable import visible
from tintype.study.report.html import to_html
from tintype.study.report.images import images_of
from tintype.study.report.markdown import to_markdown
from tintype.study.results import StudyResults

_FORMULA = ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠")
"""First characters of a formula in a spreadsheet, including full-width forms."""

_ALONE = {"device": "alone_on", "step_s": "step_alone_s", "peak_bytes": "peak_bytes", "host_bytes": "host_bytes"}
"""Columns with the measurements of an arm alone on a GPU."""


def write_report(results: StudyResults, folder: Path, *, stored: bool = False) -> Path:
    """Write all five files atomically, and return the page's path.

    If only the `stored` results are left, images are copied from the existing page, since their files were deleted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    kept = images_of(page.read_text(encoding="utf-8"), results) if stored and page.exists() else {}
    write_checked(folder / "results.json", results.dump())
    write_text(folder / "results.csv", to_csv(results))
    write_text(folder / "verdicts.csv", verdicts_csv(results))
    write_text(folder / "report.md", to_markdown(results))
    write_text(page, to_html(results, folder, kept))
    return page


def verdicts_csv(results: StudyResults) -> str:
    """Return the table of verdicts, with a row for each comparison."""
    sheet = io.StringIO()
    rows = [row.data for row in results.rows()]
    writer = csv.DictWriter(sheet, list(rows[0]) if rows else ["arm", "metric", "verdict"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return sheet.getvalue()


def to_csv(results: StudyResults) -> str:
    """Return one row for each combination of arm, seed and metric; the value is empty if the run has none.

    Several resolutions add columns at the left; measurements of arms alone on a GPU add columns at the right.
    """
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    first = ["resolution", "tokens"] if results.several else []
    last = _ALONE if any(arm.alone for arm in results.arms) else {}
    writer.writerow([*first, "arm", "role", "seed", "metric", "value", "hash", "state", *last.values()])
    for arm in results.arms:
        where = [arm.resolution, arm.tokens] if results.several else []
        alone = [getattr(arm.alone, key, None) or "" for key in last]
        for run in arm.runs:
            for metric in results.metrics:
                value = run.metrics.get(metric.name, "")
                row = [*where, arm.name, arm.role, run.seed, metric.name, value, run.hash, run.state, *alone]
                writer.writerow([_cell(one) for one in row])
    return sheet.getvalue()


def _cell(value: object) -> object:
    """Return a cell that a spreadsheet never evaluates: a formula gets a quote, a carriage return an escape code."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
