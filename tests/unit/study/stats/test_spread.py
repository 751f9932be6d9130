"""The spread over seeds that arms share: by hand, and the planned error against a study with that spread."""

from __future__ import annotations

import statistics

import pytest

from tests.unit.study.stats.named_cells import cells
from tintype.study.stats.contrast import against
from tintype.study.stats.estimate import estimate
from tintype.study.stats.spread import Variance, planned_error, pool, shared_variances, total_variance, variance


def test_each_plan_averages_its_own_variance_with_the_shared_one() -> None:
    own = {"a": Variance(1.0, 2), "b": Variance(2.25, 2), "baseline": Variance(0.25, 2)}
    found = shared_variances(own, [*own, "one run"])
    shared = (1 + 2.25 + 0.25) / 3
    assert found["a"].value == pytest.approx((2 * shared + 2 * 1) / 4) and found["a"].freedom == 4
    assert found["b"].value == pytest.approx((2 * shared + 2 * 2.25) / 4)
    assert found["one run"].value == pytest.approx(shared) and found["one run"].freedom == 2
    assert shared_variances({}, ["one run"]) == {}


def test_a_plan_whose_deviation_stands_out_keeps_its_own() -> None:
    own = {"wide": Variance(900.0, 2), "quiet": Variance(1.0, 2), "baseline": Variance(1.01, 2)}
    found = shared_variances(own, own)
    assert found["wide"] == Variance(900.0, 2, stands_out=True)
    assert not found["quiet"].stands_out and found["quiet"].freedom == 4
    limit = 2.5**2
    assert not shared_variances({"a": Variance(limit, 2), "b": Variance(1.0, 2)}, ["a"])["a"].stands_out


def test_variances_are_pooled_by_their_degrees_of_freedom() -> None:
    assert pool([Variance(1.0, 3), Variance(5.0, 1)]) == Variance(2.0, 4)
    assert pool([]) == Variance(0.0, 0.0)


def test_a_sum_of_variances_has_satterthwaites_degrees_of_freedom() -> None:
    """Those of Welch's test; equal parts have the sum of theirs, and never more than all runs have."""
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
def test_the_planned_error_is_that_of_a_study_with_this_spread(control: bool) -> None:
    ones = [-1.0, 0.0, 1.0]
    arms = dict.fromkeys(["baseline", *["control"] * control, "a", "b"], ones)
    measured = cells(**arms)
    found, planned = estimate(measured, against("a", "baseline").over_plans(measured)), planned_error(3, 2, control)
    assert (found.error, found.freedom) == pytest.approx((planned.value**0.5, planned.freedom))
