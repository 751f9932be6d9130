"""Minimisers of each objective, found with the real training step and known in closed form on Gaussian data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from tests.gaussian import MEAN, STD, at_one_time, best_line, best_slope
from tests.tiny import tiny_plan

CLAMP, GAMMA, WEIGHT = 0.05, 5.0, 0.5
TECHNIQUES = ("x-prediction", f"min-snr:gamma={GAMMA},normalised=false", f"contrastive:weight={WEIGHT}")
SETS = [chosen for size in range(4) for chosen in itertools.combinations(TECHNIQUES, size)]


@pytest.mark.parametrize("t", [0.02, 0.4])
@pytest.mark.parametrize("techniques", SETS, ids=lambda chosen: " + ".join(one.split(":")[0] for one in chosen) or "-")
def test_at_one_time(techniques: Sequence[str], t: float) -> None:
    """E[v | x_t], or with contrastive (E[v | x_t] - λ m) / (1 - λ); no weight of t can move it."""
    found = best_line(tiny_plan(*at_one_time(t), techniques=techniques))
    slope = best_slope(t)
    offset, mean = -slope * (1 - t) * MEAN - MEAN, -MEAN
    if TECHNIQUES[0] in techniques:  # velocities of both sides are divided by the clamp, not by a smaller t
        found = (1 - found[0]) / max(t, CLAMP), -found[1] / max(t, CLAMP)
        slope, offset, mean = (value * t / max(t, CLAMP) for value in (slope, offset, mean))
    if TECHNIQUES[2] in techniques:
        slope, offset = slope / (1 - WEIGHT), (offset - WEIGHT * mean) / (1 - WEIGHT)
    assert found == pytest.approx((slope, offset), abs=0.02)


@pytest.mark.parametrize("techniques", SETS, ids=lambda chosen: " + ".join(one.split(":")[0] for one in chosen) or "-")
def test_over_all_times(techniques: Sequence[str]) -> None:
    """One line must serve every t, so that it shows how much each t counts."""
    plan = tiny_plan("time.kind=uniform", "time.lowest=0.01", techniques=techniques)
    assert best_line(plan) == pytest.approx(_expected_line(techniques, 0.01), abs=0.015)


def _expected_line(techniques: Sequence[str], lowest: float) -> tuple[float, float]:
    """The prediction a x_t + b enters the loss as the velocity p x_t + q (a x_t + b); its target is g v.

    The mean of w q ((1 - λ) (p x_t + q (a x_t + b)) - g v + λ m) times x_t, and times 1, over t is zero.
    """
    t = lowest + (1 - lowest) * (np.arange(20_000) + 0.5) / 20_000
    divisor = np.maximum(t, CLAMP)
    of_x = TECHNIQUES[0] in techniques
    p, q, g = (1 / divisor, -1 / divisor, t / divisor) if of_x else (0 * t, 0 * t + 1, 0 * t + 1)
    weight = 0 * t + 1
    if TECHNIQUES[1] in techniques:
        weight = np.minimum((1 - t) ** 2 / t**2, GAMMA) * (divisor**2 if of_x else t**2)
    strength = WEIGHT if TECHNIQUES[2] in techniques else 0.0
    first, second = (1 - t) * MEAN, (1 - t) ** 2 * (STD**2 + MEAN**2) + t**2  # moments of x_t
    v_first, v_second = 0 * t - MEAN, t - (1 - t) * (STD**2 + MEAN**2)  # of v, and of v x_t
    m = -MEAN * g.mean()
    wanted = [
        weight * q * (g * v_moment - strength * m * moment - (1 - strength) * p * next_moment)
        for v_moment, moment, next_moment in ((v_second, first, second), (v_first, 0 * t + 1, first))
    ]
    rows = [
        [(1 - strength) * weight * q**2 * moment for moment in row] for row in ((second, first), (first, 0 * t + 1))
    ]
    a, b = np.linalg.solve(np.array(rows).mean(-1), np.array(wanted).mean(-1))
    return float(a), float(b)


def test_the_line_shows_how_much_each_time_counts() -> None:
    """Or the tests above would pass without the weights."""
    lines = {_expected_line(techniques, 0.01) for techniques in SETS}
    assert min(max(abs(a - c), abs(b - d)) for (a, b), (c, d) in itertools.combinations(lines, 2)) > 0.03
