"""Paired comparison of an arm with the baseline over seeds.

Each seed gives one difference. Their mean gets a 95% Student interval with n - 1 degrees of freedom and a two-sided p.
The p values of all arms on one metric are corrected together by Holm's method, and the verdict follows the corrected
p: so an interval that barely excludes zero can stand beside "not shown".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 0.95
POWER = 0.8
_QUANTILES = 4_000


@dataclass(frozen=True)
class Paired:
    """A set of paired differences, summarised."""

    difference: float
    spread: float | None
    """Standard deviation of the differences; None with one seed."""
    count: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> Paired:
        spread = stdev(differences) if len(differences) > 1 else None
        return cls(fmean(differences), spread, len(differences))

    @property
    def p(self) -> float | None:
        """Two-sided p of a true difference of zero."""
        if self.spread is None:
            return None
        if self.spread == 0:  # the metric is too coarse to tell the seeds apart, so nothing can be claimed of it
            return 1.0
        t = abs(self.difference) / (self.spread / math.sqrt(self.count))
        return float(2 * stats.t.sf(t, self.count - 1))

    def interval(self, confidence: float) -> tuple[float, float] | None:
        if self.spread is None:
            return None
        reach = float(stats.t.ppf((1 + confidence) / 2, self.count - 1)) * self.spread / math.sqrt(self.count)
        return self.difference - reach, self.difference + reach

    def detectable(self, confidence: float) -> float | None:
        """The smallest true difference found with a power of 80% at this spread and number of seeds."""
        if self.spread is None:
            return None
        return detectable_in_spreads(self.count, confidence) * self.spread


@lru_cache
def detectable_in_spreads(count: int, confidence: float) -> float:
    """The detectable difference of a paired t test, in units of the spread of the differences."""
    critical = float(stats.t.ppf((1 + confidence) / 2, count - 1))
    most = 2 * critical + 5
    return float(optimize.brentq(lambda effect: paired_power(effect, count, confidence) - POWER, 0.0, most))


def paired_power(effect: float, count: int, confidence: float) -> float:
    """How often a paired t test finds a true difference of `effect` spreads.

    Averages the normal tails over the quantiles of the estimated spread: scipy's noncentral t fails for large effects.
    """
    freedom, critical = count - 1, float(stats.t.ppf((1 + confidence) / 2, count - 1))
    quantiles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    estimated = stats.chi.ppf(quantiles, freedom) / math.sqrt(freedom)
    shift = effect * math.sqrt(count)
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
