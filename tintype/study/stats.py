"""Intervals, p values and power of a difference with a known standard error and degrees of freedom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

CONFIDENCE = 0.95
POWER = 0.8
_QUANTILES = 2_000
_GRID = 0.02
_ROUNDING = 1e-12

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A mean difference with its standard error and degrees of freedom; both None with one seed.

    An error that rounding alone could have made is zero (see `rounding_of`): every seed differs by the same amount, so
    the spread over seeds is not measurable. Such a difference has no p, no interval and no detectable size.
    """

    value: float
    error: float | None
    freedom: float | None

    @property
    def p(self) -> float | None:
        """Return the two-sided p of a true difference of zero; None where no spread was measured."""
        if not self.error or self.freedom is None:
            return None
        return float(2 * special.stdtr(self.freedom, -abs(self.value) / self.error))

    def interval(self, confidence: float) -> tuple[float, float] | None:
        if not self.error or self.freedom is None:
            return None
        reach = t_quantile(self.freedom, confidence) * self.error
        return self.value - reach, self.value + reach

    def detectable(self, confidence: float) -> float | None:
        """Return the smallest true difference found with a power of 80% at this error."""
        if not self.error or self.freedom is None:
            return None
        return detectable_in_errors(self.freedom, confidence) * self.error


def rounding_of(values: Iterable[float], scale: float = 0.0) -> float:
    """Return how large an error between these values can come from rounding alone.

    `scale` is for values that were made from larger ones: a logarithm is as wrong as its ratio, however small it is.
    """
    return _ROUNDING * max(scale, float(max(map(abs, values))))


def variance(values: Sequence[float]) -> float:
    """Return the unbiased variance, in two passes. That of `statistics` is exact and much slower."""
    mean = fmean(values)
    offsets = [value - mean for value in values]
    return math.fsum(offset * offset for offset in offsets) / (len(values) - 1)  # a power would raise on overflow


def t_quantile(freedom: float, confidence: float) -> float:
    """Return the half-width of a two-sided Student interval, in standard errors."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def detectable_in_errors(freedom: float, confidence: float) -> float:
    """Return the true difference, in standard errors, that a two-sided t test finds with a power of 80%.

    Welch's freedom is any number: it is interpolated on a logarithmic grid, so that the cache serves.
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
