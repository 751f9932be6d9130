from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tintype.study import stats
from tintype.study.pairs import Pair, pair_runs
from tintype.study.results import MetricInfo, Run
from tintype.study.shares import weights_of
from tintype.study.verdicts import compare

LOWER = MetricInfo(name="m", label="distance", direction="lower", definition="")
HIGHER = MetricInfo(name="m", label="accuracy", direction="higher", definition="")


def pair(new: list[float], old: list[float], shared: bool = True, complete: bool = True) -> Pair:
    return Pair(new, old, shared, complete)


def verdicts(family: dict[str, Pair], meaning: MetricInfo = LOWER) -> dict[str, str]:
    rows = compare({(name, "m"): one for name, one in family.items()}, {"m": meaning})
    return {name: row.verdict for (name, _), row in rows.items()}


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
    assert verdicts({"arm": arm, **others})["arm"] == "undecided"


def test_one_seed_is_a_sketch() -> None:
    (row,) = compare({("a", "m"): pair([5.0], [10.0])}, {"m": LOWER}).values()
    assert row.verdict == "sketch"
    assert row.low is None and row.p is None and row.detectable is None and row.difference == -5


def test_a_missing_run_makes_the_comparison_incomplete() -> None:
    (row,) = compare({("a", "m"): pair([5.0, 5.1], [10.0, 10.1], complete=False)}, {"m": LOWER}).values()
    assert row.verdict == "incomplete" and len(row.differences) == 2


def test_what_is_planned_and_missing_counts_with_a_p_of_one() -> None:
    """Alone it is better; of twenty it is not, and neither while the others are missing or in part."""
    arm = pair([9.0, 9.4, 8.8], [10.0, 10.2, 9.9])
    planned = [(str(index), "m") for index in range(20)]
    (alone,) = compare({("0", "m"): arm}, {"m": LOWER}).values()
    (early,) = compare({("0", "m"): arm}, {"m": LOWER}, planned=planned).values()
    assert alone.verdict == "better" and early.verdict == "undecided"
    assert alone.p_adjusted == alone.p and early.p_adjusted == pytest.approx(20 * (alone.p or 0))
    clear = pair([5.0, 5.0001], [10.0, 10.0], complete=False)
    begun = compare({("0", "m"): arm} | dict.fromkeys(planned[1:], clear), {"m": LOWER}, planned=planned)
    assert begun["0", "m"].p_adjusted == early.p_adjusted
    assert begun["1", "m"].p is not None and begun["1", "m"].p_adjusted is None


def test_runs_that_failed_or_diverged_leave_the_comparison() -> None:
    baseline = [Run(seed=i, hash="h", folder="f", state="done", metrics={"m": 1.0}) for i in range(3)]
    arm = [
        Run(seed=0, hash="h", folder="f", state="done", metrics={"m": 2.0}),
        Run(seed=1, hash="h", folder="f", state="done", metrics={"m": float("inf")}),
        Run(seed=2, hash="h", folder="f", state="failed"),
    ]
    found = pair_runs(arm, baseline, "m", shared_seeds=True)
    assert (found.new, found.old, found.complete, found.loss) == ([2.0], [1.0], False, "diverged")


def test_primary_comparisons_share_four_fifths_whatever_the_order() -> None:
    keys = [("a", "other"), ("a", "first"), ("b", "other"), ("b", "first"), ("a", "third")]
    weights = weights_of(keys, {"first"})
    assert weights["a", "first"] == weights["b", "first"] == pytest.approx(0.4)
    assert weights["a", "third"] == pytest.approx(0.2 / 3)
    assert set(weights_of(keys, {"first", "other", "third"}).values()) == {0.2}
    pairs = {key: pair([9.0, 9.4, 8.8], [10.0, 10.2, 9.9]) for key in keys}
    rows = compare(pairs, dict.fromkeys(("first", "other", "third"), LOWER), {"first"})
    p = rows["a", "first"].p
    assert p is not None and rows["a", "first"].p_adjusted == pytest.approx(p / 0.4)


def test_power_against_scipys_noncentral_t() -> None:
    for shift, freedom, confidence in ((2.0, 4, 0.95), (3.5, 9, 0.99), (1.0, 2, 0.9)):
        critical = scipy_stats.t.ppf((1 + confidence) / 2, freedom)
        oracle = scipy_stats.nct.sf(critical, freedom, shift) + scipy_stats.nct.cdf(-critical, freedom, shift)
        assert stats.t_power(shift, freedom, confidence) == pytest.approx(oracle, abs=5e-4)


@pytest.mark.parametrize("freedom", [2.13, 3.997, 11.4])
def test_the_interpolated_detectable_difference_has_its_power(freedom: float) -> None:
    reach = stats.detectable_in_errors(freedom, 0.99)
    assert stats.t_power(reach, freedom, 0.99) == pytest.approx(0.8, abs=1e-3)


def test_the_range_of_a_deviation_holds_the_truth_as_often_as_it_says() -> None:
    drawn = np.random.default_rng(2).normal(0, 2.0, (4_000, 5)).std(axis=1, ddof=1)
    held = [low <= 2.0 <= high for low, high in (stats.deviation_range(one, 4) for one in drawn)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.012)
