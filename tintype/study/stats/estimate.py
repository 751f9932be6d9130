"""The estimate of a contrast: its value, its Student interval, its power, and its value corrected for selection."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from tintype.study.stats.cells import Cells
from tintype.study.stats.contrast import Contrast
from tintype.study.stats.spread import Variance, pool, total_variance

CONFIDENCE = 0.95
POWER = 0.8
MOST_SEEDS = 1_000
_QUANTILES = 2_000
_GRID = 0.02

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """The value of a contrast on the scale of its cells, with its standard error and interval.

    Error and freedom are None with one seed. An error that rounding alone could have made is zero: every seed differs
    by the same amount, so the spread over seeds is not measurable. Neither has an interval or a p.
    """

    value: float
    level: float = CONFIDENCE
    """The confidence of the interval."""
    error: float | None = None
    freedom: float | None = None
    seeds: int = 1
    """Seeds of the plan that has fewest."""
    stands_out: tuple[str, ...] = ()
    """Arms that keep their own spread."""
    left_out: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Seeds of collapsed runs, by arm."""

    @property
    def interval(self) -> tuple[float, float] | None:
        if not self.error or self.freedom is None:
            return None
        reach = t_quantile(self.freedom, self.level) * self.error
        return self.value - reach, self.value + reach

    @property
    def p(self) -> float | None:
        """Return the two-sided p of a true value of zero."""
        if not self.error or self.freedom is None:
            return None
        return float(2 * special.stdtr(self.freedom, -abs(self.value) / self.error))

    @property
    def detectable(self) -> float | None:
        """Return the smallest true value found with a power of 80% at this error."""
        if not self.error or self.freedom is None:
            return None
        return detectable_in_errors(self.freedom, self.level) * self.error

    @property
    def corrected(self) -> float | None:
        """Return the most likely true value, given that it was reported because its interval excludes zero."""
        if not self.error or self.interval is None:
            return None
        return corrected_for_selection(self.value, self.error, self.interval[1] - self.value)

    def says(self, margin: float) -> Literal["above", "below", "same", "undecided"]:
        """Return what the interval says of the contrast. Changes up to the margin are none worth having."""
        assert self.interval is not None
        low, high = self.interval
        if -margin <= low and high <= margin:
            return "same"
        if low <= 0 <= high:
            return "undecided"
        return "above" if self.value > 0 else "below"

    def seeds_needed(self, margin: float) -> int | None:
        """Return the seeds that would decide if nothing but their number changed; None where a thousand would not."""
        error, freedom, size = self.error, self.freedom, abs(self.value)
        if not error or freedom is None:
            return None

        def decides(count: int) -> bool:
            grown = count / self.seeds
            half = t_quantile(freedom * grown, self.level) * error / math.sqrt(grown)
            return size > half or size + half <= margin

        tried = range(self.seeds, MOST_SEEDS + 1)
        place = bisect_left(tried, True, key=decides)
        return tried[place] if place < len(tried) else None


def estimate(cells: Cells, contrast: Contrast, level: float = CONFIDENCE) -> Estimate:
    """Estimate a contrast of cells. Every arm that it weighs has runs."""
    weights = contrast.weights
    value = math.fsum(weight * cells.mean(arm) for arm, weight in weights.items())
    left_out = {arm: cells.collapsed[arm] for arm in weights if cells.collapsed.get(arm)}
    seeds, parts = dict[str, int](), dict[str, float]()
    for arm, weight in weights.items():  # a control that lost runs takes none from the baseline
        plan = cells.plan_of(arm)
        seeds[plan] = max(seeds.get(plan, 0), cells.seeds(arm))
        parts[plan] = parts.get(plan, 0.0) + weight * weight / cells.seeds(arm)
    fewest = min(seeds.values())
    if fewest < 2:
        return Estimate(value, level, seeds=fewest, left_out=left_out)
    known = cells.variances
    blocks = {cells.block_of(arm) for arm in weights}
    most = math.fsum(pool(cells.own[block].values()).freedom for block in blocks)
    errors = [Variance(part * known[plan].value, known[plan].freedom) for plan, part in parts.items()]
    total = total_variance(errors, most)
    error = math.sqrt(total.value)
    if error <= cells.rounding(weights):
        return Estimate(value, level, 0.0, most, fewest, left_out=left_out)
    stands_out = tuple(arm for arm in weights if known[cells.plan_of(arm)].stands_out)
    return Estimate(value, level, error, total.freedom, fewest, stands_out, left_out)


def t_quantile(freedom: float, confidence: float) -> float:
    """Return the half-width of a two-sided Student interval, in standard errors."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def detectable_in_errors(freedom: float, confidence: float) -> float:
    """Return the true difference, in standard errors, that a two-sided t test finds with a power of 80%.

    Satterthwaite's freedom is any number: it is interpolated on a logarithmic grid, so that the cache serves.
    """
    if float(freedom).is_integer():
        return _solve_detectable(freedom, confidence)
    place = math.log(freedom) / _GRID
    below = math.floor(place)
    ends = [math.log(_solve_detectable(math.exp(_GRID * step), confidence)) for step in (below, below + 1)]
    return math.exp(ends[0] + (place - below) * (ends[1] - ends[0]))


@lru_cache(maxsize=4096)
def _solve_detectable(freedom: float, confidence: float) -> float:
    most = 2 * t_quantile(freedom, confidence) + 10
    return float(optimize.brentq(lambda shift: t_power(shift, freedom, confidence) - POWER, 0.0, most, xtol=1e-6))


def t_power(shift: float, freedom: float, confidence: float) -> float:
    """Return how often a t test finds a true difference of `shift` standard errors.

    Averages the normal tails over the quantiles of the estimated error: scipy's noncentral t fails for large shifts.
    """
    reach = t_quantile(freedom, confidence) * _estimated_errors(freedom)
    return float((special.ndtr(shift - reach) + special.ndtr(-shift - reach)).mean())


@lru_cache(maxsize=4096)
def _estimated_errors(freedom: float) -> Array:
    """Return quantiles of the estimated standard error over the true one."""
    quantiles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    found: Array = np.sqrt(2 * special.gammaincinv(freedom / 2, quantiles) / freedom)
    return found


def corrected_for_selection(value: float, error: float, reach: float) -> float:
    """Return the most likely true difference, given that one was reported because it exceeds `reach`.

    The conditional likelihood of Zhong and Prentice 2008, at a normal spread: differences that just pass come out too
    large on average, and far ones do not.
    """
    z, limit = abs(value) / error, reach / error

    def improbable(true: float) -> float:
        passed = special.log_ndtr(true - limit), special.log_ndtr(-true - limit)
        return float((z - true) ** 2 / 2 + np.logaddexp(*passed))

    found = optimize.minimize_scalar(improbable, bounds=(0.0, z), method="bounded", options={"xatol": 1e-6})
    return math.copysign(float(found.x) * error, value)


def deviation_range(deviation: float, freedom: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the chi-square interval of a standard deviation with these degrees of freedom, at a normal spread."""
    tails = special.chdtri(freedom, [(1 - confidence) / 2, (1 + confidence) / 2])
    low, high = deviation * np.sqrt(freedom / tails)
    return float(low), float(high)
