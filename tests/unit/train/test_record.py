"""A record reads each file of a run once, on first use, and refuses only the files that are damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import tiny_plan
from tintype.errors import DivergedError, UserError
from tintype.export.model_folder import export_model
from tintype.runtime import files
from tintype.runtime.interrupt import Interrupt
from tintype.train import speed
from tintype.train.folder import RunFolder
from tintype.train.loop import train
from tintype.train.record import FAILURES, Failure, RunRecord, State, curve_numbers, is_run

PLAN = tiny_plan("run.log_every_steps=2")
READERS: dict[str, Callable[[RunRecord], object]] = {
    "metrics.jsonl": lambda record: (record.lines, record.curves, record.images_per_s, record.logged_step),
    "events.jsonl": lambda record: record.events,
    "environment.json": lambda record: (record.environment, record.parameters),
    "loaded.json": lambda record: record.identities,
    "latents.json": lambda record: record.latents,
    "lineage.json": lambda record: record.lineage,
    "imported.json": lambda record: record.imported,
    "plugins.json": lambda record: record.plugins,
    "tintype.json": lambda record: record.about,
    "checkpoints": lambda record: (record.saved_step, record.whole_step, record.is_trained),
}
"""What a file of a run, or a folder in it, is read for."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which each file is there."""
    folder = tmp_path_factory.mktemp("record") / "run"
    train(PLAN, folder, Interrupt())
    writer = RunFolder(folder)
    writer.log_event("noted", 6)
    for name in ("loaded.json", "lineage.json", "imported.json", "plugins.json"):
        writer.write_record(name, {"about": name})
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "nowhere")
    assert record.state == "missing" and record.lines == [] and record.environment == {}
    with pytest.raises(UserError, match="is not a run"):
        str(record.plan)


@pytest.mark.parametrize("damaged", [name for name in READERS if name != "checkpoints"])
def test_a_damaged_file_is_refused_by_what_reads_it_alone(run: Path, damaged: str) -> None:
    (run / damaged).write_text("{ no JSON\n")
    record = RunRecord(run)
    for name, read in READERS.items():
        if name == damaged:
            with pytest.raises(UserError, match=f"{damaged} is damaged"):
                read(record)
        else:
            assert read(record) is not None, name
    assert record.plan.hash == PLAN.hash


def test_a_damaged_plan_is_refused_by_what_reads_it_and_by_what_is_sealed_with_it(run: Path) -> None:
    file = run / "plan.yaml"
    file.write_text(file.read_text().replace("steps: 6", "steps: 7"))
    record = RunRecord(run)
    with pytest.raises(UserError, match=r"plan\.yaml is damaged"):
        str(record.plan)
    assert record.saved_step == 6 and record.environment["parameters"] > 0, "the seal in the first line is whole"
    assert RunRecord(run, PLAN).state == "done", "a caller that has the plan reads no plan.yaml"


def test_a_file_is_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = files.read_checked, list[str]()

    def noted(file: Path, remake: str) -> dict[str, object]:
        asked.append(file.name)
        return read(file, remake)

    monkeypatch.setattr(files, "read_checked", noted)
    record = RunRecord(run)
    for _ in range(2):
        assert record.parameters and record.environment and record.latents
    assert asked == ["environment.json", "latents.json"]
    writer = RunFolder(run)
    writer.log_event("later", 6)
    assert record.events == RunRecord(run).events and record.events is record.events
    writer.log_event("latest", 6)
    assert [event["event"] for event in writer.record.events][-1] == "latest", "another record sees what was written"
    assert [event["event"] for event in record.events][-1] == "later"


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda run: None, "done"),
        (lambda run: shutil.rmtree(run / "checkpoints" / "step-000000006"), "unfinished"),
        (lambda run: (run / "plan.yaml").unlink(), "missing"),
        (lambda run: (run / FAILURES["failed"]).touch(), "failed"),
        (lambda run: [(run / name).touch() for name in FAILURES.values()], "diverged"),
    ],
)
def test_a_run_has_one_state(run: Path, change: Callable[[Path], object], state: State) -> None:
    change(run)
    record = RunRecord(run)
    assert record.state == state and record.failure == (state if state in FAILURES else None)


def test_an_export_says_so(run: Path, tmp_path: Path) -> None:
    for name in ("lineage.json", "imported.json", "plugins.json", "loaded.json"):
        (run / name).unlink()
    export_model(run, tmp_path / "export")
    record = RunRecord(tmp_path / "export")
    assert is_run(record.path) and record.state == "exported" and record.about["plan"] == PLAN.hash
    record.check_files()
    (record.path / "latents.json").write_text("{}")
    with pytest.raises(UserError, match=r"SHA-256 of .*latents\.json"):
        record.check_files()


@pytest.mark.parametrize(("failure", "name"), FAILURES.items())
def test_the_reason_of_a_failure_is_its_last_line(run: Path, failure: Failure, name: str) -> None:
    files.write_sealed(run / name, "Traceback:\n  at line 3\nthe loss is not finite\n")
    assert RunRecord(run).failure == failure
    assert RunRecord(run).reason("remedy") == RunRecord(run, PLAN).reason("remedy") == "the loss is not finite"
    with pytest.raises(UserError, match=r"its seal says that it is .*; remedy"):
        RunRecord(run, tiny_plan("seed=1")).reason("remedy")
    if failure == "diverged":
        with pytest.raises(DivergedError, match=r"\(the loss is not finite\)"):
            RunRecord(run).refuse_diverged()
    (run / name).unlink()
    assert RunRecord(run).reason("remedy") == ""
    RunRecord(run).refuse_diverged()


def test_steps_are_those_of_the_log_and_of_the_checkpoints(run: Path) -> None:
    assert RunRecord(run).saved_steps == [4, 6] and RunRecord(run).whole_step == 6
    shutil.rmtree(run / "checkpoints" / "step-000000006")
    record = RunRecord(run)
    assert (record.saved_step, record.logged_step, record.step, record.is_trained) == (4, 6, 6, False)
    (run / "checkpoints" / "step-000000004" / "state.safetensors").write_bytes(b"damaged")
    assert RunRecord(run).whole_step is None and RunRecord(run).saved_step == 4


def test_numbers_of_the_log_are_curves_by_step(run: Path) -> None:
    record = RunRecord(run)
    assert [*record.curves["loss"]] == [2, 4, 6]
    assert record.curves["loss"][4] == record.lines[1]["loss"]
    assert not {"step", "images", "seconds", "parts", "flow_by_time"} & set(record.curves)
    odd = {"step": 1, "line": 1, "loss": float("nan"), "flow": None, "lr": 1e-3, "on": True, "name": "x", "size_px": 16}
    assert curve_numbers(odd) == {"lr": 1e-3, "size_px": 16}
    assert record.images_per_s == speed.images_per_s(record.lines)
    assert record.training_s == speed.seconds_until(record.lines, 6)
    assert record.logged_s == sum(line["seconds"] for line in record.lines)
    assert record.time_split == speed.time_split(record.lines)
    (run / "metrics.jsonl").unlink()
    shutil.rmtree(run / "checkpoints")
    lost = RunRecord(run)
    assert (lost.images_per_s, lost.training_s, lost.logged_s, lost.time_split, lost.step) == (None, None, None, {}, 0)


def test_a_run_lies_in_a_study_where_the_folder_above_is_one(run: Path, tmp_path: Path) -> None:
    assert RunRecord(run).study is None
    moved = tmp_path / "study" / "runs" / "name"
    moved.parent.mkdir(parents=True)
    run.rename(moved)
    assert RunRecord(moved).study is None
    (tmp_path / "study" / "study.yaml").touch()
    assert RunRecord(moved).study == tmp_path / "study"
    (tmp_path / "link").symlink_to(moved)
    assert RunRecord(tmp_path / "link").study == tmp_path / "study"


def test_evaluations_are_found_by_their_files(run: Path) -> None:
    assert RunRecord(run).result_files == []
    for name in ("b-000006", "a-000006"):
        (run / "evaluation" / name).mkdir(parents=True)
        (run / "evaluation" / name / "result.json").touch()
    assert [file.parent.name for file in RunRecord(run).result_files] == ["a-000006", "b-000006"]
