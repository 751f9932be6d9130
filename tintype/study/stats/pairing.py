"""Pair runs of the same seed if this narrows the interval, since an arm and the baseline with one seed share much of
their randomness.

The correlation of an arm's runs with baseline runs of the same seeds is estimated from residuals. So the choice to use
pairs does not depend on the difference of means. The correlation in one metric is averaged with the correlation in the
arm's other metrics, and shrunk towards zero. Residuals a and b are in units of their plans' standard deviations, and n
is the number of pairs:

    own     ρ = 2 Σab / (Σa² + Σb²), and the same ratio of sums over the arm's other metrics
    prior   F = min(4, (n - 1)(M - 1)) degrees of freedom for the others, M the effective number of metrics;
            less if a metric's own correlation is lower than theirs
    shrunk  ρ* = ρ³ / (ρ² + (1 - ρ²)² / (n - 1 + F))

Some baseline runs have no partner (runs of the control, and stored runs). These runs have the weight λ = N / (N + n) (1
- ρ* s_a / s_b) in the baseline's mean. With ρ* = 0, the result is the estimate without pairs. Pairs are used only if
they make the interval much narrower and the two spreads are similar. Using pairs more often would raise the rate of
false verdicts (docs/statistics.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from tintype.study.stats.cells import Cells, effective_count
from tintype.study.stats.contrast import against
from tintype.study.stats.estimate import CONFIDENCE, Estimate, estimate, t_quantile

FEWEST = 3
"""Smallest number of pairs for a correlation."""
PRIOR_FREEDOM = 4.0
"""Weight of the other metrics' correlation relative to a metric's own correlation, in degrees of freedom."""
NARROWER = 0.6
"""Pairs are used if the paired interval is narrower than this fraction of the unpaired interval."""
ALIKE = 4 / 3
"""Largest ratio of the two standard deviations for which pairs are used."""
_LARGEST = 0.999


@dataclass(frozen=True)
class Correlation:
    """The correlation of an arm with the baseline over shared seeds, in one metric."""

    value: float
    freedom: float
    """n - 1 for n pairs, plus the weight of the other metrics."""
    pairs: int

    @property
    def shrunk(self) -> float:
        found = min(max(self.value, 0.0), _LARGEST)
        return found**3 / (found**2 + (1 - self.value**2) ** 2 / self.freedom) if found else 0.0


def correlations(sheets: Mapping[str, Cells], arm: str, baseline: str) -> dict[str, Correlation]:
    """Return the correlation of an arm with the baseline, for each of these metrics that has enough pairs."""
    products, squares, pairs = dict[str, float](), dict[str, float](), dict[str, int]()
    for metric, cells in sheets.items():
        seeds = [seed for seed in cells.values.get(arm, ()) if seed in cells.values.get(baseline, ())]
        if len(seeds) < FEWEST:
            continue
        new, old = (
            cells.residuals(one, seeds) / (math.sqrt(cells.variance(one).value) or 1.0) for one in (arm, baseline)
        )
        if (square := float((new**2).sum() + (old**2).sum())) > 0:
            products[metric], squares[metric], pairs[metric] = 2 * float((new * old).sum()), square, len(seeds)
    if not products:
        return {}
    effective = effective_count([sheets[metric] for metric in products])
    found = {}
    for metric, square in squares.items():
        own, others = products[metric] / square, math.fsum(squares.values()) - square
        prior, pooled, free = 0.0, 0.0, pairs[metric] - 1
        if others > 0:
            pooled = (math.fsum(products.values()) - products[metric]) / others
            prior = min(PRIOR_FREEDOM, free * (effective - 1)) * min(1.0, (1 - pooled) / max(1 - own, 1e-9))
        freedom = free + prior
        found[metric] = Correlation((free * own + prior * pooled) / freedom, freedom, pairs[metric])
    return found


def estimate_arm(
    cells: Cells, arm: str, baseline: str, level: float = CONFIDENCE, correlation: Correlation | None = None
) -> Estimate:
    """Estimate an arm minus the baseline, with pairs if they make the interval much narrower."""
    plain = estimate(cells, against(arm, baseline), level)
    if correlation is None or correlation.pairs < cells.seeds(arm) or not plain.error or plain.freedom is None:
        return plain
    new, old = (math.sqrt(cells.variance(one).value) for one in (arm, baseline))
    if not 1 / ALIKE <= new / old <= ALIKE:
        return plain
    paired = _paired(cells, arm, baseline, correlation, plain)
    assert paired.error is not None and paired.freedom is not None
    narrow, wide = (
        error * t_quantile(freedom, level)
        for error, freedom in ((paired.error, paired.freedom), (plain.error, plain.freedom))
    )
    return paired if narrow < NARROWER * wide else plain


def _paired(cells: Cells, arm: str, baseline: str, correlation: Correlation, plain: Estimate) -> Estimate:
    assert plain.freedom is not None
    seeds, shared = list(cells.values[arm]), correlation.shrunk
    alike = [one for one in cells.values if one != arm and cells.plan_of(one) == cells.plan_of(baseline)]
    rest = [
        value
        for one in alike
        for seed, value in cells.values[one].items()
        if one != baseline or seed not in cells.values[arm]
    ]
    new, old = (math.sqrt(cells.variance(one).value) for one in (arm, baseline))
    weight = min(max(len(rest) / (len(rest) + len(seeds)) * (1 - shared * new / old), 0.0), 1.0) if rest else 0.0
    kept = (1 - weight) * old
    before = (1 - weight) * fmean(cells.values[baseline][seed] for seed in seeds) + (
        weight * fmean(rest) if weight else 0.0
    )
    squared = (new**2 + kept**2 - 2 * shared * new * kept) / len(seeds)
    third = (shared**1.5 * (new - kept) ** 3 + (1 - shared) ** 1.5 * (new**3 - kept**3)) / len(seeds) ** 2
    if weight:
        squared += (weight * old) ** 2 / len(rest)
        third -= (weight * old) ** 3 / len(rest) ** 2
    return replace(
        plain,
        value=cells.mean(arm) - before,
        old=before,
        error=math.sqrt(squared),
        freedom=1 / ((1 - shared) / plain.freedom + shared / correlation.freedom),
        skewness=cells.spreads[cells.block_of(arm)].skewness * third / squared**1.5,
        correlation=shared,
    )
