"""Tuned arms: the choice is arithmetic on the results of tuning runs, and the comparison never sees their seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.studies import noted, run_study
from tests.tiny import TINY
from tests.unit.study.example_results import example
from tintype.errors import UserError
from tintype.study import lab
from tintype.study.costs import cost_of
from tintype.study.folder import stored_study
from tintype.study.lab import report_study
from tintype.study.report import tuning as report
from tintype.study.results import Sweep, Tuning, TuningPoint, TuningRun, read_results_file
from tintype.study.study import Study, load_study
from tintype.study.tune import best, edges_of, tuned, tuning_of, tuning_tasks, untuned_words

TUNED = """
question: Is it worth it when both are tuned?
recipe: PLAN
seeds: [0, 1]
control_seeds: [5, 6]
tune: {optimizer.lr: [1e-4, 1e-3, 1e-2]}
tune_seeds: [10]
arms: [{techniques: [muon]}]
primary: [validation_loss]
evaluation: {count: 8, reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}, also: []}
"""


def study_of(folder: Path, *assignments: str, text: str = TUNED) -> Study:
    (folder / "plan.yaml").write_text(TINY)
    (folder / "study.yaml").write_text(text.replace("PLAN", "plan.yaml"))
    return load_study(str(folder / "study.yaml"), assignments)


@pytest.mark.parametrize(
    ("scores", "direction", "index"),
    [
        ([[1.0, 3.0], [1.5, 2.0], [4.0, 0.1]], "lower", 1),  # means 2, 1.75, 2.05
        ([[1.0, 3.0], [1.5, 2.0], [4.0, 0.1]], "higher", 2),
        ([[2.0, 2.0], [1.0, 3.0]], "lower", 0),  # equal means: the first
        ([[1.0, 1.0], [0.0, None]], "lower", 0),  # a diverged run outweighs a better score
        ([[None, None], [None, 9.0]], "lower", 1),
        ([[None, None], [None, None]], "higher", 0),
    ],
)
def test_the_best_mean_is_chosen(scores: list[list[float | None]], direction: str, index: int) -> None:
    assert best(scores, direction) == index  # type: ignore[arg-type]


def test_a_choice_at_the_edge_says_where_a_better_one_may_lie() -> None:
    grid = [{"optimizer.lr": lr, "ema": word} for lr in (1e-3, 3e-3) for word in ("on", "off")]
    assert edges_of(grid, 0) == ["optimizer.lr below 0.001"]
    assert edges_of(grid, 3) == ["optimizer.lr above 0.003"]
    wider = [{"optimizer.lr": lr} for lr in (1e-3, 3e-3, 2e-3)]  # the edge is that of the numbers, not of the list
    assert [edges_of(wider, index) for index in range(3)] == [
        ["optimizer.lr below 0.001"],
        ["optimizer.lr above 0.003"],
        [],
    ]


def test_no_better_value_lies_where_the_plan_allows_none(tmp_path: Path) -> None:
    study = study_of(tmp_path, "tune={train.warmup_steps: [0, 2], model.mlp_ratio: [2.0, 3.0]}")
    for arm in study.arms:
        grid = [one.values for one in arm.candidates]
        assert edges_of(grid, 0, arm.candidate) == ["model.mlp_ratio below 2"], "no warm-up is shorter than none"
        assert edges_of(grid, 3, arm.candidate) == ["train.warmup_steps above 2", "model.mlp_ratio above 3"]


def test_the_baseline_and_each_arm_get_the_same_values_and_seeds(tmp_path: Path) -> None:
    study = study_of(tmp_path, "tune={optimizer.lr: [1e-4, 1e-3], train.clip_norm: [1.0, 2.0]}", "tune_seeds=[10, 11]")
    tasks = tuning_tasks(study, tmp_path / "out")
    assert len(tasks) == len({task.key for task in tasks}) == len({task.plan.hash for task in tasks}) == 2 * 4 * 2
    assert {task.plan.seed for task in tasks} == {10, 11}
    assert tasks[1].arm == "baseline (optimizer.lr=0.0001, train.clip_norm=2.0)"
    assert not any(task.arm.startswith("control") for task in tasks)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("tune_seeds=[1]", "tune_seeds: 1 is also in seeds or control_seeds"),
        ("tune_seeds=[5]", "tune_seeds: 5 is also in seeds or control_seeds"),
        ("tune_seeds=[9, 9]", "tune_seeds: 9 is given twice"),
        ("tune={optimizer.lr: [1e-3, 1e-3]}", "tune: optimizer.lr: 0.001 is given twice"),
        ("tune={optimizer.lr: [1e-3]}", "must have 2 or more values"),
        ("tune={optimizer.rate: [1.0, 2.0]}", r"tune optimizer.rate=1.0: optimizer.rate: unknown key"),
        ("tune={data.count: [24, 48]}", "tune: data.count: seed, data, run must be the same for all arms"),
        (
            "arms=[{techniques: ['muon:lr=1e-3']}]",
            "the arm sets optimizer.lr itself, to 0.001, .* leave optimizer.lr out of the arm",
        ),
        ("arms=[{set: [optimizer.lr=1e-3], techniques: [muon]}]", "the arm sets optimizer.lr itself"),
        ("arms=[{techniques: ['sft:from=arm:baseline,lr=1e-4']}]", "the arm starts from the arm 'baseline'"),
    ],
)
def test_a_study_that_cannot_be_tuned_fairly_is_refused(tmp_path: Path, assignment: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        study_of(tmp_path, assignment)


def test_a_grid_that_explodes_is_refused_with_its_size(tmp_path: Path) -> None:
    rates = "[1e-5, 2e-5, 3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 8e-5]"
    grid = f"tune={{optimizer.lr: {rates}, train.clip_norm: [1.0, 2.0, 3.0, 4.0]}}"
    with pytest.raises(UserError, match=r"tune: 96 runs for each arm \(8 × 4 values × 3 seeds\), but at most 64"):
        study_of(tmp_path, grid, "tune_seeds=[10, 11, 12]")
    assert len(study_of(tmp_path, grid, "tune_seeds=[10, 11]").arms[0].candidates) == 32


def test_the_choice_changes_the_plans_of_each_arm_and_its_declared_diff(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    rates = [1e-4, 1e-3, 1e-2]

    def sweep(arm: str, losses: list[float]) -> Sweep:
        runs = [[TuningRun(seed=10, hash="", state="done", value=loss)] for loss in losses]
        points = [TuningPoint(values={"optimizer.lr": lr}, runs=one) for lr, one in zip(rates, runs, strict=True)]
        return Sweep(arm=arm, points=points, chosen=best([[loss] for loss in losses], "lower"), edges=[])

    sweeps = [sweep("baseline", [3.0, 1.0, 2.0]), sweep("muon", [3.0, 2.0, 1.0])]
    chosen = tuned(study, Tuning(metric="validation_loss", seeds=[10], sweeps=sweeps))
    lrs = {arm.name: [plan.optimizer.model_dump()["lr"] for plan in arm.plans] for arm in chosen.arms}
    assert lrs == {"baseline": [1e-3, 1e-3], "control": [1e-3, 1e-3], "muon": [1e-2, 1e-2]}
    assert [[plan.seed for plan in arm.plans] for arm in chosen.arms] == [[0, 1], [5, 6], [0, 1]]
    muon = chosen.arms[2]
    assert muon.changes["optimizer.lr"] == (1e-3, 1e-2) and "lr=0.01" in str(muon.decisions["optimizer"][1])
    assert chosen.baselines == study.baselines


def point(values: dict[str, object], *scores: float | None) -> TuningPoint:
    runs = [
        TuningRun(seed=seed, hash="", state="diverged" if score is None else "done", value=score)
        for seed, score in enumerate(scores)
    ]
    return TuningPoint(values=values, runs=runs)


def swept(points: list[TuningPoint], chosen: int, arm: str = "baseline") -> Sweep:
    return Sweep(arm=arm, points=points, chosen=chosen, edges=edges_of([one.values for one in points], chosen))


def test_the_report_says_where_to_widen_and_what_diverged() -> None:
    points = [point({"lr": 1.0}, 2.0, 4.0), point({"lr": 2.0}, 3.0, None)]
    tuning = Tuning(metric="m", seeds=[0, 1], sweeps=[swept(points, 0), swept(points, 0, "a"), swept(points, 1, "b")])
    tuned_results = example().model_copy(update={"tuning": tuning})
    assert noted(tuned_results, "edge_of_tuning", "untuned") == (
        "baseline, a: the best value lies at the edge of its grid; widen the grid: lr below 1. "
        "b: no value of lr kept all its tuning runs."
    )
    cells = [report.cell(tuning.sweeps[0], one, 2) for one in points]
    assert cells == ["✓ 3.00", "3.00 (diverged 1 of 2)"]
    assert noted(example(), "edge_of_tuning", "untuned") == ""


def test_the_comparison_waits_for_failed_runs_and_not_for_diverged_ones(tmp_path: Path) -> None:
    """A failed run says nothing of its value; a diverged one is not trained again by a restart."""
    points = [point({"lr": 1.0}, 2.0), point({"lr": 2.0}, None)]
    tuning = Tuning(metric="m", seeds=[0], sweeps=[swept(points, 0)])
    assert untuned_words(tuning) == ""
    failed = TuningPoint(values={"lr": 3.0}, runs=[TuningRun(seed=0, hash="", state="failed", value=None)])
    assert "of its 3 runs, 1 failed" in untuned_words(
        Tuning(metric="m", seeds=[0], sweeps=[swept([*points, failed], 0)])
    )

    study, out = study_of(tmp_path), tmp_path / "out"
    first, *others = tuning_tasks(study, out)
    first.folder.mkdir(parents=True)
    (first.folder / "diverged.txt").touch()
    assert tuning_tasks(study, out) == others


def test_a_figure_has_the_best_over_the_other_keys() -> None:
    grid = [
        point({"lr": lr, "word": word}, score)
        for lr, word, score in [(2.0, "x", 5.0), (2.0, "y", 3.0), (1.0, "x", 4.0)]
    ]
    results = example()
    tuning = Tuning(metric="fd_scenes", seeds=[0], sweeps=[swept(grid, 1)])
    (line,) = report.lines(results, tuning, "lr")
    assert line.points == [(1.0, 4.0), (2.0, 3.0)] and line.chosen == 2.0
    assert report.lines(results, tuning, "word") == []


@pytest.mark.slow
def test_a_tuned_study_from_its_sweep_to_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison waits for the whole sweep, a restart chooses the same, and the tuning seeds stay out of it."""
    small = ("tune={optimizer.lr: [1e-3, 1e-2]}", "seeds=[0]", "control_seeds=[]")
    study, out = study_of(tmp_path, *small), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(lab, "run_tasks", lambda *arguments: {})  # a study that is stopped before its first run
        stopped = lab.run_study(study, out, 1)
    assert stopped.report is None and "of its 4 runs, 4 are not done" in stopped.no_report
    with pytest.raises(UserError, match="the tuning is not finished"):
        report_study(out)
    assert (cost_of(study, out).most, cost_of(study, out).done) == (4 + 2, 0)

    outcome = run_study(study, out, 1)
    assert not outcome.failed and outcome.total == 2
    found = read_results_file(out / "results.json")
    assert found.tuning is not None and untuned_words(found.tuning) == ""
    assert [sweep.arm for sweep in found.tuning.sweeps] == ["baseline", "muon"]
    for sweep in found.tuning.sweeps:
        losses = [point.known[0] for point in sweep.points]
        assert sweep.chosen == losses.index(min(losses))
    assert found.tuning == tuning_of(stored_study(out), out)
    compared = {run.hash for arm in found.arms for run in arm.runs}
    tried = {run.hash for sweep in found.tuning.sweeps for point in sweep.points for run in point.runs}
    assert not compared & tried and compared | tried == {folder.name for folder in (out / "runs").iterdir()}

    assert (cost_of(study, out).most, cost_of(study, out).done) == (6, 6)
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    assert 'id="tuning"' in page and "validation loss over optimizer.lr" in page and "## Tuning" in text
    assert all("widen the grid: optimizer.lr" in one for one in (page, text))  # with two values, the best is at an edge

    with monkeypatch.context() as patch:
        patch.setattr(lab, "run_tasks", lambda *arguments: {})  # nothing is trained: all is read from the runs
        assert lab.run_study(study, out, 1).report is not None
    assert read_results_file(out / "results.json").tuning == found.tuning
