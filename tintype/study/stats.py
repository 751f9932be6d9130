"""Comparison of an arm with the baseline over seeds.

An arm shares its seeds with the baseline, so each seed gives one difference, and their mean a Student interval with
n - 1 degrees of freedom. The control has seeds of its own: there is nothing to pair, and Welch's interval is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, variance

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 0.95
POWER = 0.8
_QUANTILES = 4_000


@dataclass(frozen=True)
class Difference:
    """A mean difference with its standard error and degrees of freedom; both None with one seed."""

    value: float
    error: float | None
    freedom: float | None

    @property
    def p(self) -> float | None:
        """Two-sided p of a true difference of zero."""
        if self.error is None or self.freedom is None:
            return None
        if self.error == 0:  # the metric is too coarse to tell the seeds apart, so nothing can be claimed of it
            return 1.0
        return float(2 * stats.t.sf(abs(self.value) / self.error, self.freedom))

    def interval(self, confidence: float) -> tuple[float, float] | None:
        if self.error is None or self.freedom is None:
            return None
        reach = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * self.error
        return self.value - reach, self.value + reach

    def detectable(self, confidence: float) -> float | None:
        """The smallest true difference found with a power of 80% at this error."""
        if self.error is None or self.freedom is None:
            return None
        return detectable_in_errors(self.freedom, confidence) * self.error


def paired(new: Sequence[float], old: Sequence[float]) -> Difference:
    differences = [a - b for a, b in zip(new, old, strict=True)]
    if len(differences) < 2:
        return Difference(fmean(differences), None, None)
    return Difference(fmean(differences), math.sqrt(variance(differences) / len(differences)), len(differences) - 1)


def unpaired(new: Sequence[float], old: Sequence[float]) -> Difference:
    """Welch's: the spreads of the two sets may differ."""
    value = fmean(new) - fmean(old)
    if min(len(new), len(old)) < 2:
        return Difference(value, None, None)
    shares = [variance(values) / len(values) for values in (new, old)]
    total = sum(shares)
    if total == 0:
        return Difference(value, 0.0, len(new) + len(old) - 2)
    freedom = total**2 / sum(s**2 / (len(v) - 1) for s, v in zip(shares, (new, old), strict=True))
    return Difference(value, math.sqrt(total), freedom)


@lru_cache
def detectable_in_errors(freedom: float, confidence: float) -> float:
    """The true difference, in standard errors, that a two-sided t test finds with a power of 80%."""
    most = 2 * float(stats.t.ppf((1 + confidence) / 2, freedom)) + 10
    return float(optimize.brentq(lambda shift: t_power(shift, freedom, confidence) - POWER, 0.0, most))


def t_power(shift: float, freedom: float, confidence: float) -> float:
    """How often a t test finds a true difference of `shift` standard errors.

    Averages the normal tails over the quantiles of the estimated error: scipy's noncentral t fails for large shifts.
    """
    critical = float(stats.t.ppf((1 + confidence) / 2, freedom))
    quantiles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    estimated = stats.chi.ppf(quantiles, freedom) / math.sqrt(freedom)
    found = stats.norm.cdf(shift - critical * estimated) + stats.norm.cdf(-shift - critical * estimated)
    return float(found.mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
