"""Estimate the spread over seeds by shrinking each plan's variance towards a variance shared within a resolution.

A variance from three runs is very uncertain; if it is small by chance, the interval is too narrow. So each plan's
variance v is averaged with a centre c, the median of the plans' variances (Smyth 2004, equation 4). The prior is fixed
and the centre is robust, so a plan with a large spread does not widen the intervals of other plans.

    weight    w = min(1, c / v)            falls smoothly with how far a plan's own spread lies above the centre
    variance  (d w c + f v) / (d w + f)    f: the plan's own degrees of freedom, d = max(2, e)
    freedom   f + e w                      e: from 1 to 8, the more alike the plans' spreads are over all metrics

Skewness is pooled over plans. The skewness widens the side of an interval that a long tail affects (see `estimate`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy import optimize, special

CENTRE_WEIGHT = 2.0
"""Smallest weight d of the centre in the average, in degrees of freedom."""
LEAST_FREEDOM, MOST_FREEDOM = 1.0, 8.0
"""Bounds of e, the degrees of freedom that the centre adds to a plan's own degrees of freedom."""
DOUBT = 2.0
"""As a precaution, the measured heterogeneity of spreads is raised by this many standard errors to compute e."""
SKEW = 1.5
"""Factor on the pooled skewness, since small samples underestimate skewness."""
STORED_FULL = 30
"""With this many stored baseline runs, d and e are at least 4, and SKEW is 0.75; with fewer, interpolate."""
STANDS_OUT = 0.16
"""Reports call a plan's spread large if it is 2.5 times the centre's, which gives the centre this weight."""


@dataclass(frozen=True)
class Variance:
    """The variance of single runs, with its degrees of freedom."""

    value: float
    freedom: float
    weight: float = 1.0
    """Weight of the centre in the variance, relative to a plan with an ordinary spread."""

    @property
    def stands_out(self) -> bool:
        return self.weight < STANDS_OUT


@dataclass(frozen=True)
class Spread:
    """The spread of the runs at one resolution."""

    variances: Mapping[str, Variance]
    """Variances by plan; empty if no plan has two runs."""
    freedom: float
    """Degrees of freedom of all runs, which limit the degrees of freedom of variances that share a centre."""
    skewness: float = 0.0
    """Skewness pooled over the plans, with the factor applied."""


def alike_freedom(metrics: Sequence[Mapping[str, Variance]], effective: float) -> float:
    """Return e, computed from the similarity of the plans' variances in these metrics, which count as an `effective`
    number of metrics.

    With u = log v - ψ(f/2) + log(f/2), Q is the mean over metrics of Σ (u - mean)² / ψ'(f/2) / (plans - 1). Q is about
    1 if all spreads are equal. The variance of the logarithms of spreads is the excess of Q, raised by `DOUBT`, times
    the mean of ψ'(f/2). The result e solves ψ'(e/2) = this variance (Smyth 2004, section 6.2).
    """
    ratios, noises, plans = list[float](), list[float](), 0
    for own in metrics:
        known = [one for one in own.values() if one.freedom and one.value > 0]
        if len(known) < 2:
            continue
        half = np.array([one.freedom / 2 for one in known])
        noise = special.polygamma(1, half)
        logs = np.log([one.value for one in known]) - special.digamma(half) + np.log(half)
        mean = (logs / noise).sum() / (1 / noise).sum()
        ratios.append(float(((logs - mean) ** 2 / noise).sum()) / (len(known) - 1))
        noises.append(float(noise.mean()))
        plans = max(plans, len(known))
    if not ratios:
        return LEAST_FREEDOM
    raised = fmean(ratios) + DOUBT * math.sqrt(2 / ((plans - 1) * max(effective, 1.0)))
    excess = max(raised - 1, 0.0) * fmean(noises)
    if excess <= float(special.polygamma(1, MOST_FREEDOM / 2)):
        return MOST_FREEDOM
    if excess >= float(special.polygamma(1, LEAST_FREEDOM / 2)):
        return LEAST_FREEDOM
    bounds = LEAST_FREEDOM, MOST_FREEDOM
    return float(optimize.brentq(lambda freedom: float(special.polygamma(1, freedom / 2)) - excess, *bounds))


def spread_of(sets: Mapping[str, Sequence[Sequence[float]]], alike: float = LEAST_FREEDOM, stored: int = 0) -> Spread:
    """Return the spread of these plans, each with the values of its arms; `alike` is e of `alike_freedom`."""
    own = {plan: pool(_own_variance(values) for values in some if len(values) > 1) for plan, some in sets.items()}
    known = [one for one in own.values() if one.freedom]
    if not known:
        return Spread({}, 0.0)
    part = min(1.0, stored / STORED_FULL)
    freedom = max(alike, LEAST_FREEDOM + 3 * part)
    weight = max(CENTRE_WEIGHT + 2 * part, freedom)
    centre = _centre(known)
    found: dict[str, Variance] = {}
    for plan, one in own.items():
        share = min(1.0, centre / one.value) if one.value else 1.0
        whole = weight * share + one.freedom
        value = (weight * share * centre + one.freedom * one.value) / whole
        found[plan] = Variance(value, one.freedom + freedom * share, share)
    asymmetry = SKEW * (1 - part / 2) * skewness(sets, found)
    return Spread(found, math.fsum(one.freedom for one in known), asymmetry)


def _own_variance(values: Sequence[float]) -> Variance:
    return Variance(variance(values), len(values) - 1)


def _centre(known: Sequence[Variance]) -> float:
    """Return the weighted median of variances, each divided by the median of its chi-square distribution."""
    scaled = sorted((one.value * one.freedom / float(special.chdtri(one.freedom, 0.5)), one.freedom) for one in known)
    half, below = math.fsum(freedom for _, freedom in scaled) / 2, 0.0
    for place, (value, freedom) in enumerate(scaled):
        below += freedom
        if below > half * (1 + 1e-12):
            return value
        if below >= half * (1 - 1e-12) and place + 1 < len(scaled):
            return (value + scaled[place + 1][0]) / 2
    return scaled[-1][0]


def skewness(sets: Mapping[str, Sequence[Sequence[float]]], variances: Mapping[str, Variance]) -> float:
    """Return the skewness of the runs around the means of their arms, in units of their plans' standard deviations."""
    third = second = 0.0
    for plan, values in ((plan, values) for plan, some in sets.items() for values in some):
        count, scale, weight = len(values), math.sqrt(variances[plan].value), variances[plan].weight
        if count < 3 or not scale:
            continue
        mean = fmean(values)
        offsets = [(value - mean) / scale for value in values]
        third += weight * count * count / ((count - 1) * (count - 2)) * math.fsum(one**3 for one in offsets)
        second += weight * count / (count - 1) * math.fsum(one * one for one in offsets)
    runs = math.fsum(
        variances[plan].weight * len(values)
        for plan, some in sets.items()
        for values in some
        if len(values) >= 3 and variances[plan].value
    )
    return (third / runs) / (second / runs) ** 1.5 if second else 0.0


def variance(values: Sequence[float]) -> float:
    """Return the unbiased variance, computed in two passes. The function in `statistics` is exact but much slower."""
    mean = fmean(values)
    offsets = [value - mean for value in values]
    return math.fsum(offset * offset for offset in offsets) / (len(values) - 1)  # a power would raise on overflow


def pool(variances: Iterable[Variance]) -> Variance:
    """Return the mean of variances, weighted by their degrees of freedom; zero if there are none."""
    known = list(variances)
    freedom = math.fsum(one.freedom for one in known)
    total = math.fsum(one.freedom * one.value for one in known)
    return Variance(total / freedom if freedom else 0.0, freedom)


def total_variance(parts: Sequence[Variance], most: float) -> Variance:
    """Return the sum of variances, with Satterthwaite's degrees of freedom limited to `most`."""
    total = math.fsum(part.value for part in parts)
    weights = math.fsum(part.value**2 / part.freedom for part in parts if part.value)
    return Variance(total, min(total**2 / weights, most) if weights else most)


def planned_error(seeds: int, arms: int, control: bool, stored: int = 0) -> Variance:
    """Return the squared standard error of an arm's difference in a planned study, for single runs of variance one.

    `arms` does not include the control. Its runs, and the `stored` runs, count as the baseline's.
    """
    sets, beside = 2 if control else 1, max(stored - 1, 0)
    shared = LEAST_FREEDOM + 3 * min(1.0, stored / STORED_FULL)
    arm = Variance(1 / seeds, seeds - 1 + shared)
    baseline = Variance(1 / (sets * seeds + stored), sets * (seeds - 1) + beside + shared)
    return total_variance([arm, baseline], (arms + sets) * (seeds - 1) + beside)
