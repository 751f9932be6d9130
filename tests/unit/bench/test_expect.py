"""The time of a study before its first run: what is measured, and what is computed from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tiny import TINY, tiny_plan
from tintype.bench import expect
from tintype.bench.expect import Pace, expected_seconds, measure_pace
from tintype.cli import app
from tintype.library.studies import make_study
from tintype.plan import Plan
from tintype.runtime import machine
from tintype.sampling.generate import SamplerSettings
from tintype.study import costs
from tintype.study.costs import Measured, cost_of
from tintype.study.study import Study

PACE = Pace(step_s=0.5, sample_s=0.01, feature_s=0.1, steps=7, samples=4)
EVALUATION: Mapping[str, object] = {
    "count": 8, "also": [], "reference_count": 8, "validation_count": 2, "metrics": ["fd"], "sampler": {"steps": 5},
}  # fmt: skip


def study_of(plan: Plan, **settings: Any) -> Study:
    return make_study("?", plan, {"longer": "train.steps=8"}, [0, 1, 2], evaluation=EVALUATION, **settings)


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure nothing."""
    monkeypatch.setattr(expect, "measure_pace", lambda plan, sampler: PACE)


def test_a_few_steps_and_samples_are_timed() -> None:
    pace = measure_pace(tiny_plan("train.steps=4"), SamplerSettings(steps=30, batch=2))
    assert 1 <= pace.steps <= expect._MOST_STEPS and pace.samples == 2
    assert min(pace.step_s, pace.sample_s, pace.feature_s) > 0


@pytest.mark.usefixtures("paced")
def test_the_time_of_a_run_is_that_of_its_steps_and_of_its_scoring() -> None:
    """8 images of 5 sampler steps, read by the scene encoder for the accuracy and for the distance."""
    found = expected_seconds(study_of(tiny_plan("train.steps=4")))
    scoring = 8 * (5 * 0.01 + 2 * 0.1)
    assert isinstance(found, Measured) and not found.at_least
    assert found.seconds.by_arm == pytest.approx({"baseline": 4 * 0.5 + scoring, "longer": 8 * 0.5 + scoring})
    assert "7 steps and 4 samples of the baseline were timed just now" in found.words


@pytest.mark.usefixtures("paced")
def test_scores_along_training_are_counted() -> None:
    plain = expected_seconds(study_of(tiny_plan("train.steps=4")))
    along = expected_seconds(study_of(tiny_plan("train.steps=4"), score_at=[0.5], score_count=8))
    assert isinstance(plain, Measured) and isinstance(along, Measured)
    early = along.seconds.by_arm["baseline"] - plain.seconds.by_arm["baseline"]
    assert early == pytest.approx(2 * 8 * (5 * 0.01 + 2 * 0.1)), "at half of the steps, and at the end for the curve"


@pytest.mark.usefixtures("paced")
def test_jobs_share_the_time_as_far_as_there_are_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "cores", lambda: 4)
    study = study_of(tiny_plan("train.steps=4", "run.device=cpu"))
    alone, two, many = (cost_of(study, tmp_path, None, jobs, lambda: expected_seconds(study)) for jobs in (1, 2, 64))
    assert alone.seconds == two.seconds and (alone.jobs, two.jobs, many.jobs) == (1, 2, 4)
    assert two.seconds_of(6) == alone.seconds_of(3) and many.seconds_of(6) == alone.seconds_of(2)
    assert machine.cores() >= 1


def test_of_a_study_for_a_gpu_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(plan: Plan) -> None:
        raise AssertionError("no network is built")

    monkeypatch.setattr(expect, "build_session", fail)
    monkeypatch.setattr(expect, "is_for_cpu", lambda plan: True)
    found = expected_seconds(study_of(tiny_plan("model.compile=true", "train.steps=4")))
    assert isinstance(found, Measured) and found.at_least
    assert 0 < found.seconds.by_arm["baseline"] < found.seconds.by_arm["longer"]


def test_a_dry_run_says_how_long_the_study_takes_here_and_how_that_was_found(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(
        f"question: '?'\nrecipe: plan.yaml\nseeds: [0, 1]\nset: [run.device=cpu]\nevaluation: {EVALUATION!r}\n"
        "arms: [{name: a, set: [optimizer.lr=2e-3]}]\n".replace("'", '"')
    )
    words = ["ablate", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "out"), "--dry-run"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "4 runs, about " in shown.output and " here, one after another" in shown.output
    assert "samples of the baseline were timed just now" in " ".join(shown.output.split())
    assert not (tmp_path / "out").exists()
