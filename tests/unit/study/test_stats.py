from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tintype.metrics.evaluate import Definition
from tintype.study import stats
from tintype.study.compare import Pair, compare
from tintype.study.results import Run

LOWER, HIGHER = Definition("distance", "lower", ""), Definition("accuracy", "higher", "")


def pair(new: list[float], old: list[float], shared: bool = True, complete: bool = True) -> Pair:
    return Pair(new, old, shared, complete)


def verdicts(family: dict[str, Pair], meaning: Definition = LOWER) -> dict[str, str]:
    rows = compare({(name, "m"): one for name, one in family.items()}, {"m": meaning})
    return {name: row.verdict for (name, _), row in rows.items()}


def test_paired_and_unpaired_against_scipy() -> None:
    new, old = [1.0, 2.5, 3.1, 4.0], [0.7, 1.9, 3.3, 3.0]
    for ours, oracle in (
        (stats.paired(new, old), scipy_stats.ttest_rel(new, old)),
        (stats.unpaired(new, old), scipy_stats.ttest_ind(new, old, equal_var=False)),
    ):
        assert ours.p == pytest.approx(oracle.pvalue)
        assert ours.interval(0.95) == pytest.approx(tuple(oracle.confidence_interval(0.95)))


def test_holm_against_a_worked_example() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_detectable_difference_is_found_at_the_stated_power() -> None:
    """Simulated: a true difference of that size is found in 80% of studies of three seeds."""
    effect = stats.detectable_in_errors(2, 0.95) / 3**0.5
    drawn = np.random.default_rng(0).normal(effect, 1.0, (20_000, 3))
    found = scipy_stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_false_verdicts_in_simulated_control_studies_stay_under_five_percent() -> None:
    """Three arms and two metrics without any effect, three seeds: a family has a verdict in at most 5% of studies."""
    generator, wrong, studies = np.random.default_rng(1), 0, 400
    for _ in range(studies):
        values = generator.normal(10, 1, (4, 2, 3)).tolist()
        family = {f"{arm}{m}": pair(values[arm][m], values[0][m], arm > 1) for arm in (1, 2, 3) for m in (0, 1)}
        wrong += any(verdict in ("better", "worse") for verdict in verdicts(family).values())
    assert wrong <= 0.05 * studies + 3 * (studies * 0.05 * 0.95) ** 0.5


def test_a_clear_effect_is_called_by_its_direction() -> None:
    baseline = [10.0, 10.2, 9.9]
    family = {"low": pair([5.0, 5.25, 4.85], baseline), "high": pair([15.0, 15.1, 14.9], baseline)}
    assert verdicts(family) == {"low": "better", "high": "worse"}
    assert verdicts(family, HIGHER) == {"low": "worse", "high": "better"}


def test_the_same_effect_among_many_comparisons_needs_more_evidence() -> None:
    baseline = [10.0, 10.2, 9.9]
    arm = pair([9.0, 9.4, 8.8], baseline)
    assert verdicts({"arm": arm}) == {"arm": "better"}
    others = {f"other {i}": pair([10.1, 10.0, 10.05], baseline) for i in range(12)}
    assert verdicts({"arm": arm, **others})["arm"] == "not shown"


def test_one_seed_is_a_sketch() -> None:
    (row,) = compare({("a", "m"): pair([5.0], [10.0])}, {"m": LOWER}).values()
    assert row.verdict == "sketch"
    assert row.low is None and row.p is None and row.detectable is None and row.difference == -5


def test_a_missing_run_makes_the_comparison_incomplete() -> None:
    (row,) = compare({("a", "m"): pair([5.0, 5.1], [10.0, 10.1], complete=False)}, {"m": LOWER}).values()
    assert row.verdict == "incomplete" and len(row.differences) == 2


def test_a_metric_too_coarse_to_tell_seeds_apart_claims_nothing() -> None:
    for shared in (True, False):
        assert verdicts({"a": pair([0.5] * 3, [0.25] * 3, shared)}) == {"a": "not shown"}


def test_runs_that_failed_or_diverged_leave_the_comparison() -> None:
    from tintype.study.compare import _pair
    from tintype.study.study import load_study

    arm = next(arm for arm in load_study("pocket").arms if arm.role == "arm")
    runs = {
        "baseline": [Run(seed=i, hash="h", folder="f", state="done", metrics={"m": 1.0}) for i in range(3)],
        arm.name: [
            Run(seed=0, hash="h", folder="f", state="done", metrics={"m": 2.0}),
            Run(seed=1, hash="h", folder="f", state="done", metrics={"m": float("inf")}),
            Run(seed=2, hash="h", folder="f", state="failed"),
        ],
    }
    found = _pair(arm, runs, "baseline", "m")
    assert (found.new, found.old, found.complete) == ([2.0], [1.0], False)
