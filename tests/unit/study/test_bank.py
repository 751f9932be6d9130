"""Stored runs of other studies serve as runs of the baseline, where they are of the same plan and agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.tiny import TINY
from tests.written_runs import METRIC, Writer, written_runs
from tintype.cli import app
from tintype.errors import UserError
from tintype.runtime.files import write_checked
from tintype.study.bank import read_bank
from tintype.study.lab import report_study, run_study
from tintype.study.results import Comparison, StudyResults, read_results_file
from tintype.study.study import load_study

STUDY = """
question: Does it pay?
recipe: PLAN
seeds: [0, 1, 2, 3]
control_seeds: [10, 11, 12, 13]
arms:
  - {name: strong, set: [optimizer.lr=0.01]}
primary: [validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [], sampler: {steps: 1}}
"""
STORED = list(range(2, 26))


def made(folder: Path, name: str, *settings: str, effects: dict[str, float] | None = None, plan: str = TINY) -> Path:
    """Write the runs of a study and its report; return its folder."""
    (folder / f"{name}.plan.yaml").write_text(TINY)
    (folder / f"{name}.yaml").write_text(STUDY.replace("PLAN", str(folder / f"{name}.plan.yaml")))
    with written_runs(Writer(effects if effects is not None else {"strong": -2.0})):
        run_study(load_study(str(folder / f"{name}.yaml"), settings), folder / name, 1)
    return folder / name


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with many runs of the baseline, six of them of seeds that the other study has."""
    return made(tmp_path_factory.mktemp("bank"), "many", f"seeds={STORED}", "control_seeds=[]", effects={})


@pytest.fixture
def bank(many: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(many, tmp_path / "many", ignore=shutil.ignore_patterns("runs", "report.*")))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """The results of the study without stored runs."""
    return read_results_file(made(tmp_path_factory.mktemp("alone"), "alone") / "results.json")


def row(results: StudyResults) -> Comparison:
    return results.arms[-1].comparisons[METRIC]


def served(folder: Path, bank: Path, name: str = "few") -> StudyResults:
    return read_results_file(made(folder, name, f"analysis.bank=[{bank}]") / "results.json")


def test_stored_runs_serve_and_stay_with_the_study(tmp_path: Path, bank: Path, alone: StudyResults) -> None:
    found = served(tmp_path, bank)
    assert found.bank is not None and found.bank.served == len(STORED) - 2 - 4, "seeds 2, 3 and 10 to 13 are its own"
    assert [check.agrees for check in found.bank.checks] == [True] and found.bank.sources[0].study == "many"
    assert row(found).mean == row(alone).mean and row(found).differences == row(alone).differences
    plain, with_bank = row(alone), row(found)
    assert with_bank.high is not None and with_bank.low is not None and plain.high is not None and plain.low is not None
    assert with_bank.high - with_bank.low < plain.high - plain.low
    text = (tmp_path / "few" / "report.md").read_text()
    assert "Stored runs: 18 of the baseline from many serve" in text and "they agree" in text
    assert "6 runs of many: the study has their seeds itself" in text

    before = (tmp_path / "few" / "results.json").read_bytes()
    shutil.rmtree(bank)
    report_study(tmp_path / "few")
    assert (tmp_path / "few" / "results.json").read_bytes() == before, "it has the stored runs in its own folder"
    shutil.rmtree(tmp_path / "few" / "runs")
    (tmp_path / "few" / "bank.json").unlink()
    report_study(tmp_path / "few")
    assert (tmp_path / "few" / "results.json").read_bytes() == before, "and in its results"


def moved(bank: Path, change: float) -> None:
    """Move every stored run of the baseline."""
    arms = json.loads((bank / "results.json").read_text())["arms"]
    for run in arms[0]["runs"]:
        run["metrics"][METRIC] += change
    changed(bank, arms=arms)


def test_stored_runs_that_differ_do_not_serve(tmp_path: Path, bank: Path, alone: StudyResults) -> None:
    moved(bank, 0.2)
    found = served(tmp_path, bank)
    assert found.bank is not None and [check.agrees for check in found.bank.checks] == [False]
    assert row(found) == row(alone)
    assert "In 1 of 1 metrics they do not agree" in (tmp_path / "few" / "report.md").read_text()


def test_without_the_check_they_would_serve(
    tmp_path: Path, bank: Path, alone: StudyResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tintype.study.bank.agrees", lambda cells, found: True)
    moved(bank, 0.2)
    assert row(served(tmp_path, bank)) != row(alone)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("set=[train.warmup_steps=1]", "no run of this study's baseline"),
        ("evaluation.sampler.steps=2", "another protocol"),
    ],
)
def test_studies_of_something_else_are_refused(tmp_path: Path, bank: Path, setting: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        made(tmp_path, "few", f"analysis.bank=[{bank}]", setting)


def changed(bank: Path, **values: object) -> None:
    content = json.loads((bank / "results.json").read_text())
    del content["checksum"]
    write_checked(bank / "results.json", {**content, **values})


def test_runs_of_other_numerics_are_refused(tmp_path: Path, bank: Path) -> None:
    assert read_results_file(bank / "results.json").numerics == 1
    changed(bank, numerics=2)
    with pytest.raises(UserError, match=r"computed other numbers \(NUMERICS 2, here it is 1\)"):
        served(tmp_path, bank)


def test_a_run_under_another_seed_is_refused(tmp_path: Path, bank: Path) -> None:
    arms = json.loads((bank / "results.json").read_text())["arms"]
    arms[0]["runs"][0]["seed"] = 77
    changed(bank, arms=arms)
    with pytest.raises(UserError, match="has the seed 77, but its hash belongs to the seed 2"):
        served(tmp_path, bank)


def test_damaged_and_missing_results_are_refused(tmp_path: Path, bank: Path) -> None:
    file = bank / "results.json"
    file.write_text(file.read_text().replace('"done"', '"dome"', 1))
    with pytest.raises(UserError, match=r"results\.json"):
        served(tmp_path, bank)
    file.unlink()
    with pytest.raises(UserError, match=r"has no results\.json"):
        served(tmp_path, bank, "again")


def test_runs_of_another_device_and_with_other_networks_are_left_out(tmp_path: Path, bank: Path) -> None:
    arms = json.loads((bank / "results.json").read_text())["arms"]
    for run in arms[0]["runs"][:10]:
        run["environment"] = {"device": "abacus"}
    changed(bank, arms=arms)
    found = served(tmp_path, bank)
    assert found.bank is not None and found.bank.served == len(STORED) - 6 - 6, "six are its own"
    assert "6 runs of many: made on abacus" in found.bank.left_out


def test_a_bank_stays_once_the_study_was_looked_at(tmp_path: Path, bank: Path) -> None:
    served(tmp_path, bank)
    before = read_bank(tmp_path / "few")
    changed(bank, arms=json.loads((bank / "results.json").read_text())["arms"][:1], name="other")
    served(tmp_path, bank)
    assert read_bank(tmp_path / "few") == before
    with pytest.raises(UserError, match="bank was"):
        made(tmp_path, "few")


def test_tuned_baselines_have_no_stored_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"analysis\.bank cannot be used with tune"):
        made(tmp_path, "few", "analysis.bank=[x]", 'tune={"train.warmup_steps": [1, 2]}')


def test_a_dry_run_says_how_many_serve_and_paths_are_beside_the_study_file(tmp_path: Path, bank: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "few.yaml").write_text(
        STUDY.replace("PLAN", str(tmp_path / "plan.yaml")) + "analysis: {bank: [many]}\n"
    )
    shown = CliRunner().invoke(app, ["ablate", str(tmp_path / "few.yaml"), "--out", str(tmp_path / "out"), "--dry-run"])
    assert "18 stored runs of the baseline will serve, from many" in " ".join(shown.output.split()), shown.output
    assert not (tmp_path / "out").exists()


def test_collapsed_stored_runs_are_left_out_and_name_no_seed_of_the_study(tmp_path: Path, bank: Path) -> None:
    arms = json.loads((bank / "results.json").read_text())["arms"]
    arms[0]["runs"][-1]["metrics"][METRIC] = 9.0
    changed(bank, arms=arms)
    found = served(tmp_path, bank)
    assert found.bank is not None and found.bank.checks[0].collapsed == 1
    assert row(found).baseline_collapsed == [] and "collapsed" in (tmp_path / "few" / "report.md").read_text()
