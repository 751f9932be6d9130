"""Sweeps over ranges: random draws that depend on nothing but the seed, and samplers that learn and resume."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

from tests.tiny import TINY
from tests.written_runs import Writer, written_runs
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime.files import read_lines, write_lines, write_sealed
from tintype.study import lab, search, tune
from tintype.study.costs import cost_of
from tintype.study.folder import stored_study
from tintype.study.lab import StudyOutcome, report_study, run_study
from tintype.study.results import Sweep, Tuning, assignments_words, read_results_file
from tintype.study.runner import Task
from tintype.study.search import Range, SearchSettings, Tried, choices, range_edges, suggest
from tintype.study.study import Study, load_study
from tintype.study.tune import tuning_of, tuning_tasks, untuned_words
from tintype.train.record import FAILURES

LR = "optimizer.lr"
SWEPT = f"""
question: Is it worth it when both are tuned?
recipe: PLAN
seeds: [0, 1]
control_seeds: [5, 6]
tune: {{{LR}: {{log_uniform: [1e-4, 1e-1]}}}}
tune_by: {{kind: random, trials: 5}}
tune_seeds: [10, 11]
arms: [{{techniques: [muon]}}]
primary: [validation_loss]
evaluation: {{count: 8, reference_count: 8, validation_count: 2, metrics: [], sampler: {{steps: 1}}, also: []}}
"""
OPTUNA = "tune_by={kind: optuna, trials: 6}"
needs_optuna = pytest.mark.skipif(
    not (importlib.util.find_spec("optuna") and importlib.util.find_spec("cmaes")),
    reason="optuna is an extra: pip install 'tintype[optuna]'",
)


def study_of(folder: Path, *assignments: str) -> Study:
    (folder / "plan.yaml").write_text(TINY)
    (folder / "study.yaml").write_text(SWEPT.replace("PLAN", str(folder / "plan.yaml")))
    return load_study(str(folder / "study.yaml"), assignments)


class Bowl(Writer):
    """Writes runs that are best at a rate of 0.01, and diverge above 0.05."""

    def value(self, task: Task) -> float:
        rate = task.plan.optimizer.model_dump()["lr"]
        return 1.0 + (math.log10(rate) + 2) ** 2 + 0.001 * task.plan.seed + 0.01 * ("muon" in task.arm)

    def _write(self, task: Task, protocol: Protocol) -> None:
        if task.plan.optimizer.model_dump()["lr"] <= 0.05:
            super()._write(task, protocol)
        else:
            task.folder.mkdir(parents=True)
            write_sealed(task.folder / FAILURES["diverged"], "too fast", run=task.plan.hash)


def sweep_of(out: Path) -> Tuning:
    found = read_results_file(out / "results.json").tuning
    assert found is not None
    return found


def rates(sweep: Sweep) -> list[float]:
    return [point.values[LR] for point in sweep.points]


def run(study: Study, out: Path, writer: Writer) -> StudyOutcome:
    with written_runs(writer):
        return run_study(study, out, 1)


@pytest.mark.parametrize(
    ("range_", "low", "high"),
    [
        (Range(log_uniform=(1e-4, 1e-1)), 1e-4, 1e-1),
        (Range(uniform=(-1.0, 3.0)), -1.0, 3.0),
        (Range(integer=(2, 5)), 2, 5),
    ],
)
def test_shares_of_a_range_go_from_its_low_to_its_high_end(range_: Range, low: float, high: float) -> None:
    assert range_.at(0.0) == pytest.approx(low)
    assert range_.at(1 - 2**-24) == pytest.approx(high, rel=1e-3)


@pytest.mark.parametrize(("low", "high"), [(0.999, 0.99999), (0.99987654, 0.99987655), (1.23456, 2.0)])
@pytest.mark.parametrize("kind", ["uniform", "log_uniform"])
def test_draws_stay_in_a_narrow_range_and_fill_it(kind: str, low: float, high: float) -> None:
    drawn = [float(Range(**{kind: (low, high)}).at(share / 100)) for share in range(100)]  # type: ignore[arg-type]
    assert low <= min(drawn) and max(drawn) <= high
    expected = [low + share / 100 * (high - low) for share in range(100)]
    near = 0.006 if kind == "uniform" else 0.1
    assert drawn == pytest.approx(expected, rel=0, abs=near * (high - low))


def test_draws_from_a_wide_range_have_four_digits() -> None:
    assert Range(uniform=(0.0, 1.0)).at(0.123456789) == 0.1235
    assert Range(log_uniform=(1e-4, 1e-2)).at(0.25) == 0.0003162
    assert Range(uniform=(0.9, 0.99)).at(0.123456789) == 0.9111


def test_draws_fill_a_range_evenly_on_its_scale() -> None:
    tune: dict[str, Tried] = {
        "log": Range(log_uniform=(1e-4, 1.0)),
        "plain": Range(uniform=(0.0, 1.0)),
        "count": Range(integer=(1, 4)),
        "word": ("a", "b"),
    }
    drawn = choices(tune, SearchSettings(kind="random", trials=200), 7)
    below = {"log": [one["log"] < 1e-2 for one in drawn], "plain": [one["plain"] < 0.5 for one in drawn]}  # type: ignore[operator]
    below |= {"count": [one["count"] < 3 for one in drawn], "word": [one["word"] == "a" for one in drawn]}  # type: ignore[operator]
    assert all(abs(sum(half) / 200 - 0.5) < 4 * 0.036 for half in below.values())
    assert drawn[:5] == choices(tune, SearchSettings(kind="random", trials=5), 7), "more trials keep the first"
    assert drawn[:5] != choices(tune, SearchSettings(kind="random", trials=5), 8)
    one_more = {**tune, "more": Range(uniform=(0.0, 1.0))}
    kept = [{key: one[key] for key in tune} for one in choices(one_more, SearchSettings(kind="random", trials=5), 7)]
    assert kept == drawn[:5], "another key draws from its own stream"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "tune_by={kind: grid}",
            "optimizer.lr is a range, which the kind grid cannot search; give a list of values, or tune_by",
        ),
        ("tune_by={kind: random}", "kind random needs trials"),
        ("tune_by={kind: grid, trials: 4}", "a grid tries all values"),
        ("tune_by={kind: random, trials: 4, sampler: cmaes}", "sampler: it belongs to kind optuna"),
        ("tune_by={kind: optuna, trials: 4, sampler: cmaes}", "cmaes searches two or more ranges of numbers"),
        ("tune={optimizer.lr: {log_uniform: [1e-2, 1e-4]}}", "0.01 is not below 0.0001"),
        ("tune={optimizer.lr: {log_uniform: [0, 1e-4]}}", "the ends must be above zero"),
        ("tune={optimizer.lr: {uniform: [0, 1], integer: [1, 2]}}", "give one of log_uniform, uniform"),
        ("tune={optimizer.lr: 1}", "give a list of values, or a range"),
        (
            "tune={optimizer.lr: [1e-3, 1e-2]}",
            "there are only 2 different choices of values, but tune_by asks for 5 trials",
        ),
        ("tune={optimizer.rate: {uniform: [1, 2]}}", "optimizer.rate: unknown key"),
        ("tune={seed: {integer: [1, 9]}}", "tune: seed: seed, data, run must be the same for all arms"),
        ("arms=[{techniques: ['muon:lr=1e-3']}]", "the arm sets optimizer.lr itself, .* from log_uniform"),
        ("tune_seeds=[1]", "tune_seeds: 1 is also in seeds or control_seeds"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(tmp_path: Path, assignment: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        study_of(tmp_path, assignment)


def test_an_arm_that_sets_a_tuned_key_is_refused_before_a_sampler_is_asked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the arm sets optimizer\.lr itself"):
        study_of(tmp_path, OPTUNA, "arms=[{techniques: ['muon:lr=1e-3']}]")


def test_any_setting_of_the_plan_can_be_tuned(tmp_path: Path) -> None:
    tune = "{train.clip_norm: {uniform: [0.5, 2]}, train.warmup_steps: {integer: [0, 3]}, model.mlp_ratio: [2.0, 3.0]}"
    study = study_of(tmp_path, f"tune={tune}")
    for one in study.arms[0].candidates:
        plan = one.plans[0]
        assert one.values == {
            "train.clip_norm": plan.train.clip_norm,
            "train.warmup_steps": plan.train.warmup_steps,
            "model.mlp_ratio": plan.model.mlp_ratio,
        }
    assert len(study.arms[0].candidates) == 5


def test_a_random_sweep_gives_all_arms_the_same_values_and_reports_them(tmp_path: Path) -> None:
    study, out = study_of(tmp_path), tmp_path / "out"
    assert (cost_of(study, out).most, cost_of(study, out).done) == (2 * 5 * 2 + 6, 0)
    assert len(tuning_tasks(study, out)) == 2 * 5 * 2
    outcome = run(study, out, Bowl())
    assert outcome.report is not None
    found = sweep_of(out)
    assert (found.method, found.trials, found.seeds) == ("random", 5, [10, 11])
    assert rates(found.sweeps[0]) == rates(found.sweeps[1])
    nearest = min(rates(found.sweeps[0]), key=lambda rate: abs(math.log10(rate) + 2))
    assert {plan.optimizer.model_dump()["lr"] for arm in stored_study(out).arms for plan in arm.plans} == {nearest}
    text = (out / "report.md").read_text()
    assert "the same 5 choices of optimizer.lr, drawn at random, on seeds 10, 11" in text


def test_the_best_at_an_end_of_its_range_is_reported(tmp_path: Path) -> None:
    tune: dict[str, Tried] = {LR: Range(log_uniform=(1e-4, 1e-2)), "n": Range(integer=(1, 100)), "w": ("a", "b")}
    assert range_edges(tune, {LR: 1.1e-4, "n": 50, "w": "a"}) == ["optimizer.lr below 0.00011"]
    assert range_edges(tune, {LR: 9e-3, "n": 98, "w": "a"}) == ["optimizer.lr above 0.009", "n above 98"]
    assert range_edges(tune, {LR: 1e-3, "n": 50, "w": "b"}) == []
    out, narrow = tmp_path / "out", "tune={optimizer.lr: {log_uniform: [1e-5, 1e-4]}}"
    run(study_of(tmp_path, narrow, "tune_by.trials=6", "tune_seeds=[13]"), out, Bowl())
    assert (
        "the best value lies at the edge of its range; widen the range: optimizer.lr above"
        in (out / "report.md").read_text()
    )


def test_numbers_of_a_sampler_are_written_with_a_few_digits() -> None:
    assert assignments_words({"a": 0.0031622776601, "b": 2.0, "c": 1e-05, "d": "x", "e": True, "f": 12345678901}) == (
        "a=0.003162, b=2.0, c=1e-05, d=x, e=true, f=12345678901"
    )


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'tintype\[optuna\]'"):
        run_study(study_of(tmp_path, OPTUNA), tmp_path / "out", 1)


class Halving:
    """A sampler in place of Optuna's: it proposes half of the best rate so far, and the same again when replayed."""

    @staticmethod
    def suggest(
        tune: object, by: object, history: list[tuple[dict[str, float], float | None]], direction: str, seed: int
    ) -> dict[str, float]:
        known = [(score, values[LR]) for values, score in history if score is not None]
        return {LR: min(known)[1] / 2 if known else 0.08 / (1 + len(history))}


@pytest.fixture
def halving(monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        __version__ = "0"

    monkeypatch.setattr(tune, "suggest", Halving.suggest)
    monkeypatch.setattr(tune, "optuna_package", lambda by: Package)


def test_each_trial_follows_from_those_before_and_a_killed_sweep_resumes(tmp_path: Path, halving: None) -> None:
    study, out = study_of(tmp_path, OPTUNA), tmp_path / "out"
    whole = Bowl()
    run(study, tmp_path / "whole", whole)
    writer = Bowl(stop_after=7)
    stopped = run(study, out, writer)
    assert stopped.report is None
    assert "the tuning is not finished: of its 24 runs" in stopped.no_report
    with pytest.raises(UserError, match="the tuning is not finished"):
        report_study(out)
    before = (out / "tuning.jsonl").read_text()
    writer.stop_after = None
    assert run(study, out, writer).report is not None
    assert (out / "tuning.jsonl").read_text().startswith(before), "the history only grows"
    assert sorted(writer.begun) == sorted(whole.begun) and len(set(writer.begun)) == len(writer.begun)
    found = sweep_of(out)
    assert found.sweeps == sweep_of(tmp_path / "whole").sweeps
    assert [len(sweep.points) for sweep in found.sweeps] == [6, 6], "equal budgets"
    assert rates(found.sweeps[0])[:4] == pytest.approx([0.08, 0.04, 0.02, 0.01]), "0.08 diverged, and counts as worst"
    assert found.sweeps[0].points[0].runs[0].state == "diverged"
    text = (out / "report.md").read_text()
    assert "proposed by optuna tpe" in text
    assert "| trial 1 |" in text
    seeds = {plan.seed for arm in stored_study(out).arms for plan in arm.plans}
    assert not seeds & set(found.seeds)
    assert untuned_words(tuning_of(study, out)) == ""


def test_workers_ask_for_the_next_trial_themselves(tmp_path: Path, halving: None) -> None:
    study, out = study_of(tmp_path, OPTUNA), tmp_path / "out"
    lab.prepare_study(study, out)
    assert [task.arm.partition(":")[0] for task in lab._unsettled(study, out)] == [
        *("baseline (trial 1", "muon (trial 1") * 2
    ]
    assert len(lab._unsettled(study, out)) == 4, "none is asked for while one is open"
    assert len(read_lines(out / "tuning.jsonl")) == 2


@needs_optuna
@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random"])
def test_optuna_proposes_the_same_trials_after_a_restart(sampler: str) -> None:
    tune: dict[str, Tried] = {"a": Range(log_uniform=(1e-4, 1e-1)), "b": Range(uniform=(0.0, 1.0))}
    by = SearchSettings(kind="optuna", trials=20, sampler=sampler)  # type: ignore[arg-type]
    history: list[tuple[dict[str, search.TuneValue], float | None]] = []
    for number in range(20):
        values = suggest(tune, by, history, "lower", 3)
        a, b = float(values["a"]), float(values["b"])
        assert 1e-4 <= a <= 1e-1 and 0 <= b <= 1
        lost = number == 4
        history.append((values, None if lost else (math.log10(a) + 2) ** 2 + (b - 0.3) ** 2))
    stored = json.loads(json.dumps(history))
    assert suggest(tune, by, stored, "lower", 3) == suggest(tune, by, history, "lower", 3)
    if sampler == "tpe":  # a grid of as many points would be 0.2 off in the exponent
        assert min(score for _, score in history if score is not None) < 0.1
    with pytest.raises(UserError, match="proposes other values for trial 2"):
        suggest(tune, by, [stored[0], ({"a": 1e-3, "b": 0.5}, 1.0)], "lower", 3)


@needs_optuna
def test_a_sweep_by_optuna_is_run_stopped_and_resumed(tmp_path: Path) -> None:
    study, out = study_of(tmp_path, OPTUNA), tmp_path / "out"
    run(study, tmp_path / "whole", Bowl())
    writer = Bowl(stop_after=9)
    run(study, out, writer)
    writer.stop_after = None
    assert run(study, out, writer).report is not None
    assert sweep_of(out).sweeps == sweep_of(tmp_path / "whole").sweeps
    lines = read_lines(out / "tuning.jsonl")
    write_lines(out / "tuning.jsonl", lines[:-1])
    run(study, out, writer)
    assert read_lines(out / "tuning.jsonl") == lines, "a trial that was lost is proposed again"
