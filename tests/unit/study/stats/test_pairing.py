"""Pairs of runs with one seed: used where they pay, and never by the difference of means."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.study.stats.named_cells import cells
from tintype.study.stats.cells import Cells
from tintype.study.stats.contrast import against
from tintype.study.stats.estimate import Estimate, estimate
from tintype.study.stats.pairing import Correlation, correlations, estimate_arm

DRAW = np.random.default_rng(3)
LUCK, OTHER, NOISE = DRAW.normal(size=(3, 8))
PLAIN = against("arm", "baseline")


def made(arm: np.ndarray, **others: np.ndarray) -> Cells:
    values = {"arm": arm, "baseline": LUCK, **others}
    return cells(**{name: of.tolist() for name, of in values.items()})


def found(values: Cells) -> Estimate:
    return estimate_arm(values, "arm", "baseline", 0.95, correlations({"m": values}, "arm", "baseline").get("m"))


def width(one: Estimate) -> float:
    assert one.interval is not None
    return one.interval[1] - one.interval[0]


def test_runs_that_keep_the_luck_of_their_seed_have_a_narrower_interval() -> None:
    values = made(2 + LUCK + 0.1 * NOISE)
    paired, plain = found(values), estimate(values, PLAIN)
    assert paired.correlation > 0.9 and width(paired) < 0.6 * width(plain)
    assert paired.value == pytest.approx(plain.value), "without further runs of the baseline"


def test_runs_without_a_shared_luck_have_the_plain_interval() -> None:
    for arm in (OTHER, -LUCK, 0.5 * LUCK + OTHER):
        values = made(arm)
        assert found(values) == estimate(values, PLAIN) and found(values).correlation == 0


def test_pairs_are_not_used_where_the_spreads_differ() -> None:
    values = made(3 * LUCK)
    assert correlations({"m": values}, "arm", "baseline")["m"].shrunk > 0.9
    assert found(values) == estimate(values, PLAIN)


def test_pairs_need_three_seeds_and_every_run_of_the_arm() -> None:
    values = made(LUCK + 0.1 * NOISE)
    two = cells(arm=[1.0, 2.0], baseline=[1.0, 2.0, 3.0])
    assert correlations({"m": two}, "arm", "baseline") == {}
    unpaired = replace(values, values={**values.values, "arm": dict(enumerate(values.values["arm"].values(), 3))})
    assert found(unpaired) == estimate(unpaired, PLAIN)


def test_the_difference_of_means_does_not_decide() -> None:
    one, far = found(made(LUCK + 0.1 * NOISE)), found(made(100 + LUCK + 0.1 * NOISE))
    assert one.correlation == pytest.approx(far.correlation) and one.error == pytest.approx(far.error)


def test_the_shrunk_correlation_by_hand() -> None:
    assert Correlation(0.8, 7.0, 8).shrunk == pytest.approx(0.8**3 / (0.8**2 + 0.36**2 / 7))
    assert Correlation(-0.5, 7.0, 8).shrunk == Correlation(0.0, 7.0, 8).shrunk == 0
    assert Correlation(0.8, 7.0, 8).shrunk > Correlation(0.8, 2.0, 3).shrunk


def test_the_controls_runs_have_less_weight_the_closer_the_pairs_are() -> None:
    """By hand: the weight of the 8 runs without a partner is one half, times what the correlation leaves."""
    control = 5 + OTHER
    values = made(LUCK + 0.1 * NOISE, control=control)
    one = found(values)
    new, old = (math.sqrt(values.variance(name).value) for name in ("arm", "baseline"))
    weight = max(0.5 * (1 - one.correlation * new / old), 0.0)
    assert one.correlation > 0 and one.old == pytest.approx((1 - weight) * LUCK.mean() + weight * control.mean())


def test_other_metrics_speak_for_a_correlation() -> None:
    values, other = made(LUCK + 0.5 * NOISE), cells(arm=(OTHER + 0.1 * NOISE).tolist(), baseline=OTHER.tolist())
    alone = correlations({"m": values}, "arm", "baseline")["m"]
    both = correlations({"m": values, "n": other}, "arm", "baseline")["m"]
    assert both.freedom > alone.freedom == 7 and both.value > alone.value
