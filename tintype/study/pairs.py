"""The runs of an arm and of the baseline that one comparison is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tintype.study import results, spread, stats

Key = tuple[str, str]
"""(arm's label, metric)."""


@dataclass(frozen=True)
class Pair:
    """The values of one metric in an arm and in the baseline, seed by seed where the seeds are shared."""

    new: list[float]
    old: list[float]
    shared_seeds: bool
    complete: bool
    scale: float = 0.0
    """See `stats.rounding_of`."""
    loss: results.Loss = "incomplete"
    """Why seeds are missing where the comparison is not complete."""
    lost: str = ""
    """See `Comparison.lost`."""
    terms: tuple[spread.Term, ...] = ()
    """The means that the shared method compares, the arm's first; by default those of the two sets of runs."""
    log: bool = False
    """Whether the terms are of logarithms."""
    level: float | None = None
    """The baseline's mean on the scale of the terms, for those of more than two arms; else it follows from them."""
    fallen: tuple[int, ...] = ()
    """See `Comparison.fallen`."""
    baseline_fallen: tuple[int, ...] = ()
    """See `Comparison.baseline_fallen`."""

    @property
    def rounding(self) -> float:
        return stats.rounding_of([*self.new, *self.old], self.scale)

    @property
    def same(self) -> bool:
        """Return whether the arm and the baseline have the same values, up to rounding."""
        return all(abs(one) <= self.rounding for one in self.per_seed)

    def in_unit(self) -> tuple[Pair, float]:
        """Return the pair scaled to values of size one, and the power of two that scales them back.

        Squares of huge values overflow and those of tiny ones vanish; a power of two changes no digit.
        """
        unit = unit_of(max(map(abs, (*self.new, *self.old))))
        new, old = ([value / unit for value in values] for values in (self.new, self.old))
        return replace(self, new=new, old=old, scale=self.scale / unit), unit

    @property
    def per_seed(self) -> list[float]:
        """Return one difference for each seed; without pairs, from the baseline's mean."""
        partners = self.old if self.shared_seeds else [fmean(self.old)] * len(self.new)
        return [new - old for new, old in zip(self.new, partners, strict=True)]


def unit_of(largest: float) -> float:
    """Return the power of two that scales values of this size to one."""
    return 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0


def pair_runs(new: Sequence[results.Run], old: Sequence[results.Run], metric: str, shared_seeds: bool) -> Pair:
    """Pair the values of an arm's and the baseline's runs; a run without a value is left out with its partner.

    An arm may have fewer seeds than the baseline. The control has other ones, and is paired by their order.
    """
    partners = (
        {run.seed: run for run in old} if shared_seeds else dict(zip((run.seed for run in new), old, strict=False))
    )
    old = [partners[run.seed] for run in new if run.seed in partners]
    new = [run for run in new if run.seed in partners]
    values = [(a.metrics.get(metric, math.nan), b.metrics.get(metric, math.nan)) for a, b in zip(new, old, strict=True)]
    good = [(a, b) for a, b in values if math.isfinite(a) and math.isfinite(b)]
    return Pair(
        [a for a, _ in good],
        [b for _, b in good],
        shared_seeds,
        len(good) == len(values),
        loss=results.worst_loss([*new, *old], metric) or "incomplete",
        lost=results.lost_words(metric, {"": new, "baseline": old}),
    )


def without_seeds(pair: Pair) -> results.Comparison:
    """Return the comparison of an arm that has no seed left to compare."""
    nothing = dict.fromkeys(("mean", "baseline_mean", "difference"), math.nan)
    return results.Comparison(**nothing, differences=[], verdict=pair.loss, lost=pair.lost)
