from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tintype.metrics.evaluate import Definition
from tintype.study import stats
from tintype.study.compare import compare
from tintype.study.results import Run

LOWER = Definition("distance", "lower", "")


def runs(*values: float) -> list[Run]:
    return [Run(seed=i, hash="h", folder="f", state="done", metrics={"m": value}) for i, value in enumerate(values)]


def test_the_interval_and_p_are_those_of_a_paired_t_test() -> None:
    new, old = [1.0, 2.5, 3.1, 4.0], [0.7, 1.9, 3.3, 3.0]
    paired = stats.Paired.of([a - b for a, b in zip(new, old, strict=True)])
    oracle = scipy_stats.ttest_rel(new, old)
    assert paired.p == pytest.approx(oracle.pvalue)
    assert paired.interval(0.95) == pytest.approx(tuple(oracle.confidence_interval(0.95)))


def test_holm_against_a_worked_example() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_detectable_difference_is_found_at_the_stated_power() -> None:
    """Simulated: a true difference of that size is found in 80% of studies of three seeds."""
    effect = stats.detectable_in_spreads(3, 0.95)
    drawn = np.random.default_rng(0).normal(effect, 1.0, (20_000, 3))
    found = scipy_stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_false_verdicts_in_simulated_control_studies_stay_under_five_percent() -> None:
    """Three arms without any effect, three seeds: some arm gets a verdict in at most 5% of studies."""
    generator = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        values = generator.normal(10, 1, (4, 3))
        rows = compare([runs(*arm) for arm in values[1:]], runs(*values[0]), "m", LOWER)
        wrong += any(row is not None and row.verdict in ("better", "worse") for row in rows)
    assert wrong <= 0.05 * 400 + 3 * (400 * 0.05 * 0.95) ** 0.5


def test_a_clear_effect_is_called_by_its_direction() -> None:
    baseline = runs(10.0, 10.2, 9.9)
    better, worse = runs(5.0, 5.25, 4.85), runs(15.0, 15.1, 14.9)
    verdicts = [row.verdict for row in compare([better, worse], baseline, "m", LOWER) if row]
    assert verdicts == ["better", "worse"]
    higher = Definition("accuracy", "higher", "")
    assert [row.verdict for row in compare([better], baseline, "m", higher) if row] == ["worse"]


def test_one_seed_is_a_sketch() -> None:
    (row,) = compare([runs(5.0)], runs(10.0), "m", LOWER)
    assert row is not None and row.verdict == "sketch"
    assert row.low is None and row.p is None and row.detectable is None and row.difference == -5


def test_a_missing_run_makes_the_comparison_incomplete() -> None:
    missing = [*runs(5.0, 5.1), Run(seed=2, hash="h", folder="f", state="missing")]
    (row,) = compare([missing], runs(10.0, 10.1, 10.2), "m", LOWER)
    assert row is not None and row.verdict == "incomplete" and len(row.differences) == 2
    lost = [Run(seed=i, hash="h", folder="f", state="failed") for i in range(3)]
    assert compare([lost], runs(1.0, 2.0, 3.0), "m", LOWER) == [None]


def test_a_metric_too_coarse_to_tell_seeds_apart_claims_nothing() -> None:
    (row,) = compare([runs(0.5, 0.5, 0.5)], runs(0.25, 0.25, 0.25), "m", LOWER)
    assert row is not None and row.verdict == "not shown"


def test_a_number_that_is_not_finite_makes_the_comparison_incomplete() -> None:
    (row,) = compare([runs(5.0, float("inf"), float("nan"))], runs(10.0, 10.1, 10.2), "m", LOWER)
    assert row is not None and row.verdict == "incomplete" and row.differences == [-5.0]
