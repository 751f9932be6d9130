"""Spread over seeds, shared between the arms of a study, and differences between means of runs.

A variance from three runs is a lottery: where it comes out small by luck, the interval is too narrow and the verdict
loud. So each plan's own variance is averaged with that of all plans at its resolution. The shared one counts as two
degrees of freedom, whatever the number of arms: Smyth 2004, equation 4 (limma), with a stated prior. Estimated from the
few arms of one study, the prior would be too confident.

Runs of an arm and of the baseline are not paired, though they share seeds: a changed arm loses its seed's luck
(docs/statistics.md has the correlations), and pairs would cost half of the degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from tintype.study import stats

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


@dataclass(frozen=True)
class Groups:
    """The values of one metric at one resolution, by arm and seed, on the scale on which they are compared."""

    values: Mapping[str, Mapping[int, float]]
    same_plan: Mapping[str, str]
    """Arms with the plan of another, whose spread they share: the control has the baseline's."""

    def plan_of(self, arm: str) -> str:
        return self.same_plan.get(arm, arm)

    def scaled(self, factor: float) -> Groups:
        """Return the groups in another unit; a power of two changes no digit."""
        scaled = {arm: {seed: factor * one for seed, one in of.items()} for arm, of in self.values.items()}
        return Groups(scaled, self.same_plan)

    @property
    def largest(self) -> float:
        return max((abs(value) for by_seed in self.values.values() for value in by_seed.values()), default=0.0)

    def without(self, seeds: Mapping[str, Iterable[int]]) -> Groups:
        """Return the groups without these seeds of these arms."""
        out = {arm: set(some) for arm, some in seeds.items()}
        kept = {
            arm: {seed: value for seed, value in by_seed.items() if seed not in out.get(arm, ())}
            for arm, by_seed in self.values.items()
        }
        return Groups(kept, self.same_plan)

    @cached_property
    def own(self) -> dict[str, Variance]:
        """Return the variance of each plan around the means of its arms; none of a plan with one run."""
        sets: dict[str, list[Sequence[float]]] = {}
        for arm, by_seed in self.values.items():
            if len(by_seed) > 1:
                sets.setdefault(self.plan_of(arm), []).append(list(by_seed.values()))
        return {plan: pool(Variance(stats.variance(one), len(one) - 1) for one in some) for plan, some in sets.items()}

    @cached_property
    def variances(self) -> dict[str, Variance]:
        """Return the variance of each plan, averaged with the shared one. Empty where no plan has two runs."""
        whole = pool(self.own.values())
        return {plan: self._shared(plan, whole) for plan in map(self.plan_of, self.values) if whole.freedom}

    def _shared(self, plan: str, whole: Variance) -> Variance:
        own = self.own.get(plan, Variance(0.0, 0.0))
        others = pool(one for name, one in self.own.items() if name != plan)
        if others.freedom and own.value > STANDS_OUT**2 * others.value:
            return Variance(own.value, own.freedom, stands_out=True)
        freedom = SHARED_FREEDOM + own.freedom
        return Variance((SHARED_FREEDOM * whole.value + own.freedom * own.value) / freedom, freedom)


def pool(variances: Iterable[Variance]) -> Variance:
    """Return the mean variance, weighted by the degrees of freedom; of none, zero with no degree of freedom."""
    known = list(variances)
    freedom = math.fsum(one.freedom for one in known)
    total = math.fsum(one.freedom * one.value for one in known)
    return Variance(total / freedom if freedom else 0.0, freedom)


@dataclass(frozen=True)
class Term:
    """A sum of arms' means at one resolution: 1 for the arm and -1 for the baseline, whose weight its runs share."""

    groups: Groups
    weights: Mapping[str, float]

    @property
    def first_mean(self) -> float:
        """Return the mean of the first arm."""
        return fmean(self.groups.values[next(iter(self.weights))].values())

    @property
    def second_mean(self) -> float:
        """Return the mean of what the first arm is compared with."""
        return self.first_mean - self.value / next(iter(self.weights.values()))

    @property
    def value(self) -> float:
        means = {arm: fmean(self.groups.values[arm].values()) for arm in self.weights}
        return math.fsum(weight * means[arm] for arm, weight in self.weights.items())

    def times(self, factor: float) -> Term:
        return Term(self.groups, {arm: factor * weight for arm, weight in self.weights.items()})

    def scaled(self, factor: float) -> Term:
        return Term(self.groups.scaled(factor), self.weights)

    @property
    def all_values(self) -> list[float]:
        return [value for arm in self.weights for value in self.groups.values[arm].values()]

    @property
    def fewest(self) -> int:
        """Return the seeds of the plan that has fewest. A control that lost runs takes none from the baseline."""
        most: dict[str, int] = {}
        for arm in self.weights:
            plan = self.groups.plan_of(arm)
            most[plan] = max(most.get(plan, 0), len(self.groups.values[arm]))
        return min(most.values())

    @property
    def stands_out(self) -> list[str]:
        """Return the arms whose spread is not the shared one."""
        variances = self.groups.variances
        plans = {arm: variances.get(self.groups.plan_of(arm)) for arm in self.weights}
        return [arm for arm, variance in plans.items() if variance is not None and variance.stands_out]

    def errors(self) -> list[Variance]:
        """Return the part of the squared standard error that comes from each plan."""
        parts: dict[str, float] = {}
        for arm, weight in self.weights.items():
            plan = self.groups.plan_of(arm)
            parts[plan] = parts.get(plan, 0.0) + weight * weight / len(self.groups.values[arm])
        known = self.groups.variances
        return [Variance(part * known[plan].value, known[plan].freedom) for plan, part in parts.items()]


def difference(terms: Sequence[Term], scale: float = 0.0) -> stats.Difference:
    """Return the sum of the terms with its standard error and Satterthwaite's degrees of freedom.

    Those are at most as many as all runs of the resolutions have: variances that share one are not independent.
    `scale` is that of `stats.rounding_of`.
    """
    value = math.fsum(term.value for term in terms)
    if not all(term.fewest > 1 for term in terms):
        return stats.Difference(value, None, None)
    parts = [part for term in terms for part in term.errors()]
    most = math.fsum(pool(term.groups.own.values()).freedom for term in terms)
    total = _sum(parts, most)
    if math.sqrt(total.value) <= stats.rounding_of((one for term in terms for one in term.all_values), scale):
        return stats.Difference(value, 0.0, most)
    return stats.Difference(value, math.sqrt(total.value), total.freedom)


def _sum(parts: Sequence[Variance], most: float) -> Variance:
    """Return the sum of variances with Satterthwaite's degrees of freedom, at most `most`."""
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
    return _sum([arm, baseline], (arms + sets) * (seeds - 1))


def against(groups: Groups, arm: str, baseline: Sequence[str]) -> Term:
    """Return the term of an arm against the baseline: all runs of its plan, those of the control too."""
    runs = sum(len(groups.values[one]) for one in baseline)
    shares = {one: -len(groups.values[one]) / runs for one in baseline if groups.values[one]}
    return Term(groups, {arm: 1.0, **shares})
