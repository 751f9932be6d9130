"""Each tracker for real, offline: what its own reader finds after a failure, a resume, a score and verdicts."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tracked_runs import SAMPLE, SCORE, log_verdicts, score, tracked_plan, train_with_a_failure
from tintype.runtime.files import read_checked
from tintype.train.record import RunRecord

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the packages are not ours
STEPS = [1, 2, 3, 4, 5, 6]


def make(tracker: str, place: Path, **settings: str) -> tuple[Path, Path]:
    """Make a run and a study with a tracker."""
    plan, run, study = tracked_plan(tracker, **settings), place / "run", place / "study"
    train_with_a_failure(plan, run)
    score(plan, run)
    log_verdicts(plan, study)
    assert not [event for event in RunRecord(run).events if event["event"] == "tracker-failed"]
    return run, study


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in RunRecord(run).lines]


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, study = make("tensorboard", tmp_path)
    found = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.step for event in found.Scalars("loss")] == STEPS
    assert [event.value for event in found.Scalars("loss")] == pytest.approx(losses(run))
    assert [(event.step, event.value) for event in found.Scalars(SCORE)] == [(6, 1.5)]
    assert [event.step for event in found.Images(SAMPLE)] == [6]
    (plan,) = found.Tensors("plan/text_summary")
    assert b"lr: 0.001" in plan.tensor_proto.string_val[0]
    (verdicts,) = EventAccumulator(str(study / "tensorboard")).Reload().Tensors("verdicts/text_summary")
    assert b"| muon | fd | better |" in verdicts.tensor_proto.string_val[0]


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, study = make("wandb", tmp_path, tracker_project="tests")
    records = list(_wandb_records(run))
    stored = read_checked(run / "trackers" / "wandb.json", "")
    assert {record.run.run_id for record in records if record.HasField("run")} == {stored["id"]}
    assert {record.run.project for record in records if record.HasField("run")} == {"tests"}
    config = {
        item.key: json.loads(item.value_json)
        for record in records
        if record.HasField("run")
        for item in record.run.config.update
    }
    assert config["optimizer.lr"] == 1e-3
    history = [_wandb_items(record.history.item) for record in records if record.HasField("history")]
    trained = [line for line in history if "loss" in line]
    assert [line["step"] for line in trained] == STEPS
    assert [line["loss"] for line in trained] == losses(run)
    assert [(line["step"], line[SCORE]) for line in history if SCORE in line] == [(6, 1.5)]
    (image,) = [line[f"{SAMPLE}/path"] for line in history if f"{SAMPLE}/path" in line]
    assert list((run / "trackers").rglob(image))
    (line,) = [_wandb_items(record.history.item) for record in _wandb_records(study) if record.HasField("history")]
    (table,) = (study / "trackers").rglob(line["verdicts/path"])
    assert json.loads(table.read_text())["data"] == [["muon", "fd", "better", -0.5, None]]


def _wandb_records(folder: Path) -> Iterator[Any]:
    """Read the offline files, the oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted((folder / "trackers").rglob("*.wandb"), key=lambda file: file.stat().st_mtime)
    assert files
    for file in files:
        for data in _leveldb_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            yield record


def _leveldb_records(content: bytes) -> Iterator[bytes]:
    """Read LevelDB's log format after W&B's 7 bytes: checksum, length and type of each part, in blocks of 32 KiB."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # too little for another head: the rest of the block is empty
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def _wandb_items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when the package is imported
    pytest.importorskip("trackio", reason="the extra trackio is not installed")
    from trackio.sqlite_storage import SQLiteStorage

    run, _ = make("trackio", tmp_path, tracker_project="tests")
    assert capsys.readouterr().out == "", "stdout is for results"
    stored = read_checked(run / "trackers" / "trackio.json", "")
    names = SQLiteStorage.get_runs("tests")
    assert sorted(names) == sorted([f"run {stored['id'][:8]}", next(n for n in names if n.startswith("a study "))])
    lines = SQLiteStorage.get_logs("tests", f"run {stored['id'][:8]}")
    trained = [line for line in lines if "loss" in line]
    assert [line["step"] for line in trained] == STEPS
    assert [line["loss"] for line in trained] == losses(run)
    assert [(line["step"], line[SCORE]) for line in lines if SCORE in line] == [(6, 1.5)]
    (image,) = [line[SAMPLE] for line in lines if SAMPLE in line]
    assert image["_type"] == "trackio.image" and list((tmp_path / "trackio").rglob(Path(image["file_path"]).name))
    config = SQLiteStorage.get_run_config("tests", f"run {stored['id'][:8]}")
    assert config is not None and config["optimizer.lr"] == 1e-3
    (verdicts,) = SQLiteStorage.get_logs("tests", next(n for n in names if n.startswith("a study ")))
    assert verdicts["verdicts"]["_value"][0]["verdict"] == "better"


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from mlflow import MlflowClient, artifacts

    run, _ = make("mlflow", tmp_path, tracker_project="tests")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("tests")
    found = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
    assert sorted(found) == ["a study", "run"]
    trained = found["run"]
    assert trained.data.tags["tintype_id"] == read_checked(run / "trackers" / "mlflow.json", "")["id"]
    assert trained.data.params["optimizer.lr"] == "0.001" and trained.info.status == "FINISHED"
    history = sorted(client.get_metric_history(trained.info.run_id, "loss"), key=lambda one: one.step)
    assert [one.step for one in history] == STEPS
    assert [one.value for one in history] == losses(run)
    assert [(one.step, one.value) for one in client.get_metric_history(trained.info.run_id, SCORE)] == [(6, 1.5)]
    images = client.list_artifacts(trained.info.run_id, f"images/{SAMPLE}/step-6")
    assert [Path(one.path).name for one in images] == ["preview-0.png"]
    verdicts = artifacts.load_dict(f"runs:/{found['a study'].info.run_id}/verdicts.json")
    assert dict(zip(verdicts["columns"], verdicts["data"][0], strict=True))["verdict"] == "better"
