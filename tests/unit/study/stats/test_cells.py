"""Cells: scales there and back, and the variances of plans within their blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.study.stats.named_cells import cells
from tintype.study.stats.cells import LOG, RATIO, Cells, Scale, raw_scale, rounding_of

ARM, BASELINE, CONTROL = [1.0, 2.5, 3.1, 4.0], [0.7, 1.9, 3.3, 3.0], [0.9, 2.2, 2.6, 3.5]


@pytest.mark.parametrize("scale", [Scale(), LOG, Scale("raw", 2.0**70)])
def test_a_value_and_a_difference_come_back_from_the_scale(scale: Scale) -> None:
    old, new = scale.place(4.0), scale.place(5.0)
    assert (scale.value(old), scale.value(new)) == pytest.approx((4.0, 5.0))
    assert scale.difference(old, new - old) == pytest.approx(1.0)
    assert scale.change(old, 1.0) == pytest.approx(new - old)


def test_ratios_are_reported_as_logarithms() -> None:
    assert RATIO.place(2.0) == math.log(2.0) and RATIO.value(0.3) == 0.3
    assert RATIO.difference(0.1, 0.2) == RATIO.change(0.1, 0.2) == 0.2


def test_an_interval_beyond_the_range_of_floats_stays_a_number() -> None:
    assert math.isfinite(LOG.difference(math.log(4.0), 1e6))


@pytest.mark.parametrize("size", [5e-324, 1e-300, 0.3, 1.0, 7.0, 1.7e308])
def test_the_unit_of_raw_values_is_a_power_of_two_that_changes_no_digit(size: float) -> None:
    scale = raw_scale([-size, size / 4, 0.0])
    assert math.frexp(scale.unit)[0] == 0.5 and 1 <= abs(scale.place(size)) < 2
    assert scale.value(scale.place(size)) == size


def test_without_values_above_zero_the_unit_is_one() -> None:
    assert raw_scale([]) == raw_scale([0.0, 0.0]) == Scale()


def test_the_control_shares_the_plan_and_the_spread_of_the_baseline() -> None:
    """Its variance is around its own mean: a shift between the two is no spread."""
    found = cells(arm=ARM, baseline=BASELINE, control=[100 + value for value in CONTROL])
    own = found.own[""]["baseline"]
    assert own.freedom == 6 and own.value == pytest.approx((np.var(BASELINE, ddof=1) + np.var(CONTROL, ddof=1)) / 2)
    assert set(found.own[""]) == set(found.variances) == {"arm", "baseline"}
    assert found.mean_of_plan("baseline") == pytest.approx(50 + np.mean(BASELINE + CONTROL))
    assert found.mean("baseline") == pytest.approx(np.mean(BASELINE))


def test_spreads_are_shared_within_a_block_alone() -> None:
    values = {"a @ few": ARM, "b @ few": BASELINE, "a @ many": CONTROL, "b @ many": [50.0, 70.0]}
    one = Cells({name: dict(enumerate(of)) for name, of in values.items()}, blocks={name: name[4:] for name in values})
    apart = [cells(**{name: of for name, of in values.items() if name.endswith(end)}) for end in ("few", "many")]
    assert one.variances == {**apart[0].variances, **apart[1].variances}


def test_one_run_has_no_variance_of_its_own_and_takes_the_shared_one() -> None:
    assert set(cells(a=[1.0], b=ARM).own[""]) == {"b"}
    assert cells(a=[1.0], b=ARM).variances["a"].value == pytest.approx(np.var(ARM, ddof=1))
    assert cells(a=[1.0], b=[2.0]).variances == {}


def test_seeds_are_left_out_by_arm() -> None:
    found = cells(a=[1.0, 2.0], b=[1.0, 2.0]).without({"a": [0], "c": [1]})
    assert found.values == {"a": {1: 2.0}, "b": {0: 1.0, 1: 2.0}}
    assert (found.seeds("a"), found.seeds("b"), found.seeds("c")) == (1, 2, 0)


def test_rounding_grows_with_the_values_and_for_logarithms_is_that_of_the_ratio() -> None:
    assert rounding_of([-3.0, 2.0]) == 3e-12 and rounding_of([1e-9], 1.0) == 1e-12 and rounding_of([]) == 0
    tiny = {"a": [1e-20, 2e-20], "b": [1e-20, 1e-20]}
    assert cells(**tiny).rounding(["a", "b"]) == pytest.approx(2e-32)
    assert cells(LOG, **tiny).rounding(["a", "b"]) == 1e-12
