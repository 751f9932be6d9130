"""Runs that fell off are found, and spreads alone are not called a fall."""

from __future__ import annotations

import numpy as np
import pytest

from tintype.study.fallen import fallen_runs, fell_at
from tintype.study.results import Curve
from tintype.study.spread import Groups

HEALTHY = [0.74, 0.73, 0.72, 0.75, 0.77, 0.74, 0.76]
FALLEN = [0.40, 0.58, 0.45]
BASELINE = [0.71, 0.73, 0.72, 0.75, 0.74, 0.73, 0.74, 0.72, 0.75, 0.73]


def groups(**values: list[float]) -> Groups:
    return Groups({name: dict(enumerate(of)) for name, of in values.items()}, {})


def test_three_of_ten_runs_fell() -> None:
    one = groups(arm=HEALTHY + FALLEN, baseline=BASELINE)
    assert fallen_runs(one, "arm", "higher") == [7, 9, 8] and fallen_runs(one, "baseline", "higher") == []
    turned = groups(arm=[-value for value in HEALTHY + FALLEN], baseline=[-value for value in BASELINE])
    assert fallen_runs(turned, "arm", "lower") == [7, 9, 8] and fallen_runs(turned, "arm", "higher") == []


LONG_TAIL = [0.17, 0.21, 0.36, 0.44, 0.44, 0.49, 0.52, 0.52, 0.53, 0.54]
LONG_TAIL += [0.55, 0.56, 0.57, 0.58, 0.59, 0.6, 0.61, 0.62, 0.63, 0.67]
"""Scene accuracies of `muon:lr=3e-3`: two runs that collapsed, at the end of a tail without a wide gap."""


def test_of_many_runs_those_far_below_the_others_fell_without_a_gap() -> None:
    one = groups(arm=LONG_TAIL, baseline=BASELINE)
    assert fallen_runs(one, "arm", "higher") == [0, 1] and fallen_runs(one, "baseline", "higher") == []
    few = groups(arm=LONG_TAIL[:1] + LONG_TAIL[2:9], baseline=BASELINE)
    assert fallen_runs(few, "arm", "higher") == []


@pytest.mark.parametrize("seeds", [9, 16])
def test_a_long_tail_that_all_arms_have_is_seldom_called_a_fall(seeds: int) -> None:
    """At most 2% of studies, and three standard errors; held against the arm's own spread alone it was 13 to 30%."""
    draw, wrong = np.random.default_rng(seeds), 0
    for _ in range(150):
        one = groups(**{str(arm): draw.gumbel(size=seeds).tolist() for arm in range(6)})
        wrong += any(fallen_runs(one, arm, "lower") for arm in one.values)
    assert wrong <= 150 * 0.02 + 3 * (150 * 0.02) ** 0.5


def test_what_the_better_runs_own_spread_explains_is_no_fall() -> None:
    """Nor where the other arms' spread is far smaller."""
    wide = [-4.0, -1.5, -1.2, -0.8, -0.3, 0.0, 0.4, 0.9, 1.2, 1.5]
    narrow = [0.03 * value for value in wide[1:]]
    assert fallen_runs(groups(arm=wide, baseline=narrow), "arm", "higher") == []
    assert fallen_runs(groups(arm=[-9.0, *wide[1:]], baseline=narrow), "arm", "higher") == [0]


@pytest.mark.parametrize("seeds", [5, 10])
def test_falls_of_arm_and_baseline_do_not_hide_each_other(seeds: int) -> None:
    draw, found = np.random.default_rng(seeds), 0
    for _ in range(100):
        both = {
            name: (100 + draw.normal(size=seeds) - 20 * (np.arange(seeds) == 0)).tolist()
            for name in ("arm", "baseline")
        }
        one = groups(**both)
        found += all(fallen_runs(one, name, "higher") == [0] for name in both)
    assert found >= 95


@pytest.mark.parametrize(
    "arm", [[1.0, 1.0, 1.0 - 1e-15], [0.1 + 0.2, 0.3, 0.3], [1.0, 1.0, 1.0, 0.996], [0.98, 1.0, 0.97, 1.0]]
)
def test_what_is_within_rounding_or_the_margin_is_no_fall(arm: list[float]) -> None:
    """Though the other arms have no spread at all."""
    for turned in (arm, [-value for value in arm]):
        one = groups(arm=turned, baseline=[turned[0]] * 4, other=[turned[0]] * 4)
        assert fallen_runs(one, "arm", "higher" if turned is arm else "lower") == []
    assert fallen_runs(groups(arm=[1.0, 1.0, 1.0, 0.2], baseline=[1.0] * 4), "arm", "higher") == [3]
    logarithms = groups(arm=[0.0, 0.0, 0.0, -0.02], baseline=[0.0] * 4)
    assert fallen_runs(logarithms, "arm", "higher", log=True) == []


def test_an_arm_that_is_low_as_a_whole_did_not_fall() -> None:
    one = groups(arm=[0.74, *FALLEN, 0.43], baseline=BASELINE)
    assert fallen_runs(one, "arm", "higher") == []


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_normal_spreads_are_seldom_called_a_fall(seeds: int) -> None:
    """At most 1% of studies of five arms on one metric, and the three standard errors of 300 of them."""
    draw = np.random.default_rng(seeds)
    wrong = 0
    for _ in range(300):
        one = groups(**{str(arm): draw.normal(size=seeds).tolist() for arm in range(6)})
        wrong += any(fallen_runs(one, arm, "higher") for arm in one.values)
    assert wrong <= 300 * 0.01 + 3 * (300 * 0.01) ** 0.5


@pytest.mark.parametrize("seeds", [3, 5])
def test_an_arm_with_a_larger_spread_is_seldom_called_a_fall(seeds: int) -> None:
    """Three times the spread of the other arms: up to 5.5% where the gap is held against the others' spread alone."""
    draw = np.random.default_rng(seeds)
    wrong = 0
    for _ in range(600):
        one = groups(**{str(arm): (draw.normal(size=seeds) * (3 if arm == 0 else 1)).tolist() for arm in range(6)})
        wrong += bool(fallen_runs(one, "0", "higher"))
    assert wrong <= 600 * 0.01 + 3 * (600 * 0.01) ** 0.5


@pytest.mark.parametrize(("seeds", "fallen"), [(3, 1), (5, 1), (5, 2), (10, 3)])
def test_a_fall_of_twenty_deviations_is_found(seeds: int, fallen: int) -> None:
    """As far as `muon:lr=3e-3` fell in three of ten runs."""
    draw = np.random.default_rng(seeds)
    found = 0
    for _ in range(200):
        values = {str(arm): draw.normal(size=seeds) for arm in range(6)}
        values["0"][:fallen] -= 20
        found += set(fallen_runs(groups(**{k: v.tolist() for k, v in values.items()}), "0", "higher")) == {
            *range(fallen)
        }
    assert found >= 200 * 0.95


def test_two_runs_do_not_say_which_is_usual() -> None:
    assert fallen_runs(groups(arm=[0.7, 0.1], baseline=BASELINE), "arm", "higher") == []


def test_the_step_from_which_a_run_stays_above_the_others() -> None:
    def curve(*values: float) -> Curve:
        return Curve(step=[100, 200, 300, 400], value=list(values))

    others = [curve(1.0, 0.8, 0.6, 0.5), curve(1.1, 0.7, 0.65, 0.5)]
    assert fell_at(curve(1.2, 0.7, 0.9, 0.9), others) == 300
    assert fell_at(curve(1.2, 0.9, 0.9, 0.9), others) == 100
    assert fell_at(curve(1.2, 0.9, 0.9, 0.4), others) is None
    assert fell_at(Curve(step=[50, 150, 300, 450], value=[9.0] * 4), others) == 300, "the only step that others have"
    assert fell_at(Curve(step=[50, 150], value=[9.0] * 2), others) is None, "no step is common"
