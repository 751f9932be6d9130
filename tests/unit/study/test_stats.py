from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tintype.study import stats
from tintype.study.analysis import AnalysisSettings
from tintype.study.pairs import Pair, pair_runs
from tintype.study.results import MetricInfo, Run
from tintype.study.shares import weights_of
from tintype.study.verdicts import compare

LOWER = MetricInfo(name="m", label="distance", direction="lower", definition="")
PAIRED = AnalysisSettings(method="paired")
HIGHER = MetricInfo(name="m", label="accuracy", direction="higher", definition="")


def pair(new: list[float], old: list[float], shared: bool = True, complete: bool = True) -> Pair:
    return Pair(new, old, shared, complete)


def verdicts(family: dict[str, Pair], meaning: MetricInfo = LOWER) -> dict[str, str]:
    rows = compare({(name, "m"): one for name, one in family.items()}, {"m": meaning}, analysis=PAIRED)
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
    assert verdicts({"arm": arm, **others})["arm"] == "undecided"


def test_one_seed_is_a_sketch() -> None:
    (row,) = compare({("a", "m"): pair([5.0], [10.0])}, {"m": LOWER}, analysis=PAIRED).values()
    assert row.verdict == "sketch"
    assert row.low is None and row.p is None and row.detectable is None and row.difference == -5


def test_a_missing_run_makes_the_comparison_incomplete() -> None:
    (row,) = compare(
        {("a", "m"): pair([5.0, 5.1], [10.0, 10.1], complete=False)}, {"m": LOWER}, analysis=PAIRED
    ).values()
    assert row.verdict == "incomplete" and len(row.differences) == 2


def test_an_error_that_is_zero_up_to_rounding_is_zero() -> None:
    """Counts of 48: three times one more, though the floats differ in their last digit."""
    new, old = [17 / 48, 21 / 48, 30 / 48], [16 / 48, 20 / 48, 29 / 48]
    assert len({a - b for a, b in zip(new, old, strict=True)}) > 1
    found = stats.paired(new, old)
    assert found.error == 0 and found.p is None and found.interval(0.95) is None
    assert stats.unpaired([0.1 + 0.2, 0.3, 0.3], [0.5] * 3).error == 0
    small = stats.paired([1e-9 * value for value in NEW], [1e-9 * value for value in OLD])
    assert small.p == pytest.approx(stats.paired(NEW, OLD).p)  # small values are no rounding


def test_values_that_differ_by_rounding_only_are_the_same_to_a_permutation_test() -> None:
    old = [0.3] * 8
    new = [value * (1 + 1e-15 * (index + 1)) for index, value in enumerate(old)]
    differences = [a - b for a, b in zip(new, old, strict=True)]
    rounding = stats.rounding_of(new)
    assert stats.sign_flip_p(differences, rounding) == stats.label_p(new, old, rounding) == 1


def test_what_is_planned_and_missing_counts_with_a_p_of_one() -> None:
    """Alone it is better; of twenty it is not, and neither while the others are missing or in part."""
    arm = pair([9.0, 9.4, 8.8], [10.0, 10.2, 9.9])
    planned = [(str(index), "m") for index in range(20)]
    (alone,) = compare({("0", "m"): arm}, {"m": LOWER}, analysis=PAIRED).values()
    (early,) = compare({("0", "m"): arm}, {"m": LOWER}, analysis=PAIRED, planned=planned).values()
    assert alone.verdict == "better" and early.verdict == "undecided"
    assert alone.p_adjusted == alone.p and early.p_adjusted == pytest.approx(20 * (alone.p or 0))
    clear = pair([5.0, 5.0001], [10.0, 10.0], complete=False)
    begun = compare(
        {("0", "m"): arm} | dict.fromkeys(planned[1:], clear), {"m": LOWER}, analysis=PAIRED, planned=planned
    )
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


DRAWN = np.random.default_rng(7)
NEW, OLD = DRAWN.normal(0.8, 1, 7).tolist(), DRAWN.normal(0, 1, 7).tolist()


def _difference_of_means(new: np.ndarray[Any, Any], old: np.ndarray[Any, Any], axis: int) -> Any:
    return new.mean(axis=axis) - old.mean(axis=axis)


@pytest.mark.parametrize("seeds", [2, 5, 7])
def test_permutation_tests_against_scipy(seeds: int) -> None:
    new, old = NEW[:seeds], OLD[:seeds]
    differences = np.subtract(new, old)
    flips = scipy_stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    labels = scipy_stats.permutation_test((new, old), _difference_of_means, vectorized=True, n_resamples=np.inf)
    assert stats.sign_flip_p(differences.tolist()) == pytest.approx(flips.pvalue)
    assert stats.label_p(new, old) == pytest.approx(labels.pvalue)


def test_permutation_tests_of_many_seeds_are_drawn_and_repeat() -> None:
    differences = np.random.default_rng(0).normal(0.5, 1, 20).tolist()
    oracle = scipy_stats.ttest_1samp(differences, 0.0).pvalue
    assert stats.sign_flip_p(differences) == stats.sign_flip_p(differences) == pytest.approx(oracle, abs=0.01)
    new, old = (np.random.default_rng(seed).normal(seed / 2, 1, 12).tolist() for seed in (1, 2))
    oracle = scipy_stats.ttest_ind(new, old).pvalue
    assert stats.label_p(new, old) == pytest.approx(oracle, abs=0.02)


def test_permutation_tests_do_not_depend_on_the_unit_or_on_rounding() -> None:
    tied = [0.1 + 0.2, 0.3, -0.3]
    assert stats.sign_flip_p(tied) == 1.0 == stats.sign_flip_p([value * 1e9 for value in tied])
    assert stats.sign_flip_p([0.0, 0.0, 0.0]) == 1.0
    assert stats.label_p([1e6 + 3.0, 1e6 + 4.0], [1e6 + 1.0, 1e6 + 2.0]) == pytest.approx(2 / 6)


@pytest.mark.parametrize("seeds", range(2, 11))
def test_the_smallest_permutation_p_is_that_of_differences_of_one_sign(seeds: int) -> None:
    reached = stats.sign_flip_p([1.0 + index for index in range(seeds)])
    assert stats.smallest_permutation_p(seeds) == reached == 2 / 2**seeds
    family = [reached] + [1.0] * 4
    assert stats.smallest_permutation_p(seeds, 5) == min(1.0, stats.holm(family)[0])


@pytest.mark.parametrize("comparisons", [1, 3, 7.5])
def test_the_seeds_for_a_permutation_test_are_the_fewest_that_can_reach_a_verdict(comparisons: float) -> None:
    needed = stats.seeds_for_permutation(comparisons)
    assert needed is not None
    assert stats.smallest_permutation_p(needed, comparisons) < 0.05
    assert stats.smallest_permutation_p(needed - 1, comparisons) >= 0.05


def test_six_seeds_are_the_fewest_for_one_permutation_test_and_too_many_comparisons_have_none() -> None:
    assert stats.seeds_for_permutation(1) == 6
    assert stats.seeds_for_permutation(1000) is None


def test_weighted_holm_against_the_definition() -> None:
    """The closed test of weighted Bonferroni tests: the largest p over all intersections that hold the hypothesis."""
    generator = np.random.default_rng(3)
    for _ in range(20):
        p, weights = generator.uniform(0, 0.1, 5), generator.uniform(0.1, 1, 5)
        subsets = [[i for i in range(5) if mask >> i & 1] for mask in range(1, 32)]
        intersection = {tuple(s): min(1.0, min(p[i] / weights[i] for i in s) * sum(weights[s])) for s in subsets}
        closed = [max(value for s, value in intersection.items() if i in s) for i in range(5)]
        assert stats.holm(p.tolist(), weights.tolist()) == pytest.approx(closed)


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


def test_the_pairing_is_used() -> None:
    """Seeds that differ much more than the arm does: only pair by pair is the difference seen."""
    old = [1.0, 5.0, 9.0, 13.0]
    new = [1.5, 5.55, 9.45, 13.5]
    assert verdicts({"arm": pair(new, old)}) == {"arm": "worse"}
    assert verdicts({"arm": pair(new, old, shared=False)}) == {"arm": "undecided"}
    assert verdicts({"arm": pair([*new[1:], new[0]], old)}) == {"arm": "undecided"}


def test_percentile_t_against_drawn_samples() -> None:
    differences = np.subtract(NEW, OLD)
    found = stats.bootstrap_interval(NEW, OLD, shared_seeds=True, confidence=0.95)
    drawn = np.random.default_rng(5).choice(differences, (40_000, len(differences)))
    t = (drawn.mean(axis=1) - differences.mean()) / scipy_stats.sem(drawn, axis=1)
    low, high = np.quantile(t, [0.025, 0.975])
    error = scipy_stats.sem(differences)
    assert found == pytest.approx((differences.mean() - high * error, differences.mean() - low * error), abs=0.05)


def test_unpaired_percentile_t_against_drawn_samples() -> None:
    new, old = np.asarray(NEW), np.asarray(OLD)
    found = stats.bootstrap_interval(NEW, OLD, shared_seeds=False, confidence=0.9)
    generator = np.random.default_rng(6)
    a, b = (generator.choice(values, (40_000, len(values))) for values in (new, old))
    centre, error = new.mean() - old.mean(), np.hypot(scipy_stats.sem(new), scipy_stats.sem(old))
    t = (a.mean(axis=1) - b.mean(axis=1) - centre) / np.hypot(scipy_stats.sem(a, axis=1), scipy_stats.sem(b, axis=1))
    low, high = np.quantile(t, [0.05, 0.95])
    assert found == pytest.approx((centre - high * error, centre - low * error), abs=0.05)


def test_a_bootstrap_interval_repeats_and_needs_five_seeds() -> None:
    first, second = (stats.bootstrap_interval(NEW, OLD, True, 0.95) for _ in range(2))
    assert first == second
    assert stats.bootstrap_interval(NEW[:4], OLD[:4], True, 0.95) is None
    assert stats.bootstrap_interval([2.0] * 5, [1.5] * 5, True, 0.95) is None


def test_a_bootstrap_interval_without_an_end_is_none() -> None:
    """A third of the resamples of these hold one value only, and have an infinite t."""
    assert stats.bootstrap_interval([1.0, 1.0, 1.0, 1.0, 2.0], [0.0] * 5, True, 0.95) is None
    low, high = stats.bootstrap_interval([0.0, 1.0, 1.0, 1.0, 2.0], [0.0] * 5, True, 0.5) or (0.0, 0.0)
    assert low < 1 < high and low + high == pytest.approx(2)  # resamples of ones alone have no shift: their t is zero


@pytest.mark.parametrize(("seeds", "shared", "level"), [(8, True, 0.05), (10, True, 0.01), (6, False, 0.02)])
def test_the_permutation_tests_detectable_difference_is_found_at_the_stated_power(
    seeds: int, shared: bool, level: float
) -> None:
    reach = stats.permutation_detectable(seeds, shared, 1 - level)
    assert reach is not None
    generator, found = np.random.default_rng(11), 0
    effect = reach * (1 if shared else 2**0.5) / seeds**0.5
    for _ in range(1_000):
        new, old = generator.normal(effect, 1, seeds).tolist(), generator.normal(0, 1, seeds).tolist()
        found += (stats.sign_flip_p(new) if shared else stats.label_p(new, old)) < level
    assert found / 1_000 == pytest.approx(0.8, abs=0.05)


def test_a_permutation_test_that_can_find_nothing_says_so() -> None:
    assert stats.permutation_detectable(4, True, 0.95) is None


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


def test_comparisons_say_how_they_were_made() -> None:
    family = {("arm", "m"): pair(NEW, OLD), ("control", "m"): pair(NEW, OLD, shared=False)}
    made = {}
    for test in ("student", "permutation"):
        for interval in ("student", "bootstrap"):
            analysis = AnalysisSettings(method="paired", test=test, interval=interval)
            rows = compare(family, {"m": LOWER}, analysis=analysis)
            made[test, interval] = [(row.test, row.interval) for row in rows.values()]
    assert made["student", "student"] == [("paired Student", "Student"), ("Welch", "Welch")]
    assert made["permutation", "bootstrap"] == [
        ("sign-flip permutation", "bootstrap"),
        ("label permutation", "bootstrap"),
    ]
    assert made["permutation", "student"][1] == ("label permutation", "Welch")
    (row, _) = compare(family, {"m": LOWER}).values()
    assert (row.test, row.interval) == ("shared spread", "simultaneous")


def test_the_analysis_changes_p_and_interval() -> None:
    chosen = AnalysisSettings(test="permutation", interval="bootstrap")
    (row,) = compare({("arm", "m"): pair(NEW, OLD)}, {"m": LOWER}, analysis=chosen).values()
    assert row.p == pytest.approx(stats.sign_flip_p(np.subtract(NEW, OLD).tolist()))
    assert (row.low, row.high) == stats.bootstrap_interval(NEW, OLD, True, 0.95)
    (sketch,) = compare({("arm", "m"): pair([1.0], [2.0])}, {"m": LOWER}, analysis=chosen).values()
    assert sketch.verdict == "sketch" and sketch.low is None
