"""Estimates: against scipy at both ends of sharing, by hand between them, and what holds whatever the values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tests.unit.study.stats.named_cells import cells
from tintype.study.stats import spread
from tintype.study.stats.cells import LOG, Cells
from tintype.study.stats.contrast import Contrast, against
from tintype.study.stats.estimate import (
    Estimate,
    corrected_for_selection,
    detectable_in_errors,
    deviation_range,
    estimate,
    same_power,
    t_power,
)

ARM, BASELINE, CONTROL = [1.0, 2.5, 3.1, 4.0], [0.7, 1.9, 3.3, 3.0], [0.9, 2.2, 2.6, 3.5]
PAIR = against("arm", "baseline")


def not_measured(found: Estimate) -> bool:
    return [found.interval, found.p, found.detectable, found.corrected] == [None] * 4


def test_without_sharing_it_is_welchs_test(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAST_FREEDOM", "CENTRE_WEIGHT", "SKEW"):
        monkeypatch.setattr(spread, name, 0.0)
    oracle = scipy_stats.ttest_ind(ARM, BASELINE, equal_var=False)
    found = estimate(replace(cells(arm=ARM, baseline=BASELINE), alike=0.0), PAIR)
    assert found.p == pytest.approx(oracle.pvalue)
    assert found.interval == pytest.approx(tuple(oracle.confidence_interval(0.95)))


def test_degrees_of_freedom_are_at_most_those_of_all_runs() -> None:
    assert estimate(replace(cells(arm=ARM, baseline=BASELINE), alike=1e12), PAIR).freedom == 6


def test_the_wider_side_of_an_interval_is_that_of_the_long_tail() -> None:
    plain = Estimate(1.0, 0.0, 0.95, 0.5, 6.0)
    assert plain.interval is not None
    t = scipy_stats.t.ppf(0.975, 6)
    assert plain.interval == pytest.approx((1 - 0.5 * t, 1 + 0.5 * t))
    up, down = (replace(plain, skewness=skewness).interval for skewness in (0.3, -0.3))
    wide = 0.5 * t * (1 + 0.3 * t / 3)
    assert up == pytest.approx((1 - 0.5 * t, 1 + wide)) and down == pytest.approx((1 - wide, 1 + 0.5 * t))


@pytest.mark.parametrize("skewness", [-0.8, -0.1, -1e-17, 0.0, 1e-17, 0.1, 0.8])
@pytest.mark.parametrize("value", [-1.3, 0.9])
def test_the_interval_with_the_confidence_of_p_ends_at_zero(value: float, skewness: float) -> None:
    found = Estimate(value, 0.0, 0.95, 0.5, 6.0, skewness)
    assert found.p is not None
    ends = found.interval_at(1 - found.p)
    assert ends is not None and ends[0 if value > 0 else 1] == pytest.approx(0, abs=1e-9)


def test_the_plan_with_fewer_runs_skews_the_difference() -> None:
    """All plans share the tail; that of the baseline counts the other way, and less the more runs it has."""
    tail = [0.0, 0.1, 0.2, 0.3, 3.0]
    assert estimate(cells(arm=tail, baseline=tail + tail), PAIR).skewness > 0.1
    assert estimate(cells(arm=tail + tail, baseline=tail), PAIR).skewness < -0.1
    assert estimate(cells(arm=tail, baseline=tail), PAIR).skewness == pytest.approx(0, abs=1e-12)


def test_the_interval_is_continuous_in_the_spread_of_one_arm() -> None:
    def width(times: float) -> float:
        values = cells(arm=[times * one for one in ARM], baseline=BASELINE, other=CONTROL)
        low, high = estimate(values, PAIR).interval or (0.0, 0.0)
        return high - low

    ratios = np.geomspace(0.5, 20.0, 300)
    steps = np.diff(np.log([width(ratio) for ratio in ratios]))
    assert np.abs(steps).max() < 2 * math.log(ratios[1] / ratios[0])


def test_the_controls_runs_count_as_the_baselines() -> None:
    values = cells(arm=ARM, baseline=BASELINE, control=CONTROL)
    found = estimate(values, PAIR)
    assert found.value == pytest.approx(np.mean(ARM) - np.mean(BASELINE + CONTROL))
    assert found.old == pytest.approx(np.mean(BASELINE + CONTROL))
    parts = values.variance("arm").value / 4 + values.variance("baseline").value / 8
    assert found.error == pytest.approx(math.sqrt(parts)) and found.seeds == 4


def test_arms_whose_spread_stands_out_are_named() -> None:
    values = cells(arm=[0.0, 30.0, 60.0], quiet=[0.0, 1.0, 2.0], baseline=[0.0, 1.1, 2.0])
    assert estimate(values, PAIR).stands_out == ("arm",)
    assert estimate(values, against("quiet", "baseline")).stands_out == ()


def test_a_trend_is_the_difference_of_two_differences() -> None:
    """Blocks do not share their spread, so the two errors add up as those of independent differences."""
    values = {"few": {"arm": CONTROL, "baseline": BASELINE}, "many": {"arm": ARM, "baseline": BASELINE}}
    joined = Cells(
        {f"{arm} @ {block}": dict(enumerate(of)) for block, arms in values.items() for arm, of in arms.items()},
        blocks={f"{arm} @ {block}": block for block, arms in values.items() for arm in arms},
    )
    few, many = (against(f"arm @ {block}", f"baseline @ {block}") for block in values)
    found = estimate(joined, Contrast({**many.weights, **few.times(-1).weights}, few.weights))
    apart = [estimate(cells(**values[block]), PAIR) for block in ("many", "few")]
    assert found.value == pytest.approx(apart[0].value - apart[1].value)
    assert found.error == pytest.approx(math.hypot(*(one.error or 0.0 for one in apart)))


def test_one_run_has_no_error() -> None:
    found = estimate(cells(arm=[1.0], baseline=BASELINE), PAIR)
    assert found.error is found.freedom is None and not_measured(found)
    assert found.value == pytest.approx(1 - np.mean(BASELINE)) and found.seeds_needed(0.1) is None


def test_a_control_with_one_run_left_takes_no_verdict_from_the_arms() -> None:
    values = cells(arm=ARM, baseline=BASELINE, control=CONTROL[:1])
    found = estimate(values, PAIR)
    assert found.error is not None and found.value == pytest.approx(np.mean(ARM) - np.mean(BASELINE + CONTROL[:1]))
    sketch = cells(arm=ARM[:1], baseline=BASELINE[:1], control=CONTROL[:1])
    assert estimate(sketch, PAIR).error is None


@pytest.mark.parametrize(
    ("arm", "baseline"),
    [
        ([0.5] * 4, [0.25] * 4),
        ([0.1 + 0.2, 0.3, 0.3], [0.3] * 3),
        ([1e20, 1e20 + 2e4], [1.0, 1.0]),
        ([0.0] * 3, [0.0] * 3),
    ],
)
def test_an_error_that_rounding_alone_could_have_made_is_none(arm: list[float], baseline: list[float]) -> None:
    found = estimate(cells(arm=arm, baseline=baseline), PAIR)
    assert found.error == 0 and not_measured(found)


def test_logarithms_near_zero_are_as_wrong_as_their_ratios() -> None:
    close = {"arm": [1e-15, 3e-15, 2e-15], "baseline": [0.0] * 3}
    assert estimate(cells(LOG, **close), PAIR).error == 0
    assert estimate(cells(**close), PAIR).error != 0


def test_the_order_of_arms_and_seeds_does_not_matter() -> None:
    found = estimate(cells(arm=ARM, other=CONTROL, baseline=BASELINE), PAIR)
    turned = estimate(cells(baseline=BASELINE[::-1], other=CONTROL[1:] + CONTROL[:1], arm=ARM[::-1]), PAIR)
    assert (turned.value, turned.error, turned.freedom) == pytest.approx((found.value, found.error, found.freedom))


def test_swapping_the_arms_mirrors_the_interval() -> None:
    values = cells(arm=ARM, baseline=BASELINE)
    one, two = estimate(values, PAIR), estimate(values, against("baseline", "arm"))
    assert one.interval is not None and two.interval is not None
    assert (two.value, *two.interval) == pytest.approx((-one.value, -one.interval[1], -one.interval[0]))
    assert one.p == pytest.approx(two.p)


def test_collapsed_runs_of_the_contrasts_arms_are_named() -> None:
    values = cells(arm=ARM, other=CONTROL, baseline=BASELINE)
    marked = Cells(values.values, collapsed={"arm": [7], "other": [8]})
    assert estimate(marked, PAIR).left_out == {"arm": [7]}


def test_the_detectable_difference_is_found_at_the_stated_power() -> None:
    """Simulated: a true difference of that size is found in 80% of studies of three seeds."""
    effect = detectable_in_errors(2, 0.95) / 3**0.5
    drawn = np.random.default_rng(0).normal(effect, 1.0, (20_000, 3))
    found = scipy_stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_power_against_scipys_noncentral_t() -> None:
    for shift, freedom, confidence in ((2.0, 4, 0.95), (3.5, 9, 0.99), (1.0, 2, 0.9)):
        critical = scipy_stats.t.ppf((1 + confidence) / 2, freedom)
        oracle = scipy_stats.nct.sf(critical, freedom, shift) + scipy_stats.nct.cdf(-critical, freedom, shift)
        assert t_power(shift, freedom, confidence) == pytest.approx(oracle, abs=5e-4)


@pytest.mark.parametrize("freedom", [2.13, 3.997, 11.4])
def test_the_interpolated_detectable_difference_has_its_power(freedom: float) -> None:
    reach = detectable_in_errors(freedom, 0.99)
    assert t_power(reach, freedom, 0.99) == pytest.approx(0.8, abs=1e-3)


def test_the_verdict_same_is_given_as_often_as_it_is_planned() -> None:
    """Share of studies that say "same" of an arm without a difference, at the seeds that a margin needs."""
    draw, confidence, margin = np.random.default_rng(5), 0.99, 1.0
    error, freedom = 0.22, 12.0
    values, errors = draw.normal(0, error, 20_000), error * np.sqrt(draw.chisquare(freedom, 20_000) / freedom)
    reach = float(scipy_stats.t.ppf((1 + confidence) / 2, freedom)) * errors
    same = ((values - reach >= -margin) & (values + reach <= margin)).mean()
    assert same_power(margin / error, freedom, confidence) == pytest.approx(same, abs=0.01)


def test_a_margin_that_the_seeds_reach_needs_no_more_and_half_of_it_about_four_times_as_many() -> None:
    one = replace(estimate(cells(a=range(8), baseline=range(8)), against("a", "baseline")), error=0.1)
    assert one.seeds_for_same(1.0) == one.seeds == 8
    wide = one.seeds_for_same(0.25)
    narrow = one.seeds_for_same(0.125)
    assert wide is not None and narrow is not None and 3 < narrow / wide < 4.5
    assert one.seeds_for_same(1e-4) is None and replace(one, error=0.0).seeds_for_same(1.0) is None


def test_the_range_of_a_deviation_holds_the_truth_as_often_as_it_says() -> None:
    drawn = np.random.default_rng(2).normal(0, 2.0, (4_000, 5)).std(axis=1, ddof=1)
    held = [low <= 2.0 <= high for low, high in (deviation_range(one, 4) for one in drawn)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.012)


def test_a_difference_that_just_passes_is_corrected_for_selection_and_a_far_one_is_not() -> None:
    near, far = corrected_for_selection(2.1, 1.0, 2.0), corrected_for_selection(8.0, 1.0, 2.0)
    assert 0 < near[0] < 0.9 * 2.1 and near[1] < near[0] < near[2]
    assert far == pytest.approx((8.0, 8.0 - 1.96, 8.0 + 1.96), rel=0.01)
    value, low, high = corrected_for_selection(5.0, 1.0, 2.0)
    assert corrected_for_selection(-5.0, 1.0, 2.0) == pytest.approx((-value, -high, -low))


def test_the_corrected_difference_has_no_jump_at_the_edge() -> None:
    values = np.linspace(2.0, 6.0, 161)
    found = np.array([corrected_for_selection(value, 1.0, 2.0) for value in values])
    assert (found[:, 0] < values).all() and found[0, 0] > 0.2
    steps = np.diff(found, axis=0)
    assert (steps > 0).all() and steps.max() < 4 * (values[1] - values[0])


def test_the_seeds_that_would_decide_are_the_fewest_that_do() -> None:
    one = Estimate(0.5, 0.0, 0.95, 0.4, 8.0, seeds=4)
    needed = one.seeds_needed(0.0)
    assert needed is not None and needed > 4

    def decided(seeds: int) -> bool:
        grown = Estimate(0.5, 0.0, 0.95, 0.4 / math.sqrt(seeds / 4), 8.0 * seeds / 4, seeds=seeds)
        return grown.interval is not None and grown.interval[0] > 0

    assert decided(needed) and not decided(needed - 1)
    assert one.seeds_needed(0.501) == Estimate(-0.5, 0.0, 0.95, 0.4, 8.0, seeds=4).seeds_needed(0.501) == needed
    assert Estimate(0.0, 0.0, 0.95, 0.4, 8.0, seeds=4).seeds_needed(0.0) is None, "no thousand seeds decide"
    assert Estimate(0.0, 0.0, 0.95, 0.4, 8.0, seeds=4).seeds_needed(2.0) == 4, "within the margin already"
