"""Estimate a contrast by its value, Student's t interval, power, and the value corrected for selection."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from scipy import optimize, special

from tintype.study.stats.cells import Array, Cells
from tintype.study.stats.contrast import Contrast
from tintype.study.stats.spread import SKEW, STORED_FULL, Variance, planned_error, total_variance

CONFIDENCE = 0.95
POWER = 0.8
MOST_SEEDS = 1_000
FARTHEST = 5.0
"""Number of standard errors up to which skewness widens an interval; beyond, the expansion is not valid."""
_QUANTILES, _FEW_QUANTILES = 2_000, 200
_GRID = 0.02


@dataclass(frozen=True)
class Estimate:
    """The value of a contrast on the scale of its cells, with its standard error and interval.

    An error that rounding alone could cause is set to zero: all seeds differ by the same amount, so the spread is not
    measurable. With one seed (the error is None) or a zero error, there is no interval and no p.
    """

    value: float
    old: float
    """The reference to which the contrast is a change."""
    level: float = CONFIDENCE
    error: float | None = None
    freedom: float | None = None
    skewness: float = 0.0
    """Skewness of the distribution of the value over repeated studies."""
    seeds: int = 1
    """Number of seeds of the plan with the fewest seeds."""
    correlation: float = 0.0
    """Correlation over shared seeds, which the error takes into account; zero without pairs."""
    stands_out: tuple[str, ...] = ()
    """Arms with a spread far above the others', whose variances are therefore estimated mostly from their own runs."""
    left_out: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Seeds of collapsed runs, by arm."""

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.interval_at(self.level)

    def interval_at(self, level: float) -> tuple[float, float] | None:
        """Return the interval with another confidence."""
        if not self.error or self.freedom is None:
            return None
        down, up = self._reach(t_quantile(self.freedom, level), self.error)
        return self.value - down, self.value + up

    def _reach(self, t: float, error: float) -> tuple[float, float]:
        """Return the distances by which an interval of t standard errors extends below and above the value.

        If runs have a long upper tail, most means of few runs are too low. So the upper side is widened by the factor 1
        + skewness t/3 (Johnson 1978, to first order). With a long lower tail, the lower side is widened.
        """
        wide = 1 + abs(self.skewness) * min(t, FARTHEST) / 3
        return t * error * (wide if self.skewness < 0 else 1.0), t * error * (wide if self.skewness > 0 else 1.0)

    @property
    def p(self) -> float | None:
        """Return one minus the confidence of the interval whose end is at zero."""
        if not self.error or self.freedom is None:
            return None
        z, skewness = abs(self.value) / self.error, abs(self.skewness)
        if skewness and (self.skewness < 0) == (self.value > 0):  # the wider side: t (1 + skewness t / 3) = z
            near, far = 2 * z / (1 + math.sqrt(1 + 4 * skewness * z / 3)), z / (1 + skewness * FARTHEST / 3)
            z = near if near <= FARTHEST else far
        return float(2 * special.stdtr(self.freedom, -z))

    @property
    def detectable(self) -> float | None:
        """Return the smallest true value that is found with a power of 80% at this error."""
        if not self.error or self.freedom is None:
            return None
        return detectable_in_errors(self.freedom, self.level) * self.error

    @property
    def corrected(self) -> tuple[float, float, float] | None:
        """Correct a value that is reported because its interval excludes zero; return it with a 95% interval."""
        if not self.error or self.interval is None:
            return None
        reach = self.value - self.interval[0] if self.value > 0 else self.interval[1] - self.value
        return corrected_for_selection(self.value, self.error, reach)

    def says(self, margin: float) -> Literal["above", "below", "same", "undecided"]:
        """Return the verdict on the contrast from the interval. Differences up to the margin count as *same*."""
        assert self.interval is not None
        low, high = self.interval
        if -margin <= low and high <= margin:
            return "same"
        if low <= 0 <= high:
            return "undecided"
        return "above" if self.value > 0 else "below"

    def seeds_needed(self, margin: float) -> int | None:
        """Return the number of seeds that would decide if nothing else changed; None if a thousand are too few."""
        error, freedom = self.error, self.freedom
        if not error or freedom is None:
            return None

        def decides(count: int) -> bool:
            grown = count / self.seeds
            less = replace(self, skewness=self.skewness / math.sqrt(grown))
            down, up = less._reach(t_quantile(freedom * grown, self.level), error / math.sqrt(grown))
            low, high = self.value - down, self.value + up
            return not low <= 0 <= high or (-margin <= low and high <= margin)

        tried = range(self.seeds, MOST_SEEDS + 1)
        place = bisect_left(tried, True, key=decides)
        return tried[place] if place < len(tried) else None

    def seeds_for_same(self, margin: float) -> int | None:
        """Return the number of seeds for *same* in 80% of studies without a difference; None above a thousand."""
        error, freedom = self.error, self.freedom
        if not error or freedom is None:
            return None

        def chance(count: int, quantiles: int = _QUANTILES) -> float:
            grown = count / self.seeds
            t = min(t_quantile(freedom * grown, self.level), FARTHEST)
            wide = 1 + abs(self.skewness) / math.sqrt(grown) * t / 6  # one side is wider by twice that
            return same_power(margin * math.sqrt(grown) / (wide * error), freedom * grown, self.level, quantiles)

        if chance(self.seeds) >= POWER:
            return self.seeds
        tried = range(self.seeds + 1, MOST_SEEDS + 1)
        place = bisect_left(tried, POWER, key=partial(chance, quantiles=_FEW_QUANTILES))  # near, in a tenth of the time
        while place < len(tried) and chance(tried[place]) < POWER:
            place += 1
        while place > 0 and chance(tried[place - 1]) >= POWER:
            place -= 1
        return tried[place] if place < len(tried) else None


def estimate(cells: Cells, contrast: Contrast, level: float = CONFIDENCE) -> Estimate:
    """Estimate a contrast from cells, with each arm's weight divided among all runs of its plan.

    The squared error, which sums variance · Σ w² / n over plans, has Satterthwaite's degrees of freedom.
    """
    contrast = contrast.over_plans(cells)
    weights, seeds, parts = contrast.weights, dict[str, int](), dict[str, float]()
    value = math.fsum(weight * cells.mean(arm) for arm, weight in weights.items())
    old = math.fsum(weight * cells.mean(arm) for arm, weight in contrast.reference.items())
    left_out = {arm: cells.collapsed[arm] for arm in weights if cells.collapsed.get(arm)}
    for arm, weight in weights.items():  # a control that lost runs takes none from the baseline
        plan = cells.plan_of(arm)
        seeds[plan] = max(seeds.get(plan, 0), cells.seeds(arm))
        parts[plan] = parts.get(plan, 0.0) + weight * weight / cells.seeds(arm)
    fewest = min(seeds.values())
    if fewest < 2:
        return Estimate(value, old, level, seeds=fewest, left_out=left_out)
    known = {plan: cells.variance(plan) for plan in parts}
    most = math.fsum(cells.spreads[block].freedom for block in {cells.block_of(arm) for arm in weights})
    errors = [Variance(part * known[plan].value, known[plan].freedom) for plan, part in parts.items()]
    total = total_variance(errors, most)
    error = math.sqrt(total.value)
    if error <= cells.rounding(weights):
        return Estimate(value, old, level, 0.0, most, seeds=fewest, left_out=left_out)
    third = math.fsum(
        weight**3
        * cells.spreads[cells.block_of(arm)].skewness
        * cells.variance(arm).value ** 1.5
        / cells.seeds(arm) ** 2
        for arm, weight in weights.items()
    )
    stands_out = tuple(arm for arm in weights if cells.variance(arm).stands_out)
    skewness = third / error**3
    return Estimate(value, old, level, error, total.freedom, skewness, fewest, 0.0, stands_out, left_out)


def planned_widening(seeds: int, arms: int, control: bool, confidence: float, stored: int = 0) -> float:
    """Return the mean factor by which the measured skewness of normal runs widens an interval in a planned study.

    The measured skewness of N normal values has the standard deviation √(6 / N). In half of all studies, the skewness
    widens the side of the interval that decides.
    """
    sets = 2 if control else 1
    error = planned_error(seeds, arms, control, stored)
    third = (1 / seeds**2 - 1 / (sets * seeds + stored) ** 2) / math.pow(error.value, 1.5)
    factor = SKEW * (1 - min(1.0, stored / STORED_FULL) / 2)
    size = factor * math.sqrt(6 / ((arms + sets) * seeds + stored)) * math.sqrt(2 / math.pi) * third
    return 1 + size * min(t_quantile(error.freedom, confidence), FARTHEST) / 6


def t_quantile(freedom: float, confidence: float) -> float:
    """Return the half-width of a two-sided Student's t interval, in standard errors."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def detectable_in_errors(freedom: float, confidence: float) -> float:
    """Return the true difference, in standard errors, that a two-sided t test finds with a power of 80%.

    Since degrees of freedom can be any real number, the result is interpolated on a cached logarithmic grid.
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
    """Return the probability that a t test finds a true difference of `shift` standard errors.

    Average normal tails over quantiles of the estimated error, since scipy's noncentral t fails for large shifts.
    """
    reach = t_quantile(freedom, confidence) * _estimated_errors(freedom)
    return float((special.ndtr(shift - reach) + special.ndtr(-shift - reach)).mean())


def same_power(margin: float, freedom: float, confidence: float, quantiles: int = _QUANTILES) -> float:
    """Return the probability that an interval is within a margin (in standard errors) if there is no difference."""
    room = np.maximum(margin - t_quantile(freedom, confidence) * _estimated_errors(freedom, quantiles), 0.0)
    return float((2 * special.ndtr(room) - 1).mean())


@lru_cache(maxsize=4096)
def _estimated_errors(freedom: float, quantiles: int = _QUANTILES) -> Array:
    """Return quantiles of the ratio of the estimated to the true standard error."""
    shares = (np.arange(quantiles) + 0.5) / quantiles
    found: Array = np.sqrt(2 * special.gammaincinv(freedom / 2, shares) / freedom)
    return found


def corrected_for_selection(
    value: float, error: float, reach: float, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return a corrected difference and its interval, for a difference that was reported as larger than `reach`.

    Mean and quantiles are those of the conditional likelihood of Zhong and Prentice 2008 under the normal distribution.
    Differences slightly above `reach` are too large on average, and much larger differences are not.
    """
    z, limit = abs(value) / error, reach / error
    true = np.linspace(-4.0 - limit, z + 6.0, 2001)
    likely = -0.5 * (z - true) ** 2 - np.logaddexp(special.log_ndtr(true - limit), special.log_ndtr(-true - limit))
    likely = np.exp(likely - likely.max())
    likely /= likely.sum()
    low, high = np.interp([(1 - confidence) / 2, (1 + confidence) / 2], likely.cumsum(), true)
    sign = math.copysign(error, value)
    ends = sorted((float(low) * sign, float(high) * sign))
    return float((likely * true).sum()) * sign, ends[0], ends[1]


def deviation_range(deviation: float, freedom: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the chi-square interval of a standard deviation of normal values with these degrees of freedom."""
    tails = special.chdtri(freedom, [(1 - confidence) / 2, (1 + confidence) / 2])
    low, high = deviation * np.sqrt(freedom / tails)
    return float(low), float(high)
