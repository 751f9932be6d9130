"""Combine estimates of a contrast from several studies that share no runs into their mean and the heterogeneity of the
studies.

weight    w = 1 / (s² + τ²)                  s: the standard error of a study's estimate
mean      m = Σ w y / Σ w
between   τ² solves Σ w (y - m)² = k - 1     zero if the sum is smaller without it (Paule and Mandel 1982)
error     √(max(1, Σ w (y - m)² / (k - 1)) / Σ w), Student with k - 1 degrees of freedom (Hartung and Knapp 2001,
          with the bound of Röver, Knapp and Friede 2015: luck in agreement narrows no interval)
Q         Σ (y - m)² / s² with τ² = 0, chi-square with k - 1 degrees of freedom if the studies do not differ
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from tintype.study.stats.cells import Array
from tintype.study.stats.estimate import CONFIDENCE, Estimate


@dataclass(frozen=True)
class Between:
    """The mean of the estimates of several studies."""

    estimate: Estimate
    deviation: float
    """τ, the standard deviation of the true contrast between studies; zero if differences may be due to chance."""
    heterogeneity: float
    """Q."""
    p: float
    """Probability that studies with the same true contrast differ by at least this much."""


def between(studies: Sequence[Estimate], level: float = CONFIDENCE) -> Between | None:
    """Return the mean of two or more estimates; None if any of them has no standard error."""
    errors = np.array([one.error or math.nan for one in studies])
    if len(studies) < 2 or not np.isfinite(errors).all():
        return None
    values, count = np.array([one.value for one in studies]), len(studies)

    def mean_and_sum(squared: float) -> tuple[float, float, Array]:
        weights = 1 / (errors**2 + squared)
        mean = float((weights * values).sum() / weights.sum())
        return mean, float((weights * (values - mean) ** 2).sum()), weights

    _, heterogeneity, _ = mean_and_sum(0.0)
    squared = 0.0
    if heterogeneity > count - 1:
        most = float(count * values.var(ddof=1))  # the sum is below k - 1 from Σ (y - m)² / (k - 1) on
        squared = optimize.brentq(lambda one: mean_and_sum(one)[1] - (count - 1), 0.0, most, xtol=1e-12 * most)
    mean, total, weights = mean_and_sum(squared)
    error = math.sqrt(max(1.0, total / (count - 1)) / weights.sum())
    old = float((weights * [one.old for one in studies]).sum() / weights.sum())
    seeds = sum(one.seeds for one in studies)
    found = Estimate(mean, old, level, error, count - 1, seeds=seeds)
    return Between(found, math.sqrt(squared), heterogeneity, float(special.chdtrc(count - 1, heterogeneity)))
