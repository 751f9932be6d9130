"""Cells: scales there and back, and the variances of plans within their blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tests.unit.study.stats.named_cells import cells
from tintype.study.stats.cells import LOG, RATIO, Cells, Scale, effective_count, rounding_of, scale_for, with_alike
from tintype.study.stats.spread import LEAST_FREEDOM, MOST_FREEDOM

ARM, BASELINE, CONTROL = [1.0, 2.5, 3.1, 4.0], [0.7, 1.9, 3.3, 3.0], [0.9, 2.2, 2.6, 3.5]


SCALES = [Scale(), LOG, Scale("raw", 2.0**70), Scale("asinh", 0.3), Scale("logit", 0.0005)]


@pytest.mark.parametrize("scale", SCALES)
def test_a_value_and_a_difference_come_back_from_the_scale(scale: Scale) -> None:
    for before, after in ((0.4, 0.5), (0.9, 0.02), (4.0, 5.0)):
        old, new = scale.place(before), scale.place(after)
        assert (scale.value(old), scale.value(new)) == pytest.approx((before, after))
        assert scale.difference(old, new - old) == pytest.approx(after - before)
        assert scale.change(old, after - before) == pytest.approx(new - old)
        assert scale.size(old, old - new) >= abs(after - before) * (1 - 1e-12)


@pytest.mark.parametrize("value", [-0.2, -1e-4, 0.0, 0.25, 1.0, 1.001, 1.3])
def test_a_share_that_chance_was_taken_off_comes_back_from_beyond_its_bounds(value: float) -> None:
    scale = Scale("logit", 0.02)
    assert scale.value(scale.place(value)) == pytest.approx(value, abs=1e-12)


def test_the_logit_is_that_of_half_an_image_more_and_goes_on_as_its_tangent() -> None:
    scale = Scale("logit", 0.02)
    assert scale.place(0.3) == pytest.approx(math.log(0.32 / 0.72)) and scale.place(0.5) == 0
    inside, outside = (scale.place(step) - scale.place(0.0) for step in (1e-7, -1e-7))
    assert inside == pytest.approx(-outside, rel=1e-4)
    assert scale.place(-0.2) - scale.place(-0.1) == pytest.approx(scale.place(-0.1) - scale.place(0.0))


def test_asinh_is_linear_near_zero_and_logarithmic_far_from_it() -> None:
    scale = Scale("asinh", 2.0)
    assert scale.place(0.002) == pytest.approx(0.001, rel=1e-6) and scale.place(-3.0) == -scale.place(3.0)
    assert scale.place(2e9) - scale.place(1e9) == pytest.approx(math.log(2))


def test_the_scale_of_a_metric_follows_its_values() -> None:
    assert scale_for("log", [[1.0, 2.0], [3.0]]) == LOG and scale_for("log", [[1.0, 0.0]]).kind == "raw"
    assert scale_for("logit", [[0.3], [-0.1]], 0.01) == Scale("logit", 0.01)
    deviations = [[0.0, 2.0], [1.0, 1.0], [0.0, 6.0], [9.0]]
    asinh = scale_for("asinh", deviations)
    assert asinh.kind == "asinh" and asinh.unit == pytest.approx(4 / math.sqrt(2))
    assert scale_for("asinh", [[1.0], [2.0]]).kind == "raw", "no spread to measure by"


def test_ratios_are_reported_as_logarithms() -> None:
    assert RATIO.place(2.0) == math.log(2.0) and RATIO.value(0.3) == 0.3
    assert RATIO.difference(0.1, 0.2) == RATIO.change(0.1, 0.2) == 0.2


def test_an_interval_beyond_the_range_of_floats_stays_a_number() -> None:
    for scale in (LOG, Scale("asinh"), Scale("logit", 0.01)):
        assert math.isfinite(scale.difference(scale.place(4.0), 1e6))


@pytest.mark.parametrize("size", [5e-324, 1e-300, 0.3, 1.0, 7.0, 1.7e308])
def test_the_unit_of_raw_values_is_a_power_of_two_that_changes_no_digit(size: float) -> None:
    scale = scale_for("raw", [[-size, size / 4], [0.0]])
    assert math.frexp(scale.unit)[0] == 0.5 and 1 <= abs(scale.place(size)) < 2
    assert scale.value(scale.place(size)) == size


def test_without_values_above_zero_the_unit_is_one() -> None:
    assert scale_for("raw", []) == scale_for("raw", [[0.0, 0.0]]) == Scale()


def test_the_control_shares_the_plan_and_the_spread_of_the_baseline() -> None:
    """Its variance is around its own mean: a shift between the two is no spread."""
    found = cells(arm=ARM, baseline=BASELINE, control=[100 + value for value in CONTROL])
    own = found.own("")["baseline"]
    assert own.freedom == 6 and own.value == pytest.approx((np.var(BASELINE, ddof=1) + np.var(CONTROL, ddof=1)) / 2)
    assert set(found.own("")) == set(found.spreads[""].variances) == {"arm", "baseline"}
    assert found.variance("control") == found.variance("baseline")
    assert found.mean_of_plan("baseline") == pytest.approx(50 + np.mean(BASELINE + CONTROL))
    assert found.mean("baseline") == pytest.approx(np.mean(BASELINE))


def test_spreads_are_shared_within_a_block_alone() -> None:
    values = {"a @ few": ARM, "b @ few": BASELINE, "a @ many": CONTROL, "b @ many": [50.0, 70.0]}
    one = Cells({name: dict(enumerate(of)) for name, of in values.items()}, blocks={name: name[4:] for name in values})
    apart = [cells(**{name: of for name, of in values.items() if name.endswith(end)}) for end in ("few", "many")]
    for alone, block in zip(apart, ("few", "many"), strict=True):
        assert one.spreads[block] == alone.spreads[""]


def test_one_run_has_no_variance_of_its_own_and_takes_the_shared_one() -> None:
    found = cells(a=[1.0], b=ARM)
    assert set(found.own("")) == {"b"} and found.variance("a").freedom == LEAST_FREEDOM
    median = scipy_stats.chi2.median(3) / 3
    assert found.variance("a").value == pytest.approx(np.var(ARM, ddof=1) / median)
    assert cells(a=[1.0], b=[2.0]).spreads[""].variances == {}


def test_metrics_that_repeat_each_other_count_as_one() -> None:
    draw = np.random.default_rng(0)
    one, other = (cells(a=draw.normal(size=200).tolist(), b=draw.normal(size=200).tolist()) for _ in range(2))
    assert effective_count([one]) == pytest.approx(1) and effective_count([one, one]) == pytest.approx(1)
    assert effective_count([one, other]) == pytest.approx(2, rel=0.05)
    assert effective_count([one, cells(c=[1.0, 2.0])]) == 1, "no run is shared"


def test_all_metrics_say_together_how_alike_the_spreads_are() -> None:
    alike = {"m": cells(**{str(arm): [value + arm for value in ARM] for arm in range(30)})}
    unlike = {"m": cells(**{str(arm): [value * 2.0**arm for value in ARM] for arm in range(30)})}
    assert with_alike(alike)["m"].alike == MOST_FREEDOM and with_alike(unlike)["m"].alike == LEAST_FREEDOM


def test_seeds_are_left_out_by_arm() -> None:
    found = cells(a=[1.0, 2.0], b=[1.0, 2.0]).without({"a": [0], "c": [1]})
    assert found.values == {"a": {1: 2.0}, "b": {0: 1.0, 1: 2.0}}
    assert (found.seeds("a"), found.seeds("b"), found.seeds("c")) == (1, 2, 0)


def test_rounding_grows_with_the_values_and_for_logarithms_is_that_of_the_ratio() -> None:
    assert rounding_of([-3.0, 2.0]) == 3e-12 and rounding_of([1e-9], 1.0) == 1e-12 and rounding_of([]) == 0
    tiny = {"a": [1e-20, 2e-20], "b": [1e-20, 1e-20]}
    assert cells(**tiny).rounding(["a", "b"]) == pytest.approx(2e-32)
    assert cells(LOG, **tiny).rounding(["a", "b"]) == 1e-12
