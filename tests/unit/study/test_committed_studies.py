"""Studies that were run and committed, without their runs, stay readable, and their raw metrics give their verdicts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tintype.study.analysis import AnalysisSettings
from tintype.study.lab import report_study
from tintype.study.pairs import Pair, pair_runs
from tintype.study.results import StudyResults, read_results_file
from tintype.study.verdicts import compare

STUDIES = sorted(file.parent for file in (Path(__file__).parents[3] / "studies").glob("*/results.json"))


@pytest.fixture(params=STUDIES, ids=lambda folder: str(folder.name))
def study(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_a_committed_study_is_reported_again(study: Path, tmp_path: Path) -> None:
    for name in ("study.yaml", "results.json", "report.html"):
        shutil.copy(study / name, tmp_path)
    report_study(tmp_path)
    for name in ("results.json", "report.html", "results.csv"):
        assert (tmp_path / name).read_bytes() == (study / name).read_bytes(), name
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    results = read_results_file(study / "results.json")
    assert all(f"### {metric.label}" in markdown for metric in results.metrics)
    assert StudyResults.model_validate_json(json.dumps(results.dump())) == results


def test_the_raw_metrics_give_the_committed_differences(study: Path) -> None:
    """Recompute differences, intervals and p. Corrected p values need the comparisons that the study planned.

    An older version gave an interval of width zero where all seeds differ by the same amount; now there is none.
    """
    results = read_results_file(study / "results.json")
    pairs: dict[tuple[str, str], Pair] = {}
    for view in results.by_resolution():
        baseline, *arms = view.arms
        for arm in arms:
            for metric in arm.comparisons:
                pairs[arm.label, metric] = pair_runs(arm.runs, baseline.runs, metric, arm.role == "arm")
    paired = AnalysisSettings(method="paired")
    rows = compare(pairs, {metric.name: metric for metric in results.metrics}, analysis=paired)
    for arm in results.arms:
        for metric, stored in arm.comparisons.items():
            row = rows[arm.label, metric]
            tested = ("low", "high", "p") if row.p is not None or stored.p is None else ()
            for field in ("mean", "baseline_mean", "difference", *tested):
                wanted = getattr(stored, field)
                assert getattr(row, field) == (None if wanted is None else pytest.approx(wanted, rel=1e-9)), field
