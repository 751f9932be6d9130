"""Two runs side by side show what their folders have, and refuse what is no run."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.tiny import TINY, tiny_plan
from tintype.cli import app
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import EvaluationResult, result_file, write_result
from tintype.runtime.files import write_lines
from tintype.runtime.interrupt import Interrupt
from tintype.study.folder import claim_folder
from tintype.study.runner import tasks_of
from tintype.study.side_by_side import ComparedRun, SideBySide, as_json, compare_runs, find_run, side_by_side
from tintype.study.study import load_study
from tintype.terminal.compare import _spread, show_side_by_side
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.speed import images_per_s, seconds_until

PROTOCOL, OTHER = Protocol(count=8, also=()), Protocol(count=9, also=())
METRIC = "scene_accuracy"


def write_score(
    run: Path, protocol: Protocol, step: int, value: float, size_px: int | None = None, metric: str = METRIC
) -> None:
    """Score a run without sampling it."""
    file = result_file(run, protocol, step)
    file.parent.mkdir(parents=True)
    result = EvaluationResult(
        metrics={metric: value, "images_per_s": 3.0},
        errors={metric: 0.01},
        encoders={},
        warnings=(),
        seconds=1.0,
        step=step,
        size_px=size_px,
        weights="raw",
        protocol=protocol,
        protocol_hash=protocol.hash,
        details={},
        samples={},
        real={},
        time_split={},
        previews=(),
    )
    write_result(file, result)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make three runs, two of them scored alike, and a study of one arm."""
    place = tmp_path_factory.mktemp("runs")
    train(tiny_plan(), place / "a", Interrupt())
    train(tiny_plan("seed=1", "run.log_every_steps=2", techniques=["muon"]), place / "b", Interrupt())
    train(tiny_plan("train.steps=3", "data.max_objects=1"), place / "c", Interrupt())
    write_score(place / "a", PROTOCOL, 4, 0.1)
    write_score(place / "a", PROTOCOL, 6, 0.25)
    write_score(place / "b", PROTOCOL, 6, 0.5)
    write_score(place / "c", OTHER, 3, 0.75)
    (place / "plan.yaml").write_text(TINY)
    (place / "study.yaml").write_text(
        f"question: q\nrecipe: {place / 'plan.yaml'}\nseeds: [0]\nset: [train.steps=1]\n"
        "arms: [{name: muon, techniques: [muon]}]\n"
    )
    study = load_study(str(place / "study.yaml"))
    (place / "study").mkdir()
    claim_folder(study, place / "study")
    for task in tasks_of(study, place / "study"):
        train(task.plan, task.folder, Interrupt())
    return place


def test_printed_they_are_a_table(place: Path) -> None:
    lines = str(compare_runs([str(place / name) for name in ("a", "b", "c")])).splitlines()
    assert lines[:4] == [
        *(f"run {number}: {place / name}" for number, name in enumerate("abc", 1)),
        "run 2 differs from run 1:",
    ]
    assert "  seed: 0 -> 1" in lines
    head, *table = lines[lines.index("") + 1 :]
    assert [METRIC, "0.25", "±", "0.01", "0.5", "±", "0.01", "–"] in [line.split() for line in table]
    starts = [head.index(f"run {number}") for number in (1, 2, 3)]
    assert all(line[start - 1] == " " != line[start] for line in table[:3] for start in starts)
    assert lines[-1].startswith("note: ") and all(len(line) < 200 for line in table[:5])


def test_two_runs_show_their_diff_scores_and_losses_at_shared_steps(place: Path) -> None:
    found = compare_runs([str(place / "a"), str(place / "b")])
    assert found.changes[0] == {}
    assert next(iter(found.changes[1])) == "seed" and "optimizer" in found.changes[1]
    lines = [RunRecord(run.path).lines for run in found.runs]
    losses = [{line["step"]: line["loss"] for line in some} for some in lines]
    assert found.curves["loss"].step == [2, 4, 6], "the steps that both logged"
    assert found.curves["loss"].values == [[known[step] for step in (2, 4, 6)] for known in losses]
    (row,) = found.scores
    assert row.metric == METRIC and row.images == 8
    assert [score and (score.value, score.step) for score in row.scores] == [(0.25, 6), (0.5, 6)], "the newest scores"
    assert [run.images_per_s for run in found.runs] == [images_per_s(some) for some in lines]
    assert [run.training_s for run in found.runs] == [seconds_until(some, 6) for some in lines]
    assert found.notes == []


def test_losses_of_other_things_are_not_compared(place: Path, tmp_path: Path) -> None:
    """A total of other terms says so, and the flow stays; another objective takes both, another space the rest."""
    first = Path(shutil.copytree(place / "a", tmp_path / "first", ignore=shutil.ignore_patterns("evaluation")))
    lines = [{**line, "validation_loss": 0.5} for line in RunRecord(first).lines]
    write_lines(first / "metrics.jsonl", lines)
    write_score(first, PROTOCOL, 6, 0.5, metric="validation_loss")
    second = Path(shutil.copytree(first, tmp_path / "second"))

    def compared(*assignments: str, techniques: Sequence[str] = ()) -> SideBySide:
        plan = tiny_plan(*assignments, techniques=techniques)
        return side_by_side([find_run(str(first)), ComparedRun(second, plan, "other")])

    terms = compared(techniques=["contrastive"])
    assert {"flow", "validation_loss"} < set(terms.curves) and "loss" not in terms.curves
    assert "loss is not compared: its terms or their weights differ in other" in terms.notes[-1]
    objective = compared(techniques=["x-prediction"])
    assert not {"loss", "flow"} & set(objective.curves) and "validation_loss" in objective.curves
    assert [note.partition(":")[0] for note in objective.notes] == ["loss is not compared", "flow is not compared"]
    space = compared("objective.noise_scale=2.0")
    assert not {"loss", "flow", "validation_loss"} & set(space.curves) and len(space.scores) == 2
    assert "validation_loss is not compared" in space.notes[-1] and len(terms.scores) == 1
    stages = compared("train.stages=[{size_px: 16, until: 3}]", "data.size_px=32")
    assert not {"loss", "flow"} & set(stages.curves) and "validation_loss" in stages.curves
    assert "train.stages differ in other" in stages.notes[-1]
    assert "loss" in compared().curves and compared().notes == []
    out = io.StringIO()
    show_side_by_side(objective, Console(file=out, width=200))
    assert "│ flow" not in out.getvalue() and "│ validation_loss" in out.getvalue()


def test_scores_of_two_protocols_are_never_in_one_row(place: Path) -> None:
    found = compare_runs([str(place / "a"), str(place / "b"), str(place / "c")])
    rows = {(row.metric, row.protocol): [score is not None for score in row.scores] for row in found.scores}
    assert rows[METRIC, PROTOCOL.hash] == [True, True, False]
    assert rows[METRIC, OTHER.hash] == [False, False, True]
    assert any("no evaluation is common to all runs" in text for text in found.notes)
    assert any("other data" in text for text in found.notes)


def test_scores_with_images_of_two_sizes_are_never_in_one_row(place: Path, tmp_path: Path) -> None:
    protocol = Protocol(count=8, also=(), size="stage")
    for name, size_px in (("a", 16), ("b", 32)):
        shutil.copytree(place / name, tmp_path / name)
        shutil.rmtree(tmp_path / name / "evaluation")
        write_score(tmp_path / name, protocol, 6, 0.5, size_px)
    found = compare_runs([str(tmp_path / "a"), str(tmp_path / "b")])
    rows = rows_of(found)
    assert rows == {f"{protocol.hash} at 16 px": [True, False], f"{protocol.hash} at 32 px": [False, True]}
    assert any("no evaluation is common to all runs" in text for text in found.notes)
    out = io.StringIO()
    show_side_by_side(found, Console(file=out, width=200))
    assert f"{protocol.hash[:8]} at 16 px, 8 images" in out.getvalue()
    write_score(tmp_path / "b", protocol, 3, 0.4, 16)
    shared = rows_of(compare_runs([str(tmp_path / "a"), str(tmp_path / "b")]))
    assert shared == {f"{protocol.hash} at 16 px": [True, True], f"{protocol.hash} at 32 px": [False, True]}


def rows_of(found: SideBySide) -> dict[str, list[bool]]:
    return {row.protocol: [score is not None for score in row.scores] for row in found.scores if row.metric == METRIC}


def test_a_run_of_a_study_is_named_by_arm_and_seed(place: Path) -> None:
    study = place / "study"
    found = compare_runs([f"{study}:baseline:0", f"{study}:muon", str(place / "a")])
    assert [run.plan.optimizer.kind for run in found.runs] == ["adamw", "muon", "adamw"]
    assert all(run.path.parent == study / "runs" for run in found.runs[:2])


def test_a_run_that_was_stopped_says_so(place: Path, tmp_path: Path) -> None:
    stopped = Interrupt()
    train(tiny_plan(), tmp_path / "run", stopped, lambda now: setattr(stopped, "signal", 2 if now.step > 2 else None))
    write_score(tmp_path / "run", PROTOCOL, 3, 0.5)
    found = compare_runs([str(place / "a"), str(tmp_path / "run")])
    assert found.runs[1].state == "unfinished"
    assert found.notes == [f"{tmp_path / 'run'} is unfinished: at step 3 of 6"]


def test_the_command_prints_tables_and_the_same_numbers_as_json(place: Path) -> None:
    names = [str(place / "a"), str(place / "b")]
    printed = CliRunner().invoke(app, ["compare", *names, "--json"])
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.output) == json.loads(json.dumps(as_json(compare_runs(names))))
    out = io.StringIO()
    show_side_by_side(compare_runs(names), Console(file=out, width=140))
    shown = out.getvalue()
    for words in ("B differs from A", "seed: 0 -> 1", METRIC, "training images/s", "loss"):
        assert words in shown


def test_what_is_no_run_is_refused_with_the_reason(place: Path, tmp_path: Path) -> None:
    good, study = str(place / "a"), place / "study"
    (tmp_path / "empty").mkdir()
    (tmp_path / "passed-on").mkdir()
    (tmp_path / "passed-on" / "study.yaml").write_text("name: passed-on\n")
    cases = {
        str(tmp_path / "nowhere"): "does not exist; give the folder of a run",
        str(tmp_path / "empty"): "is not a run: plan.yaml is missing",
        str(place / "plan.yaml"): "is a file; give the folder of a run",
        str(study): f"is a study; name one of its runs:\n  {study}:baseline:0\n  {study}:muon:0",
        f"{study}:muno": "has no arm with this name; did you mean 'muon'?",
        f"{study}:muon:7": "--arm-seed 7: arm 'muon'",
        str(place / "b" / ".." / "a"): "is the same run as",
        f"{tmp_path / 'passed-on'}:muon": "contains only the results of runs, not the runs themselves",
    }
    for name, words in cases.items():
        with pytest.raises(UserError) as refused:
            compare_runs([good, name])
        assert words in str(refused.value)
    with pytest.raises(UserError, match="give two or more runs"):
        compare_runs([good])


@pytest.mark.parametrize("count", [1, 9, 10, 11, 1000])
def test_shown_steps_are_few_and_end_with_the_last(count: int) -> None:
    shown = _spread(count)
    assert len(shown) == len(set(shown)) == min(count, 10)
    assert shown[-1] == count - 1
