"""A study logs its verdicts to the trackers of its baseline, each table once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import TINY
from tests.tracked_runs import record_wandb
from tests.written_runs import METRIC, Writer, written_runs
from tintype.runtime.files import read_checked
from tintype.study.lab import report_study, run_study
from tintype.study.study import load_study

STUDY = """
question: q
recipe: PLAN
seeds: [0, 1, 2, 3]
set: ["run.trackers=[wandb]"]
arms: [{name: strong, techniques: [muon]}]
evaluation: {count: 8, also: [], reference_count: 8}
"""


def test_a_study_logs_its_verdicts_at_the_end_and_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, out = record_wandb(monkeypatch), tmp_path / "mine"
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(STUDY.replace("PLAN", str(tmp_path / "plan.yaml")))
    study = load_study(str(tmp_path / "study.yaml"))
    with written_runs(Writer({"strong": -10.0})):
        outcome = run_study(study, out, 1)
        run_study(study, out, 1)
    report_study(out)
    assert outcome.report is not None
    (rows,) = recorder.verdicts
    (row,) = [one for one in rows if one["verdict"] != "incomplete"]
    expected = outcome.report.results.arms[1].comparisons[METRIC]
    assert (row["arm"], row["metric"], row["verdict"]) == ("strong", METRIC, "better")
    assert (row["difference"], row["low"], row["high"]) == (expected.difference, expected.low, expected.high)
    (about,) = recorder.opened
    assert (about.name, about.group) == (study.name, "mine")
    assert about.id == read_checked(out / "trackers" / "wandb.json", "")["id"]


def test_a_study_reports_although_its_tracker_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record_wandb(monkeypatch).fail_open = True
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(STUDY.replace("PLAN", str(tmp_path / "plan.yaml")))
    with written_runs(Writer()):
        outcome = run_study(load_study(str(tmp_path / "study.yaml")), tmp_path / "mine", 1)
    assert outcome.report is not None and outcome.report.page.is_file()
    assert "note: the tracker wandb failed (ConnectionError: no network)" in capsys.readouterr().err
