"""Seed spread, sampling error and signal-to-noise ratio of a study's metrics."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev

import pytest

from tests.unit.study.example_results import example
from tests.unit.study.test_adaptive import study_with
from tests.written_runs import METRIC, Writer, written_runs
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import read_result, result_file, write_result
from tintype.study.lab import run_study
from tintype.study.report.html import to_html
from tintype.study.report.markdown import to_markdown
from tintype.study.results import Arm, MetricInfo, Role, Run, StudyResults
from tintype.study.runner import Task
from tintype.study.trust import Trust, trust


def study(values: dict[tuple[str, Role], list[float]], error: float = 0.5) -> Trust:
    arms = [
        example().arms[0].model_copy(update={"name": name, "role": role, "runs": runs_of(seeds, error)})
        for (name, role), seeds in values.items()
    ]
    metric = MetricInfo(name="loss", label="loss", direction="lower", definition="")
    (row,) = trust(example().model_copy(update={"arms": arms, "metrics": [metric]}))
    return row


def runs_of(values: list[float], error: float) -> list[Run]:
    metrics = [{"loss": value} for value in values]
    return [Run(seed=0, hash="", folder="", state="done", metrics=one, errors={"loss": error}) for one in metrics]


def test_the_control_is_the_baseline_again() -> None:
    row = study({("baseline", "baseline"): [1.0, 3.0], ("control", "control"): [2.0, 6.0]})
    assert row.baseline_mean == 2 and row.seeds == 4
    assert row.seed_spread == pytest.approx(stdev([1, 3, 2, 6])) and row.sampling_error == pytest.approx(0.5)
    assert row.relative_spread == pytest.approx(stdev([1, 3, 2, 6]) / 2)
    assert row.signal_to_noise is None, "there is no arm"


def test_signal_is_between_arms_and_noise_within() -> None:
    row = study({("baseline", "baseline"): [1.0, 3.0], ("far", "arm"): [11.0, 13.0]})
    assert row.signal_to_noise == pytest.approx(stdev([2, 12]) / (math.sqrt(2) / math.sqrt(2)))
    assert study({("baseline", "baseline"): [1.0], ("far", "arm"): [11.0]}).signal_to_noise is None


def test_a_run_that_diverged_counts_nowhere() -> None:
    row = study({("baseline", "baseline"): [1.0, 3.0, math.nan], ("far", "arm"): [11.0, 13.0, math.inf]})
    assert row.seeds == 2 and row.signal_to_noise == pytest.approx(stdev([2, 12]))


def test_runs_that_fell_off_count_nowhere() -> None:
    results = example()
    metric = next(one for one in results.metrics if one.name == "recall")

    def recall(arm: Arm, *without: int) -> list[float]:
        return [run.metrics["recall"] for run in arm.runs if run.seed not in without]

    baseline, control, first, second = results.arms
    healthy = recall(baseline, baseline.runs[0].seed)
    fell = {"baseline_collapsed": [baseline.runs[0].seed], "collapsed": [first.runs[1].seed]}
    update = {"verdict": "unstable", "baseline_mean": fmean(healthy), **fell}
    row = first.comparisons["recall"].model_copy(update=update)
    first = first.model_copy(update={"comparisons": {**first.comparisons, "recall": row}})
    (found,) = trust(results.model_copy(update={"arms": [baseline, control, first, second], "metrics": [metric]}))
    assert found.baseline_mean == pytest.approx(fmean(healthy)) and found.seeds == len(baseline.runs) * 2 - 1
    assert found.seed_spread == pytest.approx(stdev([*healthy, *recall(control)]))
    arms = [healthy, recall(first, first.runs[1].seed), recall(second)]
    noise = fmean(stdev(one) / math.sqrt(len(one)) for one in arms)
    assert found.signal_to_noise == pytest.approx(stdev(map(fmean, arms)) / noise)


def test_the_bias_is_shown_where_it_is_known(tmp_path: Path) -> None:
    results = example()
    plain, name = to_markdown(results), results.metrics[0].name
    biased = [run.model_copy(update={"biases": {name: 0.05}}) for run in results.arms[0].runs]
    known = results.model_copy(
        update={"arms": [results.arms[0].model_copy(update={"runs": biased}), *results.arms[1:]]}
    )
    (row,) = [row for row in trust(known) if row.metric.name == name]
    assert row.bias == pytest.approx(0.05) and row.baseline_mean is not None
    assert row.relative_bias == pytest.approx(0.05 / row.baseline_mean)
    for text in (to_markdown(known), to_html(known, tmp_path)):
        assert "Bias, of the mean" in text and f"{100 * 0.05 / row.baseline_mean:.2g}" in text
    assert "Bias" not in plain and "biases" not in str(results.dump()) and "biases" in str(known.dump())


class Biased(Writer):
    """Writes runs whose results have a bias."""

    def _write(self, task: Task, protocol: Protocol) -> None:
        super()._write(task, protocol)
        file = result_file(task.folder, protocol, task.plan.train.steps)
        write_result(file, read_result(file).model_copy(update={"biases": {METRIC: 0.25}}))


def test_the_bias_of_an_evaluation_reaches_the_results_of_a_study(tmp_path: Path) -> None:
    with written_runs(Biased({})):
        outcome = run_study(study_with(tmp_path, "seeds=[0, 1]"), tmp_path / "out", 1)
    assert outcome.report is not None
    assert all(run.biases == {METRIC: 0.25} for arm in outcome.report.results.arms for run in arm.runs)


def test_both_reports_have_the_table(tmp_path: Path) -> None:
    results: StudyResults = example()
    for text in (to_markdown(results), to_html(results, tmp_path)):
        assert "How far the metrics can be trusted" in text and "Signal-to-noise" in text
