"""Collapsed runs are found, and a wide spread alone is not called a collapse."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tests.unit.study.stats.named_cells import cells
from tintype.study.stats import collapse
from tintype.study.stats.cells import LOG
from tintype.study.stats.collapse import collapse_p, collapsed_runs

HEALTHY = [0.74, 0.73, 0.72, 0.75, 0.77, 0.74, 0.76]
COLLAPSED = [0.40, 0.58, 0.45]
BASELINE = [0.71, 0.73, 0.72, 0.75, 0.74, 0.73, 0.74, 0.72, 0.75, 0.73]


def test_three_of_ten_runs_collapsed() -> None:
    one = cells(arm=HEALTHY + COLLAPSED, baseline=BASELINE)
    assert collapsed_runs(one, "arm", "higher") == [7, 9, 8] and collapsed_runs(one, "baseline", "higher") == []
    turned = cells(arm=[-value for value in HEALTHY + COLLAPSED], baseline=[-value for value in BASELINE])
    assert collapsed_runs(turned, "arm", "lower") == [7, 9, 8] and collapsed_runs(turned, "arm", "higher") == []


LONG_TAIL = [0.17, 0.21, 0.36, 0.44, 0.44, 0.49, 0.52, 0.52, 0.53, 0.54]
LONG_TAIL += [0.55, 0.56, 0.57, 0.58, 0.59, 0.6, 0.61, 0.62, 0.63, 0.67]
"""Scene accuracies of `muon:lr=3e-3`: two runs that collapsed, at the end of a tail without a wide gap."""


def test_of_many_runs_those_far_below_the_others_collapsed_without_a_gap() -> None:
    one = cells(arm=LONG_TAIL, baseline=BASELINE)
    assert collapsed_runs(one, "arm", "higher") == [0, 1] and collapsed_runs(one, "baseline", "higher") == []
    few = cells(arm=LONG_TAIL[:1] + LONG_TAIL[2:9], baseline=BASELINE)
    assert collapsed_runs(few, "arm", "higher") == []


@pytest.mark.parametrize("seeds", [9, 16])
def test_a_long_tail_that_all_arms_have_is_seldom_called_a_collapse(seeds: int) -> None:
    """At most 2% of studies, and three standard errors; held against the arm's own spread alone it was 13 to 30%."""
    draw, wrong = np.random.default_rng(seeds), 0
    for _ in range(150):
        one = cells(**{str(arm): draw.gumbel(size=seeds).tolist() for arm in range(6)})
        wrong += any(collapsed_runs(one, arm, "lower") for arm in one.values)
    assert wrong <= 150 * 0.02 + 3 * (150 * 0.02) ** 0.5


def test_low_runs_of_skewed_metrics_are_called_a_collapse_less_often_than_by_a_symmetric_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With nine runs, many studies have one by a symmetric limit. The tail that all arms have explains most."""
    draw = np.random.default_rng(1)
    studies = [cells(**{str(arm): np.exp(0.75 * draw.normal(size=8)).tolist() for arm in range(6)}) for _ in range(200)]

    def share() -> float:
        return float(np.mean([any(collapsed_runs(one, arm, "lower") for arm in one.values) for one in studies]))

    ours = share()
    monkeypatch.setattr(collapse, "TAIL", 0.0)
    assert share() > 0.05 and ours < 0.6 * share()


def test_what_the_better_runs_own_spread_explains_is_not_a_collapse() -> None:
    """Nor where the other arms' spread is far smaller."""
    wide = [-4.0, -1.5, -1.2, -0.8, -0.3, 0.0, 0.4, 0.9, 1.2, 1.5]
    narrow = [0.03 * value for value in wide[1:]]
    assert collapsed_runs(cells(arm=wide, baseline=narrow), "arm", "higher") == []
    assert collapsed_runs(cells(arm=[-9.0, *wide[1:]], baseline=narrow), "arm", "higher") == [0]


@pytest.mark.parametrize("seeds", [5, 10])
def test_collapses_of_arm_and_baseline_do_not_hide_each_other(seeds: int) -> None:
    draw, found = np.random.default_rng(seeds), 0
    for _ in range(100):
        both = {
            name: (100 + draw.normal(size=seeds) - 40 * (np.arange(seeds) == 0)).tolist()
            for name in ("arm", "baseline")
        }
        one = cells(**both)
        found += all(collapsed_runs(one, name, "higher") == [0] for name in both)
    assert found >= 95


@pytest.mark.parametrize(
    "arm", [[1.0, 1.0, 1.0 - 1e-15], [0.1 + 0.2, 0.3, 0.3], [1.0, 1.0, 1.0, 0.996], [0.98, 1.0, 0.97, 1.0]]
)
def test_a_gap_within_rounding_or_the_margin_is_not_a_collapse(arm: list[float]) -> None:
    """Though the other arms have no spread at all."""
    for turned in (arm, [-value for value in arm]):
        one = cells(arm=turned, baseline=[turned[0]] * 4, other=[turned[0]] * 4)
        assert collapsed_runs(one, "arm", "higher" if turned is arm else "lower") == []
    assert collapsed_runs(cells(arm=[1.0, 1.0, 1.0, 0.2], baseline=[1.0] * 4), "arm", "higher") == [3]
    logarithms = cells(LOG, arm=[0.0, 0.0, 0.0, -0.02], baseline=[0.0] * 4)
    assert collapsed_runs(logarithms, "arm", "higher") == []


def test_an_arm_that_is_low_as_a_whole_did_not_collapse() -> None:
    one = cells(arm=[0.74, *COLLAPSED, 0.43], baseline=BASELINE)
    assert collapsed_runs(one, "arm", "higher") == []


@pytest.mark.parametrize("seeds", [4, 5, 10])
def test_normal_spreads_are_seldom_called_a_collapse(seeds: int) -> None:
    """At most 1% of studies of five arms on one metric, and the three standard errors of 300 of them."""
    draw = np.random.default_rng(seeds)
    wrong = 0
    for _ in range(300):
        one = cells(**{str(arm): draw.normal(size=seeds).tolist() for arm in range(6)})
        wrong += any(collapsed_runs(one, arm, "higher") for arm in one.values)
    assert wrong <= 300 * 0.01 + 3 * (300 * 0.01) ** 0.5


@pytest.mark.parametrize("seeds", [4, 5])
def test_an_arm_with_a_larger_spread_is_seldom_called_a_collapse(seeds: int) -> None:
    """Three times the spread of the other arms: up to 5.5% where the gap is held against the others' spread alone."""
    draw = np.random.default_rng(seeds)
    wrong = 0
    for _ in range(600):
        one = cells(**{str(arm): (draw.normal(size=seeds) * (3 if arm == 0 else 1)).tolist() for arm in range(6)})
        wrong += bool(collapsed_runs(one, "0", "higher"))
    assert wrong <= 600 * 0.01 + 3 * (600 * 0.01) ** 0.5


@pytest.mark.parametrize(("seeds", "collapsed"), [(4, 1), (5, 1), (5, 2), (10, 3)])
def test_a_collapse_by_forty_deviations_is_found(seeds: int, collapsed: int) -> None:
    """With ten runs twenty deviations are found, as far as `muon:lr=3e-3` fell in three of them."""
    draw = np.random.default_rng(seeds)
    found = 0
    for _ in range(200):
        values = {str(arm): draw.normal(size=seeds) for arm in range(6)}
        values["0"][:collapsed] -= 20 if seeds == 10 else 40
        found += set(collapsed_runs(cells(**{k: v.tolist() for k, v in values.items()}), "0", "higher")) == {
            *range(collapsed)
        }
    assert found >= 200 * 0.95


def test_few_runs_need_a_wider_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of five runs that agree by luck would make the fifth of an arm with a large spread look collapsed."""
    usual = [-1.4, -0.7, -0.2, 0.1, 0.6, 1.3]
    one = cells(arm=[0.0, 0.1, 0.2, 0.3, -10.0], baseline=usual)
    assert collapsed_runs(one, "arm", "higher") == []
    assert collapsed_runs(cells(arm=[0.0, 0.1, 0.2, 0.3, -20.0], baseline=usual), "arm", "higher") == [4]
    monkeypatch.setattr(collapse, "FEW_FAR", 0.0)
    assert collapsed_runs(one, "arm", "higher") == [4]


@pytest.mark.parametrize("values", [[0.7, 0.1], [0.7, 0.701, 0.1]])
def test_fewer_than_four_runs_do_not_say_which_is_usual(values: list[float]) -> None:
    assert collapsed_runs(cells(arm=values, baseline=BASELINE), "arm", "higher") == []
    assert collapsed_runs(cells(arm=[*values, *[0.7] * (4 - len(values))], baseline=BASELINE), "arm", "higher") == [
        len(values) - 1
    ]


@pytest.mark.parametrize("table", [(1, 5, 0, 10), (3, 10, 0, 20), (3, 5, 1, 10), (5, 10, 5, 10), (2, 3, 0, 6)])
def test_the_collapses_are_held_against_boschloos_exact_test(table: tuple[int, int, int, int]) -> None:
    of_arm, runs, of_baseline, baseline_runs = table
    counts = [[of_arm, of_baseline], [runs - of_arm, baseline_runs - of_baseline]]
    oracle = scipy_stats.boschloo_exact(counts, alternative="greater", n=64)
    assert collapse_p(*table) == pytest.approx(oracle.pvalue, rel=1e-3)


def test_without_a_collapse_there_is_nothing_to_show() -> None:
    assert collapse_p(0, 5, 0, 10) == collapse_p(0, 5, 3, 10) == 1
    found = [collapse_p(collapsed, 5, 0, 10) for collapsed in range(6)]
    assert found == sorted(found, reverse=True)
