"""The spread over seeds that arms share: by hand, and the planned error against a study with that spread."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy import special
from scipy import stats as scipy_stats

from tests.unit.study.stats.named_cells import cells
from tintype.study.stats import spread
from tintype.study.stats.contrast import against
from tintype.study.stats.estimate import estimate
from tintype.study.stats.spread import (
    LEAST_FREEDOM,
    MOST_FREEDOM,
    Variance,
    alike_freedom,
    planned_error,
    pool,
    spread_of,
    total_variance,
    variance,
)

ONES = [-1.0, 0.0, 1.0]
MEDIAN = float(scipy_stats.chi2.median(2)) / 2
"""Median of a variance of three runs, in units of the true one."""


def plans(**deviations: float) -> dict[str, list[list[float]]]:
    """Return three runs of each plan with its deviation."""
    return {name: [[deviation * one for one in ONES]] for name, deviation in deviations.items()}


def test_each_plan_averages_its_own_variance_with_the_median() -> None:
    found = spread_of({**plans(a=1.0, b=1.5, baseline=0.5), "one run": [[7.0]]}).variances
    centre = 1 / MEDIAN
    assert found["a"].value == pytest.approx((2 * centre + 2 * 1) / 4) and found["a"].freedom == 3
    weight = centre / 2.25
    assert found["b"].value == pytest.approx((2 * weight * centre + 2 * 2.25) / (2 * weight + 2))
    assert (found["b"].weight, found["b"].freedom) == pytest.approx((weight, 2 + weight))
    assert found["baseline"].value == pytest.approx((2 * centre + 2 * 0.25) / 4)
    assert found["one run"].value == pytest.approx(centre) and found["one run"].freedom == 1
    assert spread_of({"one run": [[1.0]]}).variances == {}


def test_the_centre_counts_more_where_spreads_are_alike_or_the_baseline_has_stored_runs() -> None:
    sets, centre = plans(a=1.0, b=1.0, c=1.0), 1 / MEDIAN
    for alike, stored, weight, freedom in ((1.0, 0, 2, 1), (6.0, 0, 6, 6), (1.0, 15, 3, 2.5), (1.0, 90, 4, 4)):
        one = spread_of(sets, alike, stored).variances["a"]
        assert (one.value, one.freedom) == pytest.approx(((weight * centre + 2) / (weight + 2), 2 + freedom))


def test_a_plan_that_stands_out_does_not_widen_the_others() -> None:
    usual, wild = (spread_of(plans(a=1.0, b=1.0, baseline=1.0, wide=wide)).variances for wide in (1.0, 1e4))
    assert wild["a"].value == pytest.approx(usual["a"].value) and wild["a"].freedom == usual["a"].freedom
    assert wild["wide"].value == pytest.approx(1e8) and wild["wide"].freedom == pytest.approx(2, abs=1e-6)
    assert wild["wide"].stands_out and not wild["a"].stands_out


def test_the_weight_of_the_centre_falls_smoothly_with_the_spread_of_a_plan() -> None:
    """No cliff: a hundredth more spread never moves the variance by more than a few hundredths."""
    ratios = np.geomspace(0.3, 30.0, 463)
    found = [spread_of(plans(a=1.0, b=1.0, baseline=1.0, arm=ratio)).variances["arm"] for ratio in ratios]
    weights, values = [one.weight for one in found], np.array([one.value for one in found])
    assert weights == sorted(weights, reverse=True) and weights[0] == 1 and weights[-1] < 0.01
    steps = np.diff(np.log(values))
    assert (steps >= 0).all() and steps.max() < 3.5 * math.log(ratios[1] / ratios[0])
    assert [one.stands_out for one in found] == [weight < 0.16 for weight in weights]


def test_spreads_that_are_alike_give_more_freedom_within_bounds() -> None:
    def freedom(unlike: float, count: int = 12, effective: float = 4.0) -> float:
        return alike_freedom([{str(i): Variance(unlike ** (i % 3), 4) for i in range(count)}] * 4, effective)

    found = [freedom(unlike) for unlike in (1.0, 3.0, 6.0, 10.0, 100.0)]
    assert found == sorted(found, reverse=True) and found[0] == MOST_FREEDOM and found[-1] == LEAST_FREEDOM
    assert LEAST_FREEDOM < found[2] < MOST_FREEDOM
    assert freedom(1.0, count=2, effective=1.0) < MOST_FREEDOM, "two plans tell little"
    assert alike_freedom([], 1.0) == alike_freedom([{"a": Variance(1.0, 4)}], 1.0) == LEAST_FREEDOM


def test_the_freedom_solves_its_equation() -> None:
    """By hand for two plans of five runs in one metric: Q is log(ratio)² / 2 ψ'(2), and two errors of it are √8."""
    noise = float(special.polygamma(1, 2.0))
    for ratio in (1.0, 2.0, 4.0):
        found = alike_freedom([{"a": Variance(1.0, 4), "b": Variance(ratio, 4)}], 1.0)
        excess = (math.log(ratio) ** 2 / 2 / noise + math.sqrt(8) - 1) * noise
        assert special.polygamma(1, found / 2) == pytest.approx(excess)


def test_the_skewness_is_that_of_the_tail() -> None:
    tail = [0.0, 0.1, 0.2, 0.3, 3.0]
    up, down = spread_of({"a": [tail], "b": [tail]}), spread_of({"a": [[-one for one in tail]] * 2})
    assert up.skewness > 1 and down.skewness == pytest.approx(-up.skewness)
    assert spread_of(plans(a=1.0, b=2.0)).skewness == pytest.approx(0, abs=1e-12)
    assert spread_of({"a": [tail], "b": [tail]}, stored=30).skewness < up.skewness


def test_variances_are_pooled_by_their_degrees_of_freedom() -> None:
    assert pool([Variance(1.0, 3), Variance(5.0, 1)]) == Variance(2.0, 4)
    assert pool([]) == Variance(0.0, 0.0)


def test_a_sum_of_variances_has_satterthwaites_degrees_of_freedom() -> None:
    """Degrees of freedom are those of Welch's test, and at most as many as all runs have."""
    parts = [Variance(2.0, 3), Variance(1.0, 5)]
    found = total_variance(parts, 100)
    assert (found.value, found.freedom) == pytest.approx((3.0, 9 / (4 / 3 + 1 / 5)))
    assert total_variance([Variance(1.0, 4)] * 2, 100).freedom == pytest.approx(8)
    assert total_variance([Variance(1.0, 4)] * 2, 6).freedom == 6
    assert total_variance([Variance(0.0, 4)] * 2, 6) == Variance(0.0, 6)


def test_the_variance_is_unbiased_and_does_not_cancel() -> None:
    for values in ([1.0, 2.5, 3.1, 4.0], [1e8 + 1, 1e8 + 2, 1e8 + 4], [0.3, 0.3]):
        assert variance(values) == pytest.approx(statistics.variance(values), rel=1e-12)
    assert variance([1e200, -1e200]) == float("inf"), "no exception where a square overflows"


@pytest.mark.parametrize("control", [True, False])
def test_the_planned_error_is_that_of_a_study_with_this_spread(control: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the centre is the true variance too; a median of variances that are all equal is above it."""
    monkeypatch.setattr(spread, "_centre", lambda known: 1.0)
    measured = cells(**dict.fromkeys(["baseline", *["control"] * control, "a", "b"], ONES))
    found, planned = estimate(measured, against("a", "baseline")), planned_error(3, 2, control)
    assert (found.error, found.freedom) == pytest.approx((planned.value**0.5, planned.freedom))
