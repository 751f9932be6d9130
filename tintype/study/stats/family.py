"""Divide a study's error among the family of its comparisons, and among its interim analyses (looks).

A study makes many comparisons, and the chance of any false verdict in the whole study is at most 5%. The comparisons on
the primary metrics share four fifths of this error equally, and those on all other metrics share one fifth. The shares
depend on the comparisons that the study planned, whether measured or not. The module `tintype.study.looks` explains why
each interim analysis has its own share.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tintype.study.stats.contrast import Key
from tintype.study.stats.estimate import CONFIDENCE

PRIMARY_SHARE = 0.8
"""Fraction of the study's 5% error that the comparisons on primary metrics share."""
FIRST_SHARE = 0.8
"""Fraction of the error that the first analysis of a study with fixed seeds spends."""


UNSTABLE = 0.02
"""Probability that a study calls any arm unstable by chance; this error is in addition to the study's 5%."""


@dataclass(frozen=True)
class Counts:
    """Numbers of comparisons of a study, on its primary metrics and on all other metrics."""

    primary: int
    others: int

    @property
    def all(self) -> int:
        return self.primary + self.others

    def weight(self, primary: bool) -> float:
        """Return each comparison's share of the study's 5% error; all are equal if there is one kind of metric."""
        share = PRIMARY_SHARE if primary else 1 - PRIMARY_SHARE
        return (share if self.primary and self.others else 1.0) / (self.primary if primary else self.others)


def counts_of(keys: Collection[Key], primary: Collection[str]) -> Counts:
    asked = sum(key.metric in primary for key in keys)
    return Counts(asked, len(keys) - asked)


def weights_of(keys: Collection[Key], primary: Collection[str]) -> dict[Key, float]:
    """Return the share of the study's 5% error of each planned comparison; the shares sum to one."""
    counts = counts_of(keys, primary)
    return {key: counts.weight(key.metric in primary) for key in keys}


def confidence_of(weight: float) -> float:
    """Return one minus the level of a comparison with this share of the study's 5% error."""
    return round(1 - (1 - CONFIDENCE) * weight, 12)


def planned_shares(seeds: Sequence[int]) -> list[float]:
    """Return the share of each planned interim analysis, in proportion to its seeds; the shares sum to one."""
    return [count / sum(seeds) for count in seeds]


def unplanned_shares(looks: int) -> list[float]:
    """Return the share of each unplanned analysis; the first gets 80% of the error, and others half of the rest."""
    shares, left = list[float](), 1.0
    for number in range(looks):
        shares.append(FIRST_SHARE if number == 0 else left / 2)
        left -= shares[-1]
    return shares
