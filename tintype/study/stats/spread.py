"""The spread over seeds, shared between the arms of a study.

A variance from three runs is a lottery: where it comes out small by luck, the interval is too narrow and the verdict
loud. So each plan's own variance is averaged with that of all plans at its resolution. The shared one counts as two
degrees of freedom, whatever the number of arms: Smyth 2004, equation 4 (limma), with a stated prior. Estimated from the
few arms of one study, the prior would be too confident.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

SHARED_FREEDOM = 2.0
"""Degrees of freedom that the shared variance counts beside a plan's own."""
STANDS_OUT = 2.5
"""A plan whose deviation is more than so many times that of all others keeps its own."""


@dataclass(frozen=True)
class Variance:
    """The variance of single runs, with its degrees of freedom."""

    value: float
    freedom: float
    stands_out: bool = False


def variance(values: Sequence[float]) -> float:
    """Return the unbiased variance, in two passes. That of `statistics` is exact and much slower."""
    mean = fmean(values)
    offsets = [value - mean for value in values]
    return math.fsum(offset * offset for offset in offsets) / (len(values) - 1)  # a power would raise on overflow


def shared_variances(own: Mapping[str, Variance], plans: Iterable[str]) -> dict[str, Variance]:
    """Return the variance of each of these plans, averaged with the shared one. Empty where no plan has two runs."""
    whole, found = pool(own.values()), dict[str, Variance]()
    for plan in plans if whole.freedom else ():
        one = own.get(plan, Variance(0.0, 0.0))
        others = pool(other for name, other in own.items() if name != plan)
        if others.freedom and one.value > STANDS_OUT**2 * others.value:
            found[plan] = Variance(one.value, one.freedom, stands_out=True)
            continue
        freedom = SHARED_FREEDOM + one.freedom
        found[plan] = Variance((SHARED_FREEDOM * whole.value + one.freedom * one.value) / freedom, freedom)
    return found


def pool(variances: Iterable[Variance]) -> Variance:
    """Return the mean variance, weighted by the degrees of freedom; of none, zero with no degree of freedom."""
    known = list(variances)
    freedom = math.fsum(one.freedom for one in known)
    total = math.fsum(one.freedom * one.value for one in known)
    return Variance(total / freedom if freedom else 0.0, freedom)


def total_variance(parts: Sequence[Variance], most: float) -> Variance:
    """Return the sum of variances with Satterthwaite's degrees of freedom, at most `most`.

    Variances that share one are not independent, so together they have no more degrees of freedom than all runs have.
    """
    total = math.fsum(part.value for part in parts)
    weights = math.fsum(part.value**2 / part.freedom for part in parts if part.value)
    return Variance(total, min(total**2 / weights, most) if weights else most)


def planned_error(seeds: int, arms: int, control: bool) -> Variance:
    """Return the squared standard error of an arm's difference in a planned study where single runs have variance one.

    `arms` does not count the control, whose runs are the baseline's too.
    """
    sets = 2 if control else 1
    arm = Variance(1 / seeds, seeds - 1 + SHARED_FREEDOM)
    baseline = Variance(1 / (sets * seeds), sets * (seeds - 1) + SHARED_FREEDOM)
    return total_variance([arm, baseline], (arms + sets) * (seeds - 1))
