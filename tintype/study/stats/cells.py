"""Store the values of one metric by arm and seed, on the scale on which the values are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tintype.study.stats.spread import LEAST_FREEDOM, Spread, Variance, alike_freedom, pool, spread_of, variance

Array = NDArray[np.float64]
ScaleKind = Literal["raw", "log", "logit", "asinh", "ratio"]
_LARGEST_LOG = 600.0
"""Bound on a logarithm, since an interval from two seeds can exceed the range of a float."""
_ROUNDING = 1e-12
PAD = 0.0005
"""Continuity correction of a fraction that was counted in a thousand images, which is half of one image."""


@dataclass(frozen=True)
class Scale:
    """A map from a metric's unit to the scale of comparison, and its inverse.

    - raw: the values.
    - log: for distances and losses, whose spread grows with their size.
    - logit: for fractions, with the continuity correction log((x + pad) / (1 + pad - x)). Outside of [0, 1], the scale
      continues along its tangent, since a fraction that is corrected for chance can lie there.
    - asinh: for unbiased estimates of a distance, which can be below zero. asinh(x / unit) is linear within a unit of
      zero, and logarithmic far from it.
    - ratio: for logarithms of ratios, which are reported unchanged.
    """

    kind: ScaleKind = "raw"
    unit: float = 1.0
    """Unit of raw values (which prevents overflow of squares) and of asinh; for logit, the continuity correction."""

    def place(self, value: float) -> float:
        """Convert a value to the scale."""
        if self.kind == "raw":
            return value / self.unit
        if self.kind == "asinh":
            return math.asinh(value / self.unit)
        if self.kind == "logit":
            within = min(max(value, 0.0), 1.0)
            return math.log((within + self.unit) / (1 + self.unit - within)) + (value - within) * self._slope
        return math.log(value)

    def value(self, place: float) -> float:
        """Convert a value on the scale to the metric's unit."""
        if self.kind == "log":
            return math.exp(min(place, _LARGEST_LOG))
        if self.kind == "asinh":
            return self.unit * math.sinh(min(max(place, -_LARGEST_LOG), _LARGEST_LOG))
        if self.kind == "logit":
            end = math.log((1 + self.unit) / self.unit)
            within = min(max(place, -end), end)
            share = (1 + 2 * self.unit) / (1 + math.exp(-within)) - self.unit
            return share + (place - within) / self._slope
        return self.unit * place

    @property
    def _slope(self) -> float:
        """Return the slope of the logit scale at 0 and at 1."""
        return (1 + 2 * self.unit) / (self.unit * (1 + self.unit))

    def difference(self, place: float, change: float) -> float:
        """Convert a change from a place on the scale to the metric's unit."""
        if self.kind == "log":
            return math.exp(place) * math.expm1(min(change, _LARGEST_LOG))
        if self.kind in ("raw", "ratio"):
            return self.unit * change
        return self.value(place + change) - self.value(place)

    def size(self, place: float, change: float) -> float:
        """Convert a change on the scale to the metric's unit; return the larger of the upward and downward sizes."""
        return max(abs(self.difference(place, change)), abs(self.difference(place, -change)))

    def margin(self, place: float, size: float) -> float:
        """Convert a difference to a change on the scale; for a fraction, the smaller of both directions."""
        up = self.change(place, size)
        return min(up, -self.change(place, -size)) if self.kind == "logit" else up

    def change(self, place: float, difference: float) -> float:
        """Convert a difference in the metric's unit to a change from a place on the scale."""
        if self.kind == "log":
            return math.log1p(difference / math.exp(place))
        if self.kind in ("raw", "ratio"):
            return difference / self.unit
        return self.place(self.value(place) + difference) - place


RAW, LOG, RATIO = Scale(), Scale("log"), Scale("ratio")


def scale_for(kind: ScaleKind, sets: Iterable[Sequence[float]], pad: float = PAD) -> Scale:
    """Return the scale of a metric for these sets of values; each set belongs to an arm.

    If a value is not positive, logarithms become raw values. The unit of asinh is the median of the arms' deviations.
    """
    known = [list(values) for values in sets]
    every = [value for values in known for value in values]
    if kind == "logit":
        return Scale("logit", pad)
    if kind == "asinh":
        deviations = [math.sqrt(found) for one in known if len(one) > 1 and (found := variance(one))]
        if deviations:
            return Scale("asinh", median(deviations))
    if kind == "log" and all(value > 0 for value in every):
        return LOG
    largest = max(map(abs, every), default=0.0)
    return Scale("raw", 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0)


@dataclass(frozen=True)
class Cells:
    """The values of one metric, by arm and seed, on a scale."""

    values: Mapping[str, Mapping[int, float]]
    scale: Scale = RAW
    plans: Mapping[str, str] = field(default_factory=dict)
    """The arm with the same plan, such as the baseline for the control, by arm; both arms share one spread."""
    blocks: Mapping[str, str] = field(default_factory=dict)
    """The resolution of each arm, if there are several; arms of the same resolution share their spread."""
    collapsed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Seeds of collapsed runs by arm; these runs are not in `values`."""
    stored: int = 0
    """Number of baseline runs that come from other studies."""
    alike: float = LEAST_FREEDOM
    """Degrees of freedom of the shared spread: see `spread.alike_freedom`."""

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
        out = {arm: set(some) for arm, some in seeds.items()}
        kept = {
            arm: {seed: value for seed, value in by_seed.items() if seed not in out.get(arm, ())}
            for arm, by_seed in self.values.items()
        }
        return replace(self, values=kept)

    def own(self, block: str) -> dict[str, Variance]:
        """Return the variance of each plan in a block around its arms' means; plans with a single run are left out."""
        found: dict[str, list[Variance]] = {}
        for arm, by_seed in self.values.items():
            if len(by_seed) > 1 and self.block_of(arm) == block:
                one = Variance(variance(list(by_seed.values())), len(by_seed) - 1)
                found.setdefault(self.plan_of(arm), []).append(one)
        return {plan: pool(some) for plan, some in found.items()}

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        sets: dict[str, dict[str, list[list[float]]]] = {}
        for arm, by_seed in self.values.items():
            plans = sets.setdefault(self.block_of(arm), {})
            plans.setdefault(self.plan_of(arm), []).append(list(by_seed.values()))
        return {block: spread_of(of_block, self.alike, self.stored) for block, of_block in sets.items()}

    def variance(self, arm: str) -> Variance:
        """Return the variance of an arm's plan."""
        return self.spreads[self.block_of(arm)].variances[self.plan_of(arm)]

    def residuals(self, arm: str, seeds: Iterable[int]) -> Array:
        values = np.array([self.values[arm][seed] for seed in seeds])
        found: Array = values - values.mean()
        return found

    def rounding(self, arms: Iterable[str]) -> float:
        """Return the largest standard error of a comparison of these arms that rounding alone can cause."""
        values = (abs(value) for arm in arms for value in self.values[arm].values())
        return _ROUNDING * max(0.0 if self.scale.kind == "raw" else 1.0, max(values, default=0.0))


def rounding_of(values: Iterable[float], scale: float = 0.0) -> float:
    """Return the largest standard error of these values that rounding alone can cause.

    `scale` is the magnitude of the original numbers: a logarithm near zero has the rounding error of its ratio.
    """
    return _ROUNDING * max(scale, float(max(map(abs, values), default=0.0)))


def with_alike(sheets: Mapping[str, Cells]) -> dict[str, Cells]:
    """Return the cells of all metrics; together, the metrics determine the degrees of freedom of the shared spread."""
    blocks = {cells.block_of(arm) for cells in sheets.values() for arm in cells.values}
    own = [cells.own(block) for cells in sheets.values() for block in blocks]
    freedom = alike_freedom(own, effective_count(list(sheets.values())))
    return {metric: replace(cells, alike=freedom) for metric, cells in sheets.items()}


def effective_count(sheets: Sequence[Cells]) -> float:
    """Return the effective number of metrics: M² over the sum of squared correlations of M metrics' residuals."""
    seeds: dict[str, list[int]] = {}
    for arm in sorted(set.intersection(*(set(cells.values) for cells in sheets))):
        if shared := set.intersection(*(set(cells.values[arm]) for cells in sheets)):
            seeds[arm] = sorted(shared)
    if not seeds:
        return 1.0
    rows = np.zeros((len(sheets), sum(map(len, seeds.values()))))
    for row, cells in zip(rows, sheets, strict=True):
        parts = [cells.residuals(arm, of) for arm, of in seeds.items()]
        row[:] = np.concatenate([part / (part.std() or 1.0) for part in parts])
    norms = np.sqrt((rows**2).sum(1))
    norms[norms == 0] = 1.0
    return float(len(sheets) ** 2 / max(((rows @ rows.T / np.outer(norms, norms)) ** 2).sum(), 1e-300))
