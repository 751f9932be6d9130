"""Figures in a file, and whether they are still reached."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tintype.bench import run as bench
from tintype.bench.record import Record, changes, figures_of, read_record, refuse_other_work, slower
from tintype.bench.run import Comparison, Row, Speeds
from tintype.cli import app
from tintype.errors import UserError
from tintype.runtime.files import Json
from tintype.terminal.measure import show_changes

WORK: dict[str, Json] = {"bench": "training", "plan": "aa18"}
RECORD = Record({"device": "NVIDIA H200"}, WORK, {"dense, images/s": 100.0, "fp8, × dense": 1.5}, "tintype bench -x")


@pytest.mark.parametrize(
    ("now", "names"),
    [
        ({"dense, images/s": 100.0, "fp8, × dense": 1.5}, []),
        ({"dense, images/s": 130.0, "fp8, × dense": 1.6}, []),
        ({"dense, images/s": 95.1, "fp8, × dense": 1.43}, []),
        ({"dense, images/s": 94.9, "fp8, × dense": 1.6}, ["dense, images/s"]),
        ({"dense, images/s": 130.0, "fp8, × dense": 1.42}, ["fp8, × dense"]),
        ({"dense, images/s": 100.0}, ["fp8, × dense"]),
        ({"dense, images/s": 100.0, "fp8, × dense": 1.5, "muon, × dense": 0.1}, []),
    ],
    ids=["equal", "faster", "within the tolerance", "slower", "one slower", "missing", "new"],
)
def test_what_got_slower_is_listed(now: dict[str, float], names: list[str]) -> None:
    found, text = _shown(now, 0.05)
    assert found == names
    assert ("slower by more than 5%: " + "; ".join(names) in text) == bool(names)


def test_each_figure_has_a_line() -> None:
    _, text = _shown({"dense, images/s": 90.0, "new, × dense": 2.0}, 0.2)
    assert text.splitlines()[:3] == [
        "dense, images/s: 100 recorded, 90 now, 0.900 ×",
        "fp8, × dense: 1.5 recorded, missing now",
        "new, × dense: not recorded, 2 now",
    ]


def test_the_tolerance_is_a_choice() -> None:
    now = {"dense, images/s": 90.0, "fp8, × dense": 1.5}
    assert not _shown(now, 0.11)[0] and _shown(now, 0.09)[0]


def _shown(now: dict[str, float], tolerance: float) -> tuple[list[str], str]:
    console = Console(width=200)
    with console.capture() as captured:
        show_changes(changes(RECORD, now), tolerance, console)
    return slower(changes(RECORD, now), tolerance), captured.get()


@pytest.mark.parametrize(
    ("device", "work", "message"),
    [
        ("NVIDIA H100", WORK, r"\(device: NVIDIA H200 there, NVIDIA H100 here\)"),
        ("NVIDIA H200", {**WORK, "plan": "bb"}, r"\(plan: aa18 there, bb here\); it was made by `tintype bench -x`"),
        ("NVIDIA H200", {"bench": "study", "jobs": 2}, r"\(bench: training there, study here\)"),
        ("NVIDIA H200", {**WORK, "jobs": 2}, r"\(jobs: None there, 2 here\)"),
    ],
)
def test_figures_of_another_device_or_other_work_are_refused(device: str, work: Any, message: str) -> None:
    refuse_other_work(Path("h200.json"), RECORD, "NVIDIA H200", dict(WORK))
    with pytest.raises(UserError, match="h200.json records another device or other work " + message):
        refuse_other_work(Path("h200.json"), RECORD, device, work)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "cannot be read as JSON"),
        ("[]", "is not a JSON object"),
        ('{"rows": []}', r"does not contain the results of a benchmark \(environment: "),
        ('{"environment": {}, "work": {}, "figures": {"dense": 0}}', r"\(figures.dense: must be above 0"),
        ('{"environment": {}, "work": {}, "figures": {"dense": NaN}}', r"\(figures.dense: "),
    ],
)
def test_a_file_without_figures_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "h200.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=f"--against .*h200.json .*{message}.*`tintype bench … --out FILE` writes"):
        read_record(file)


def test_recorded_figures_of_gpus_can_be_compared_with() -> None:
    folder = Path(__file__).parents[3] / "docs" / "speed"
    for file in set(folder.glob("*.json")) - {folder / "table.json"}:
        found = read_record(file)
        assert found.figures and {"bench", "plan"} <= found.work.keys() and found.environment["device"], file
        assert "/" not in found.command, "a recorded command names no folder of the machine it ran on"


def test_techniques_are_compared_by_their_ratio_and_the_plan_by_its_speed() -> None:
    row = Row(256, 32, 128, "dense", images_per_s=300.0, times_dense=1.0)
    rows = [
        row,
        replace(row, technique="fp8", images_per_s=450.0, times_dense=1.5),
        replace(row, technique="muon", images_per_s=None, times_dense=None, failed="out of memory"),
        replace(row, technique="dense again", images_per_s=270.0, times_dense=0.9),
    ]
    assert figures_of(Comparison({}, "", 10, rows)) == {
        "256 tokens, batch 128, dense, images/s": 300.0,
        "256 tokens, batch 128, fp8, × dense": 1.5,
    }


def test_a_plan_is_compared_by_its_training_sampling_and_rendering() -> None:
    found = figures_of(Speeds({}, "", 1, 10.0, {}, 20.0, {"photo": 30.0}))
    assert list(found.values()) == [10.0, 20.0, 30.0]
    assert figures_of({"seconds": {"fd": 1.0}}) == {}


TINY = ["--set", "model.depth=1", "--set", "train.batch=2", "--set", "run.device=cpu", "--steps", "2"]
TRAINING = ["bench", "--tokens", "16", *TINY]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "here.json"
    assert CliRunner().invoke(app, [*TRAINING, "--out", str(path)]).exit_code == 0
    return path


@pytest.mark.parametrize(("factor", "code", "options"), [(0.01, 0, []), (100, 1, []), (100, 1, ["--json"])])
def test_the_command_fails_where_a_recorded_figure_is_not_reached(
    factor: float, code: int, options: list[str], file: Path, tmp_path: Path
) -> None:
    content, changed = json.loads(file.read_text()), tmp_path / "changed.json"
    (name,) = content["figures"]
    changed.write_text(json.dumps({**content, "figures": {name: factor * content["figures"][name]}}))
    outcome = CliRunner().invoke(app, [*TRAINING, "--against", str(changed), *options])
    assert outcome.exit_code == code, outcome.output
    assert (f"slower by more than 5%: {name}" in outcome.output) == bool(code)
    if options:
        assert json.loads(outcome.stdout)["figures"].keys() == {name}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "16", *TINY, "--set", "model.depth=2"], "plan: "),
        (TINY, "bench: training there, plan here"),
        (["--data"], "leave out --data"),
        (["--metrics"], "leave out --metrics"),
        (["--import", "x.parquet"], "leave out --import"),
        (["--out", "no/such/folder.json"], "no/such is not a folder"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_measured(
    options: list[str], message: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "build_session", None)
    outcome = CliRunner().invoke(app, ["bench", *options, "--against", str(file)])
    assert isinstance(outcome.exception, UserError) and message in str(outcome.exception)
