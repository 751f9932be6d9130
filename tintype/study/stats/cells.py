"""The values of one metric by arm and seed, on the scale on which they are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Literal

from tintype.study.stats.spread import Variance, pool, shared_variances, variance

_LARGEST_LOG = 600.0
"""Bound of a logarithm: an interval of two seeds can reach beyond what a float holds."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Scale:
    """The map from a metric's unit to the scale of comparison, and back."""

    kind: Literal["raw", "log", "ratio"] = "raw"
    """Values, their logarithms, or logarithms that are reported as they are: those of ratios have no unit."""
    unit: float = 1.0
    """Raw values are divided by it. Squares of huge values overflow and those of tiny ones vanish."""

    def place(self, value: float) -> float:
        """Return a value on the scale."""
        return value / self.unit if self.kind == "raw" else math.log(value)

    def value(self, place: float) -> float:
        """Return a value in the metric's unit."""
        return math.exp(place) if self.kind == "log" else self.unit * place

    def difference(self, place: float, change: float) -> float:
        """Return a change from a place in the metric's unit."""
        if self.kind == "log":
            return math.exp(place) * math.expm1(min(change, _LARGEST_LOG))
        return self.unit * change

    def change(self, place: float, difference: float) -> float:
        """Return the change from a place that is a difference in the metric's unit."""
        return math.log1p(difference / math.exp(place)) if self.kind == "log" else difference / self.unit


RAW, LOG, RATIO = Scale(), Scale("log"), Scale("ratio")


def raw_scale(values: Iterable[float]) -> Scale:
    """Return the scale in units of the largest value's power of two, which changes no digit."""
    largest = max(map(abs, values), default=0.0)
    return Scale("raw", 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0)


def scale_for(kind: Literal["raw", "log", "logit"], sets: Iterable[Sequence[float]]) -> Scale:
    """Return the scale of a metric for these sets of values, one for each arm.

    A logarithm needs positive values. Others, and shares, are compared raw.
    """
    every = [value for values in sets for value in values]
    return LOG if kind == "log" and all(value > 0 for value in every) else raw_scale(every)


@dataclass(frozen=True)
class Cells:
    """The values of one metric, by arm and seed, on a scale."""

    values: Mapping[str, Mapping[int, float]]
    scale: Scale = RAW
    plans: Mapping[str, str] = field(default_factory=dict)
    """Arms with the plan of another arm, as the control has the baseline's: they share its spread."""
    blocks: Mapping[str, str] = field(default_factory=dict)
    """The resolution of each arm, where there are several: spreads are shared within one."""
    collapsed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Seeds of collapsed runs, which `values` leave out, by arm."""

    def plan_of(self, arm: str) -> str:
        return self.plans.get(arm, arm)

    def block_of(self, arm: str) -> str:
        return self.blocks.get(arm, "")

    def mean(self, arm: str) -> float:
        return fmean(self.values[arm].values())

    def mean_of_plan(self, arm: str) -> float:
        """Return the mean over all runs of an arm's plan."""
        plan = self.plan_of(arm)
        return fmean(value for one, of in self.values.items() if self.plan_of(one) == plan for value in of.values())

    def seeds(self, arm: str) -> int:
        return len(self.values.get(arm, ()))

    def without(self, seeds: Mapping[str, Iterable[int]]) -> Cells:
        """Return the cells without these seeds of these arms."""
        out = {arm: set(some) for arm, some in seeds.items()}
        kept = {
            arm: {seed: value for seed, value in by_seed.items() if seed not in out.get(arm, ())}
            for arm, by_seed in self.values.items()
        }
        return replace(self, values=kept)

    @cached_property
    def own(self) -> dict[str, dict[str, Variance]]:
        """Return the variance of each plan around the means of its arms, by block; none of a plan with one run."""
        found: dict[str, dict[str, list[Variance]]] = {self.block_of(arm): {} for arm in self.values}
        for arm, by_seed in self.values.items():
            if len(by_seed) > 1:
                one = Variance(variance(list(by_seed.values())), len(by_seed) - 1)
                found[self.block_of(arm)].setdefault(self.plan_of(arm), []).append(one)
        return {block: {plan: pool(some) for plan, some in of.items()} for block, of in found.items()}

    @cached_property
    def variances(self) -> dict[str, Variance]:
        """Return the variance of each plan, shared within its block; none where no plan of the block has two runs."""
        plans: dict[str, dict[str, None]] = {}
        for arm in self.values:
            plans.setdefault(self.block_of(arm), {})[self.plan_of(arm)] = None
        found = [shared_variances(own, plans[block]) for block, own in self.own.items()]
        return {plan: one for of_block in found for plan, one in of_block.items()}

    def rounding(self, arms: Iterable[str]) -> float:
        """Return how large an error between these arms can come from rounding alone."""
        values = (abs(value) for arm in arms for value in self.values[arm].values())
        return _ROUNDING * max(0.0 if self.scale.kind == "raw" else 1.0, max(values, default=0.0))


def rounding_of(values: Iterable[float], scale: float = 0.0) -> float:
    """Return how large an error between these values can come from rounding alone.

    `scale` is for values that were made from larger ones: a logarithm is as wrong as its ratio, however small it is.
    """
    return _ROUNDING * max(scale, float(max(map(abs, values), default=0.0)))
