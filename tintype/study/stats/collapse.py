"""Collapsed runs: a second mode below the other runs of an arm, which a mean would hide.

A run has collapsed if a gap separates it from the arm's better runs. The gap must be wider than the range of the better
runs, and larger than the seed spread explains. That spread is the better runs' own spread, averaged with the other
arms' spread. The other arms' spread alone is not enough, since an arm with large changes often has a larger spread.

If an arm has few runs, the gap must be wider still, measured by the other arms' spread: a few better runs that agree by
luck would make the next run look collapsed. If it has many, a run far below the mean of the better runs has collapsed
too. If the other arms' runs have a long tail towards worse values, low runs must lie farther out, since they may belong
to that tail. At most half of an arm's runs can be collapsed; if more are low, the arm is simply worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from tintype.study.stats.cells import Cells, Scale, rounding_of
from tintype.study.stats.spread import Variance, pool, skewness, variance

LEVEL = 0.01
"""Largest probability that any run counts as collapsed, on one metric, if all arms have the same normal spread."""
OTHERS_FREEDOM = 4.0
"""Weight of the other arms' variance beside that of an arm's own better runs, in degrees of freedom.

The other arms' spread alone would call more runs collapsed if arms' spreads differ.
"""
FEW_FAR = 60.0
"""If an arm has fewer than `MANY` better runs, the gap times their number must exceed this many deviations.

The deviation is that of the other arms' runs. Without this rule an arm with three times the spread and a long tail
loses its low runs, and then looks better. Simulated collapses of 30 deviations in one of four runs are found in 91% of
cases, and in one of five in nearly all.
"""
MANY, FAR = 8, 8.0
"""A run can have collapsed without a gap if there are at least `MANY` better runs.

It must lie `FAR` of the other arms' deviations below their mean, and their own spread must not explain it. The more
runs an arm has, the fewer gaps a long tail leaves.
"""
LEAST = 0.03
"""A gap is wider than this share of the better runs' mean, the usual margin."""
FEWEST = 4
"""Fewest runs of an arm with collapsed runs. Among three runs, two that agree by luck make the third look collapsed."""
TAIL = 1.0
"""How far the skewness of the other arms' runs moves the limit.

This is twice Cornish and Fisher's first term, since the skewness of few runs is estimated too small. A symmetric limit
would take the tail of a skewed metric for collapses.
"""
DOUBT = 10.0
"""Number of runs by which the skewness is shrunk towards zero, since with few runs it is mostly chance."""
FARTHEST = 5.0
"""Deviations up to which that term grows; farther out the expansion is not valid."""
_SUSPECT = 3.0
"""A gap in ranges of the better runs. Low runs beyond it are left out of the spread that serves the other arms."""


class _Usual(NamedTuple):
    """The other arms' seed spread, and the skewness of their runs towards worse values; zero if it is the other way."""

    spread: Variance
    skewness: float


def collapsed_runs(cells: Cells, arm: str, direction: Literal["lower", "higher"]) -> list[int]:
    """Return the seeds of an arm's collapsed runs, worst first."""
    sign = 1.0 if direction == "higher" else -1.0
    runs = sorted((sign * value, seed) for seed, value in cells.values[arm].items())
    usual = _usual(cells, arm, sign)
    if len(runs) < FEWEST or usual is None:
        return []
    level = LEVEL / sum(map(len, cells.values.values()))
    values = [value for value, _ in runs]
    rounding, counts = rounding_of(values), range(len(runs) // 2, 0, -1)
    for worse, better in ((values[:count], values[count:]) for count in counts):
        least = max(rounding, _least(sign * fmean(better), cells.scale))
        if better[0] - worse[-1] > least and _is_apart(worse, better, usual, level):
            return [seed for _, seed in runs[: len(worse)]]
    return []


def _least(place: float, scale: Scale) -> float:
    """Return the smallest gap that counts below better runs whose mean is at this place."""
    return abs(scale.change(place, -LEAST * abs(scale.value(place))))


def _is_apart(worse: Sequence[float], better: Sequence[float], usual: _Usual, level: float) -> bool:
    """Return whether two sets of an arm's runs, both ascending, lie farther apart than their spread explains."""
    own = Variance(variance(better), len(better) - 1)
    others = replace(usual.spread, freedom=min(usual.spread.freedom, OTHERS_FREEDOM))
    both = pool([own, others])
    wide = FEW_FAR / len(better) * math.sqrt(usual.spread.value) if len(better) < MANY else 0.0
    if better[0] - worse[-1] > max(math.sqrt(2) * _limit(both, level, usual.skewness), better[-1] - better[0], wide):
        return True
    apart = max(_limit(both, level), _limit(own, level))
    far = math.sqrt(1 + 1 / len(better)) * apart if len(better) >= MANY else math.inf
    return fmean(better) - worse[-1] > max(far, FAR * math.sqrt(usual.spread.value))


def _limit(spread: Variance, level: float, skewness: float = 0.0) -> float:
    """Return the deviation that a value with this spread exceeds, on one side, with about the chance `level`."""
    deviations = float(special.stdtrit(spread.freedom, 1 - level))
    return math.sqrt(spread.value) * deviations * (1 + TAIL * skewness * min(deviations, FARTHEST) / 3)


def _usual(cells: Cells, arm: str, sign: float) -> _Usual | None:
    """Return the usual variance and skewness: the median over the other plans; None if no other plan has a variance.

    The median is used since other arms may also have collapsed runs. It has two thirds of the mean's precision. Low
    runs beyond a wide gap are left out, since another arm's collapsed runs would otherwise hide this arm's.
    """
    block, plan = cells.block_of(arm), cells.plan_of(arm)
    steady = cells.without({other: _suspects(of, sign) for other, of in cells.values.items()})
    others = {other: one for other, one in steady.own(block).items() if other != plan}
    if not others:
        return None
    usual = median(one.value * one.freedom / special.chdtri(one.freedom, 0.5) for one in others.values())
    runs: dict[str, list[list[float]]] = {other: [] for other in others}
    for other, of in steady.values.items():
        if steady.block_of(other) == block and steady.plan_of(other) in others:
            runs[steady.plan_of(other)].append([-sign * value for value in of.values()])
    freedom = max(1.0, sum(one.freedom for one in others.values()) * 2 / 3)
    count = sum(len(one) for some in runs.values() for one in some)
    tail = max(0.0, skewness(runs, others)) * count / (count + DOUBT)
    return _Usual(Variance(float(usual), freedom), tail)


def _suspects(values: Mapping[int, float], sign: float) -> list[int]:
    """Return the seeds of low runs, at most half, that a wide gap separates from three or more better runs."""
    runs = sorted((sign * value, seed) for seed, value in values.items())
    counts = [
        count
        for count in range(1, len(runs) // 2 + 1)
        if len(runs) - count >= 3 and runs[count][0] - runs[count - 1][0] > _SUSPECT * (runs[-1][0] - runs[count][0])
    ]
    return [seed for _, seed in runs[: max(counts, default=0)]]


def collapse_p(collapsed: int, runs: int, baseline_collapsed: int, baseline_runs: int) -> float:
    """Return the one-sided p of Boschloo's exact test: whether an arm collapses more often than the baseline.

    It orders all outcomes by Fisher's p. The result is the largest chance of an outcome at least as extreme, over all
    common rates. The test is unconditional, so with few runs it finds more than Fisher's test.
    """
    if not collapsed:
        return 1.0
    from scipy import stats  # a third of a second, for studies in which runs collapsed

    of_arm, of_baseline = np.arange(runs + 1), np.arange(baseline_runs + 1)
    both = of_arm[:, None] + of_baseline[None, :]
    fisher = stats.hypergeom.sf(of_arm[:, None] - 1, runs + baseline_runs, both, runs)
    extreme = fisher <= fisher[collapsed, baseline_collapsed] * (1 + 1e-9)
    rates = np.linspace(0, 1, 501)[1:-1]
    arm_chance = stats.binom.pmf(of_arm[:, None], runs, rates)
    baseline_chance = stats.binom.pmf(of_baseline[:, None], baseline_runs, rates)
    return float(np.einsum("ar,br,ab->r", arm_chance, baseline_chance, extreme).max())
