"""Runs that fell off: a second mode below the other runs of an arm, which a mean would hide.

A run has fallen where a gap separates it from the arm's better runs that is wider than the range of those, and that
the seed spread of the other arms does not explain. Fallen runs are at most half of an arm; where more are low, the arm
is simply worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from scipy import special

from tintype.seams import Direction
from tintype.study.results import Curve
from tintype.study.spread import Groups

LEVEL = 0.01
"""A bound of the chance that a study of arms with one normal spread calls any run fallen, on one metric."""
FEWEST = 3
"""With two runs there is no telling which of them is the usual one."""


def fallen_runs(groups: Groups, arm: str, direction: Direction) -> list[int]:
    """Return the seeds of an arm's runs that fell off, worst first."""
    sign = 1.0 if direction == "higher" else -1.0
    runs = sorted((sign * value, seed) for seed, value in groups.values[arm].items())
    gaps = [after[0] - before[0] for before, after in pairwise(runs)]
    limit = _limit(groups, arm)
    if len(runs) < FEWEST or limit is None:
        return []
    healthy = [runs[-1][0] - runs[count][0] for count in range(1, len(runs))]
    fallen = [
        count
        for count, (gap, width) in enumerate(zip(gaps, healthy, strict=True), 1)
        if gap > max(limit, width) and 2 * count <= len(runs)
    ]
    return [seed for _, seed in runs[: max(fallen, default=0)]]


def _limit(groups: Groups, arm: str) -> float | None:
    """Return the largest gap between two runs that the spread of the other plans explains; None where it is unknown.

    The median of their variances, since another arm may have fallen runs too. It is worth two thirds of their mean.
    """
    others = [one for plan, one in groups.own.items() if plan != groups.plan_of(arm)]
    if not others:
        return None
    usual = median(one.value * one.freedom / special.chdtri(one.freedom, 0.5) for one in others)
    freedom = max(1.0, sum(one.freedom for one in others) * 2 / 3)
    tested = sum(map(len, groups.values.values()))
    return math.sqrt(2 * usual) * float(special.stdtrit(freedom, 1 - LEVEL / tested))


def fell_at(fallen: Curve, others: Sequence[Curve]) -> int | None:
    """Return the logged step from which a run's loss stays above that of all other runs; None where it does not."""
    highest = {step: max(values) for step, values in _by_step(others).items()}
    last = None
    for step, value in reversed(list(zip(fallen.step, fallen.value, strict=True))):
        if step in highest and not value > highest[step]:
            break
        last = step
    return last


def _by_step(curves: Sequence[Curve]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for curve in curves:
        for step, value in zip(curve.step, curve.value, strict=True):
            found.setdefault(step, []).append(value)
    return found
