"""Shares of a study's 5% of error: how many comparisons it plans, and how much of the error each may spend."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tintype.study import results, stats
from tintype.study.pairs import Key

PRIMARY_SHARE = 0.8
"""The part of the study's 5% that the comparisons on primary metrics share."""


@dataclass(frozen=True)
class Counts:
    """Numbers of comparisons of a study, on its primary metrics and on all others."""

    primary: int
    others: int

    @property
    def all(self) -> int:
        return self.primary + self.others

    def weight(self, primary: bool) -> float:
        """Return each comparison's share of the study's 5%; the same for all where there is one kind only."""
        share = PRIMARY_SHARE if primary else 1 - PRIMARY_SHARE
        return (share if self.primary and self.others else 1.0) / (self.primary if primary else self.others)


def count_comparisons(
    arms: int,
    control: bool,
    resolutions: int,
    primary: Sequence[str],
    metrics: Collection[str],
    contrasts: int = 0,
) -> Counts:
    """Count the comparisons of a study. `arms` does not count the control.

    With several resolutions, each arm's trend over them is one more comparison for each primary metric; each of the
    `contrasts` between factorial arms is one for each primary metric, at each resolution.
    """
    asked = [metric for metric in primary if is_tested(metric)]
    other = [metric for metric in metrics if metric not in primary and is_tested(metric)]
    compared = resolutions * (arms + control)
    trends = arms if resolutions > 1 else 0
    return Counts((compared + trends + resolutions * contrasts) * len(asked), compared * len(other))


def trend_metrics(primary: Sequence[str]) -> list[str]:
    """Return the metrics that are compared between resolutions: the primary ones and the throughput."""
    return list(dict.fromkeys([*primary, results.SPEED]))


def weights_of(keys: Collection[Key], primary: Collection[str]) -> dict[Key, float]:
    """Return each comparison's share of the study's 5%; they sum to one. The keys are all planned comparisons."""
    counts = counts_of(keys, primary)
    return {key: counts.weight(key[1] in primary) for key in keys}


def counts_of(keys: Collection[Key], primary: Collection[str]) -> Counts:
    asked = sum(metric in primary for _, metric in keys)
    return Counts(asked, len(keys) - asked)


def is_tested(metric: str) -> bool:
    """Return whether a difference gets a verdict. The throughput's is measured: seeds are not what it depends on."""
    return metric != results.SPEED


def confidence_of(weight: float) -> float:
    """Return one minus the level of a comparison that has this share of the study's 5%."""
    return round(1 - (1 - stats.CONFIDENCE) * weight, 12)
