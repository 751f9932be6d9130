"""Several studies of one comparison are read together; a run counts once, whatever its study is called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tintype
from tests.unit.study.test_bank import made
from tests.written_runs import METRIC
from tintype.cli import app
from tintype.errors import UserError
from tintype.runtime.files import write_checked
from tintype.study.pooling import Pooled, PooledMetric, pool_studies

SEEDS = ("seeds=[20,21,22,23]", "control_seeds=[30,31,32,33]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies of one comparison; the arm of the second has another name. A third differs, a fourth shares runs."""
    folder = tmp_path_factory.mktemp("pool")
    renamed = "arms=[{name: renamed, set: [optimizer.lr=0.01]}]"
    made(folder, "first")
    made(folder, "second", *SEEDS, renamed, effects={"renamed": -2.0})
    made(folder, "far", *SEEDS, renamed, effects={"renamed": 10.0})
    made(folder, "shares", "seeds=[2,3,40,41]", "control_seeds=[]")
    return folder


def one(found: Pooled) -> PooledMetric:
    (arm,) = found.arms
    return next(row for row in arm.metrics if row.metric == METRIC)


def test_two_studies_give_one_estimate_each_and_their_mean(folder: Path) -> None:
    found = pool_studies([folder / "first", folder / "second"])
    (arm,) = found.arms
    assert arm.names == {"first": "strong", "second": "renamed"} and (arm.seeds, arm.baseline_seeds) == (8, 16)
    row = one(found)
    assert [study.seeds for study in row.studies] == [4, 4] and arm.shared == 0
    assert row.difference.low is not None and row.difference.high is not None
    for study in row.studies:
        assert study.difference.low is not None and study.difference.high is not None
        assert row.difference.high - row.difference.low < study.difference.high - study.difference.low
    assert row.verdict == "better" and row.difference == row.as_one
    assert row.heterogeneity_p is not None and row.heterogeneity_p > 0.1 and "do not differ" in row.agreement
    assert tintype.pool(folder / "first", folder / "second") == found


def test_studies_that_differ_have_the_wider_interval_and_say_so(folder: Path) -> None:
    row = one(pool_studies([folder / "first", folder / "far"]))
    assert row.heterogeneity_p is not None and row.heterogeneity_p < 0.001
    assert row.verdict == "undecided" and row.difference == row.across and "differ by more" in row.agreement
    assert row.between is not None and row.between > 0


def test_a_study_counts_once_whatever_it_is_called(folder: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(folder / "first", tmp_path / "first"))
    found = pool_studies([folder / "first", again])
    row = one(found)
    assert (found.arms[0].seeds, found.arms[0].shared) == (4, 12)
    assert len(row.studies) == 1 and len(row.studies[0].studies) == 2 and row.across is None
    with pytest.raises(UserError, match="is given twice"):
        pool_studies([folder / "first", folder / "second", folder / "first" / "results.json"])


def test_studies_that_share_runs_are_read_as_one(folder: Path) -> None:
    found = pool_studies([folder / "shares", folder / "first", folder / "second"])
    (arm,) = found.arms
    assert (arm.seeds, arm.baseline_seeds, arm.shared) == (4 + 4 + 2, 16 + 2, 4)
    assert sorted(map(sorted, (study.studies for study in one(found).studies))) == [["first", "shares"], ["second"]]


def test_what_does_not_fit_is_left_out_or_refused(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder / "second", tmp_path / "other"))
    content = json.loads((other / "results.json").read_text())
    del content["checksum"]
    write_checked(other / "results.json", {**content, "numerics": 7})
    found = pool_studies([folder / "first", folder / "second", other])
    assert found.studies == ["first", "second"] and "NUMERICS 7, here it is 1" in found.left_out[0]
    with pytest.raises(UserError, match="no two of these studies"):
        pool_studies([folder / "first", other])
    with pytest.raises(UserError, match="at least two studies"):
        pool_studies([folder / "first"])
    with pytest.raises(UserError, match="fewer than two of the studies have the arm 'nothing'"):
        pool_studies([folder / "first", folder / "second"], ["nothing"])


def test_the_command_shows_it_and_has_it_as_json(folder: Path) -> None:
    paths = [str(folder / name) for name in ("first", "second")]
    shown = CliRunner().invoke(app, ["pool", *paths], env={"COLUMNS": "160"}).output
    text = " ".join(shown.split())
    assert "strong: 8 runs of the arm, 16 of the baseline." in text and "together" in text and "better" in text
    assert "without correction for other comparisons" in text
    found = json.loads(CliRunner().invoke(app, ["pool", *paths, "--json"]).stdout)
    assert found["arms"][0]["metrics"][0]["verdict"] == "better"
