from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tintype
from tests.tiny import TINY
from tintype import cli
from tintype.bench import study as bench
from tintype.bench.study import _Run, _speeds, measure_study, plan_of_study, study_to_measure, work_of_study
from tintype.cli import app
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime.interrupt import Interrupt
from tintype.study import supervisor
from tintype.study.folder import stored_study
from tintype.study.runner import Message, Task
from tintype.study.study import Study

COMMITTED = Path(__file__).parents[3] / "studies" / "2026-11-15_optimizers-mini"
STUDY = """
question: How fast is it?
recipe: plan.yaml
set: [train.steps=2]
seeds: [7]
arms: [{techniques: [ema]}]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(STUDY)
    return str(tmp_path / "study.yaml")


@pytest.mark.slow
def test_runs_of_a_study_are_trained_and_scored_in_a_worker_and_timed(file: str, tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    outcome = CliRunner().invoke(app, ["bench", "--study", file, "--runs", "2", "--out", str(out), "--json"])
    assert outcome.exit_code == 0, outcome.output
    found: Any = json.loads(outcome.stdout)
    assert found == json.loads(out.read_text()) and (found["runs"], found["jobs"]) == (2, 1)
    first, later = found["first"], found["later"]
    seconds = [*first.values(), later["training_s"], later["scoring_s"]]
    late_s = supervisor._READ_S + supervisor._POLL_S  # an end is seen so late, and counts with the start
    assert all(one > 0 for one in seconds) and sum(seconds) <= found["wall_s"] + late_s
    assert found["runs_per_hour"] == pytest.approx(7200 / found["wall_s"]) and found["warm_runs_per_hour"] > 0
    assert found["figures"]["runs an hour"] == found["runs_per_hour"]
    assert {one.name for one in tmp_path.iterdir()} == {"plan.yaml", "study.yaml", "speed.json"}


def test_the_rates_with_and_without_the_start_of_the_workers() -> None:
    runs = [_Run(50, 30, 8), _Run(54, 31, 9), _Run(70, 14, 6), _Run(74, 13, 7), _Run(90, 14, 6), _Run(94, 13, 7)]
    found = _speeds({}, "", 2, runs)
    assert found.runs_per_hour == 3600 * 6 / 94
    assert found.warm_runs_per_hour == 360  # two workers, each 20 s a run
    assert (found.first.starting_s, found.first.training_s, found.first.scoring_s) == (13, 30.5, 8.5)
    assert found.first.whole_s == 52 and found.later and found.later.whole_s == 20
    alone = _speeds({}, "", 2, runs[:2])
    assert alone.warm_runs_per_hour is None and alone.later is None


def test_by_default_it_is_the_work_of_the_committed_study() -> None:
    """Its baseline and its scoring, so that the figure means what the recorded ones mean."""
    study, committed = study_to_measure(None, None, [], 15), stored_study(COMMITTED)
    assert plan_of_study(study).hash == plan_of_study(committed).hash
    assert study.settings.evaluation.hash == committed.settings.evaluation.hash
    assert [plan.seed for plan in study.arms[0].plans] == list(range(15)) and len(study.arms) == 1


def test_of_a_study_only_the_baseline_is_run_with_its_own_settings(file: str) -> None:
    study = study_to_measure(file, None, ["train.batch=2"], 2)
    (arm,) = study.arms
    assert [(plan.seed, plan.train.steps, plan.train.batch) for plan in arm.plans] == [(0, 2, 2), (1, 2, 2)]
    assert study.settings.evaluation.count == 8
    assert work_of_study(study, 3) == {**work_of_study(study, 1), "jobs": 3}


def test_another_plan_is_scored_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TINY)
    study = study_to_measure(None, str(tmp_path / "plan.yaml"), [], 1)
    assert plan_of_study(study).train.steps == 6 and study.settings.evaluation.count == 1024


def _runs_that_end(state: Any, interrupt_signal: int | None = None) -> Callable[..., object]:
    def run_tasks(
        tasks: Sequence[Task], protocol: Protocol, jobs: int, interrupt: Interrupt, note: Callable[[Message], None]
    ) -> None:
        interrupt.signal = interrupt_signal
        note(Message(tasks[0].key, state, text="no memory\n"))

    return run_tasks


@pytest.fixture
def study(file: str) -> Study:
    return study_to_measure(file, None, [], 2)


@pytest.mark.parametrize("state", ["failed", "diverged", "interrupted"])
def test_a_run_that_fails_leaves_no_figures(state: str, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "run_tasks", _runs_that_end(state))
    with pytest.raises(UserError, match=f"nothing was measured: seed 0 {state}: no memory$"):
        measure_study(study, 1, Interrupt())


def test_an_interrupted_bench_leaves_no_figures(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "run_tasks", _runs_that_end("interrupted", signal.SIGINT))
    assert measure_study(study, 1, Interrupt()) is None


def test_a_signal_stops_the_call_and_the_command(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "run_tasks", _runs_that_end("interrupted", signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        tintype.bench(file, study=True, runs=1, jobs="1")
    monkeypatch.setattr(sys, "argv", ["tintype", "bench", file, "--study", "--runs", "1", "--jobs", "1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert "interrupted: nothing was measured; run the same command again\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--study", "--metrics"], "--metrics and --study cannot be measured together"),
        (["--study", "--technique", "tread"], "leave out --technique, --tokens and --batch"),
        (["--study", "--steps", "3"], "use --set train.steps=N"),
        (["--jobs", "2"], "add --study"),
        (["--runs", "2"], "add --study"),
        (["optimizers-mini"], "add --study"),
        (["--study", "no-such-study"], "unknown study 'no-such-study'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], message: str) -> None:
    outcome = CliRunner().invoke(app, ["bench", *options])
    assert isinstance(outcome.exception, UserError) and message in str(outcome.exception)
