"""Studies that were run and committed, without their runs, stay readable, and their raw metrics give their verdicts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tintype.study.lab import report_study
from tintype.study.looks import FIRST_SHARE
from tintype.study.results import Comparison, StudyResults, read_results_file

STUDIES = sorted(file.parent for file in (Path(__file__).parents[3] / "studies").glob("*/results.json"))


@pytest.fixture(params=STUDIES, ids=lambda folder: str(folder.name))
def study(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a committed study."""
    return Path(shutil.copytree(request.param, tmp_path / request.param.name))


def test_a_committed_study_is_reported_again(study: Path) -> None:
    names = ("results.json", "results.csv", "report.md", "report.html")
    before = {name: (study / name).read_bytes() for name in names}
    results = read_results_file(study / "results.json")
    assert StudyResults.model_validate_json(json.dumps(results.dump())) == results
    report_study(study)
    for name in names:
        assert (study / name).read_bytes() == before[name], name


def test_the_paired_method_gives_the_verdicts_of_before(study: Path) -> None:
    """Differences, intervals and p values are the same.

    These studies spent all of their error at once. Their first look now has a share of it, so p values are corrected by
    that share too. An older version gave an interval of width zero where all seeds differ by the same amount.
    """
    if not (readings := read_results_file(study / "results.json").earlier):
        pytest.skip("never read by the paired method")
    (before,) = readings
    assert before.method == "paired"
    report_study(study, method="paired")
    paired = read_results_file(study / "results.json")
    rows = {(arm.label, metric): row for arm in paired.arms for metric, row in arm.comparisons.items()}
    for one in before.rows:
        row = rows[one.arm, one.metric]
        tested = ("low", "high") if row.p is not None else ()
        for field in ("difference", *tested):
            assert getattr(row, field) == pytest.approx(getattr(one, field), rel=1e-9), field
        assert _is_found(row) == (one.verdict != "not shown")
        assert row.verdict in (one.verdict, "undecided", "no spread")


def _is_found(row: Comparison) -> bool:
    """Return whether a difference would be found with the whole error."""
    return row.p_adjusted is not None and FIRST_SHARE * row.p_adjusted < 0.05
