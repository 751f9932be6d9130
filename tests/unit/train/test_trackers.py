"""Trackers mirror a run and never disturb it: none stops it, none changes a number, none gets a step twice."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import pytest
from safetensors.torch import load_file

from tests.tiny import tiny_plan
from tests.tracked_runs import (
    SAMPLE,
    SCORE,
    Recorder,
    log_verdicts,
    record_wandb,
    score,
    tracked_plan,
    train_with_a_failure,
)
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.settings import TrackerName
from tintype.study.lab import prepare_study
from tintype.study.study import load_study
from tintype.train import trackers
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.trackers import TRACKERS, TrackerKind, check_trackers, mirror
from tintype.train.trackers.mirror import numbers_in
from tintype.train.trackers.tracked import TrackerState

STEPS = [1, 2, 3, 4, 5, 6]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return record_wandb(monkeypatch)


def failures(run: Path) -> list[dict[str, Any]]:
    return [event for event in RunRecord(run).events if event["event"] == "tracker-failed"]


def trained(run: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the numbers of a run that are not times, and its last weights."""
    timed = ("images_per_s", "seconds", "parts", "saving_s")
    lines = [{key: value for key, value in line.items() if key not in timed} for line in RunRecord(run).lines]
    (file,) = (run / "checkpoints").glob("*6/*.safetensors")
    return lines, load_file(file)


def test_the_table_has_each_name_of_the_setting_and_each_is_an_extra() -> None:
    assert set(TRACKERS) == set(get_args(TrackerName))
    extras = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert all(f'\n{name} = ["{kind.package}>=' in extras for name, kind in TRACKERS.items())


def test_trackers_are_no_part_of_what_a_run_is() -> None:
    assert tracked_plan("wandb", tracker_project="mine").hash == tiny_plan().hash
    assert tiny_plan().run.trackers == ()
    with pytest.raises(UserError, match="'wandb' is given twice"):
        tracked_plan("wandb", "wandb")


def test_a_tracker_gets_the_plan_and_every_line_once(recorder: Recorder, tmp_path: Path) -> None:
    train(tracked_plan("wandb"), tmp_path / "run", Interrupt(), label="baseline, seed 0")
    (about,) = recorder.opened
    assert (about.name, about.project, about.is_new) == ("baseline, seed 0", "tintype", True)
    assert about.settings["optimizer.lr"] == 1e-3 and "lr: 0.001" in about.text
    expected = [(line["step"], numbers_in(line)) for line in RunRecord(tmp_path / "run").lines]
    assert recorder.lines == expected
    assert recorder.steps == STEPS and recorder.statuses == ["finished"]


def test_numbers_of_a_line_are_flat_and_without_the_step() -> None:
    line = {"step": 3, "loss": 1.0, "grad_norm": None, "parts": {"forward": 0.5, "step": 0.25}, "name": "x", "on": True}
    assert numbers_in(line) == {"loss": 1.0, "parts/forward": 0.5, "parts/step": 0.25}


def test_a_resumed_run_keeps_its_id_and_repeats_no_step(recorder: Recorder, tmp_path: Path) -> None:
    train_with_a_failure(tracked_plan("wandb"), tmp_path / "run")
    assert recorder.steps == STEPS, "step 5 was trained twice and is logged once"
    assert [about.is_new for about in recorder.opened] == [True, False]
    assert len({about.id for about in recorder.opened}) == 1
    assert recorder.statuses == ["failed", "finished"]


def test_control_without_its_record_a_tracker_would_get_a_step_twice(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrackerState, "has", lambda self, key: False)
    train_with_a_failure(tracked_plan("wandb"), tmp_path / "run")
    assert recorder.steps.count(5) == 2


def test_a_tracker_that_is_added_later_gets_what_was_trained_before(recorder: Recorder, tmp_path: Path) -> None:
    train(tiny_plan(), tmp_path / "run", Interrupt())
    assert train(tracked_plan("wandb"), tmp_path / "run", Interrupt()).already_done
    assert recorder.steps == STEPS
    train(tracked_plan("wandb"), tmp_path / "run", Interrupt())
    assert len(recorder.opened) == 1, "there was nothing to send"


def test_a_run_is_the_same_to_the_bit_with_and_without_trackers(recorder: Recorder, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    train(tiny_plan(), tmp_path / "without", Interrupt())
    train(tracked_plan("wandb", "tensorboard"), tmp_path / "with", Interrupt())
    (lines, weights), (other_lines, other_weights) = trained(tmp_path / "without"), trained(tmp_path / "with")
    assert lines == other_lines
    assert weights.keys() == other_weights.keys()
    assert all(weights[name].equal(other_weights[name]) for name in weights)


@pytest.mark.parametrize("broken", [{"fail_open": True}, {"fail_at": 3}])
def test_a_tracker_that_fails_stops_nothing_and_is_reported(
    broken: dict[str, Any], recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.__dict__.update(broken)
    run = tmp_path / "run"
    assert train(tracked_plan("wandb"), run, Interrupt()).finished
    (event,) = failures(run)
    assert event["tracker"] == "wandb"
    reason = "ConnectionError: no network" if recorder.fail_open else "OSError: the server is gone"
    assert event["reason"] == reason
    assert f"note: the tracker wandb failed ({reason})" in capsys.readouterr().err
    recorder.fail_open, recorder.fail_at = False, None
    train(tracked_plan("wandb"), run, Interrupt())
    assert recorder.steps == STEPS, "the next command sends what is missing"


def test_a_tracker_that_hangs_is_left_behind(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "CLOSE_S", 0.05)
    recorder.wait_s = 1.0
    began = time.monotonic()
    assert train(tracked_plan("wandb"), tmp_path / "run", Interrupt()).finished
    (event,) = failures(tmp_path / "run")
    assert event["reason"] == "it did not end within 0.05 s"
    assert time.monotonic() - began < 6.0, "six lines of a second each were not waited for"


def test_scores_and_images_are_logged_once_to_the_same_run(recorder: Recorder, tmp_path: Path) -> None:
    plan = tracked_plan("wandb")
    train(plan, tmp_path / "run", Interrupt())
    score(plan, tmp_path / "run")
    assert recorder.lines[-1] == (6, {SCORE: 1.5})
    assert recorder.images == [(6, [SAMPLE])]
    assert [about.id for about in recorder.opened] == 2 * [recorder.opened[0].id]
    assert {about.name for about in recorder.opened} == {"run"}


def test_a_missing_package_is_an_error_at_the_start_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = {name: TrackerKind("no_such_package", kind.open) for name, kind in TRACKERS.items()}
    monkeypatch.setattr(trackers, "TRACKERS", absent)
    words = r"run.trackers: wandb is not installed; pip install 'tintype\[wandb\]', or leave it out"
    with pytest.raises(UserError, match=words):
        train(tracked_plan("wandb"), tmp_path / "run", Interrupt())
    assert not RunRecord(tmp_path / "run").lines
    with pytest.raises(UserError, match=r"wandb, tensorboard are not installed; pip install 'tintype\[wandb,tensorb"):
        check_trackers(tracked_plan("wandb", "tensorboard").run)
    (tmp_path / "run").mkdir(exist_ok=True)
    score(tracked_plan("wandb"), tmp_path / "run")
    assert "note: run.trackers: wandb is not installed" in capsys.readouterr().err, "a score is not lost for that"


def test_a_study_refuses_a_missing_package_before_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "TRACKERS", {"mlflow": TrackerKind("no_such_package", TRACKERS["mlflow"].open)})
    study = load_study("pocket", ['set=["run.trackers=[mlflow]"]', "seeds=[0]", "control_seeds=[]"])
    with pytest.raises(UserError, match="mlflow is not installed"):
        prepare_study(study, tmp_path / "study")


class FakeRun:
    """Stands for the run that wandb and trackio return from `init`."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def define_metric(self, *args: Any, **options: Any) -> None:
        self.calls.append(("define", args, options))

    def log(self, values: dict[str, Any], **options: Any) -> None:
        self.calls.append(("log", values, options))

    def finish(self, **options: Any) -> None:
        self.calls.append(("finish", options))


def fake_module(name: str, monkeypatch: pytest.MonkeyPatch, **content: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)


def run_all(plan: Plan, place: Path) -> None:
    """Train, score, and log verdicts; no tracker may fail."""
    train(plan, place / "run", Interrupt())
    score(plan, place / "run")
    log_verdicts(plan, place / "study")
    assert failures(place / "run") == []


def test_wandb_and_trackio_are_called_as_they_are_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, list[Any]] = {"wandb": [], "trackio": []}

    def init(name: str) -> Any:
        def begin(**options: Any) -> FakeRun:
            print("printed by the package")
            calls[name].append(("init", options))
            return FakeRun(calls[name])

        return begin

    common = {"Image": lambda file: ("image", file), "Table": lambda columns, data: ("table", columns, data)}
    fake_module("wandb", monkeypatch, init=init("wandb"), Settings=lambda **options: options, **common)
    fake_module("trackio", monkeypatch, init=init("trackio"), **common)
    run_all(tracked_plan("wandb", "trackio", tracker_project="mine"), tmp_path)
    for name, made in calls.items():
        begun = [call[1] for call in made if call[0] == "init"]
        assert [one["project"] for one in begun] == 3 * ["mine"]
        assert {one["resume"] for one in begun} == {"allow"}
        same = "id" if name == "wandb" else "name"  # what it resumes by
        assert begun[0][same] == begun[1][same] != begun[2][same]
        logged = [call for call in made if call[0] == "log"]
        steps = [values.get("step", options.get("step")) for _, values, options in logged]
        assert steps == [*STEPS, 6, 6, None]
        assert logged[7][1][SAMPLE][0] == "image" and logged[8][1]["verdicts"][0] == "table"
        assert sum(call[0] == "finish" for call in made) == 3


def test_mlflow_is_called_as_it_is_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(batches=[], artifacts=[], runs={}, statuses=[])

    class Client:
        def get_experiment_by_name(self, name: str) -> Any:
            return None

        def create_experiment(self, name: str) -> str:
            return "7"

        def search_runs(self, experiments: list[str], filter_string: str) -> list[Any]:
            assert experiments == ["7"]
            return [run for tag, run in made.runs.items() if filter_string == f"tags.tintype_id = '{tag}'"]

        def create_run(self, experiment: str, tags: dict[str, str], run_name: str) -> Any:
            made.runs[tags["tintype_id"]] = SimpleNamespace(info=SimpleNamespace(run_id=run_name))
            return made.runs[tags["tintype_id"]]

        def update_run(self, run: str, status: str) -> None:
            made.statuses.append(status)

        def log_batch(self, run: str, metrics: Sequence[Any] = (), params: Sequence[Any] = ()) -> None:
            assert len(params) <= 100
            made.batches.append((run, metrics, params))

        def log_text(self, run: str, text: str, file: str) -> None:
            made.artifacts.append((run, file))

        def log_artifact(self, run: str, path: str, folder: str) -> None:
            made.artifacts.append((run, folder))

        def log_dict(self, run: str, content: dict[str, Any], file: str) -> None:
            made.artifacts.append((run, file))

        def set_terminated(self, run: str, status: str) -> None:
            made.statuses.append(status)

    fake_module("mlflow", monkeypatch, MlflowClient=Client)
    fake_module("mlflow.entities", monkeypatch, Metric=lambda *values: values, Param=lambda *values: values)
    run_all(tracked_plan("mlflow"), tmp_path)
    steps = [metrics[0][3] for run, metrics, _ in made.batches if metrics]
    assert steps == [*STEPS, 6]
    assert ("optimizer.lr", "0.001") in [param for _, _, params in made.batches for param in params]
    images = [("run", f"images/{SAMPLE}/step-6")]
    study = [("a study", "plan.yaml"), ("a study", "verdicts.json")]
    assert made.artifacts == [("run", "plan.yaml"), *images, *study]
    assert made.statuses == ["FINISHED", "RUNNING", "FINISHED", "FINISHED"]
