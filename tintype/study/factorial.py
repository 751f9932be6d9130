"""Make arms from combinations of factors, and contrasts that show whether the effects of factors add up.

With two or three factors, every combination of factors is an arm. With more factors, the arms are each factor alone,
all factors together, and all factors but one. So the number of arms grows linearly with the number of factors, not
exponentially.

A contrast is a weighted sum of the means of arms, with weights that sum to zero. The main effect of a factor is its
mean effect over all pairs of arms that differ only in this factor. An interaction is a combination's gain minus the sum
of its parts' gains, which is both - first - second + baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations as subsets

WHOLE = 3
"""Up to this number of factors, all combinations are arms."""

Chosen = tuple[int, ...]
"""Ascending indices of the factors in an arm; empty for the baseline."""


def combinations(factors: int) -> list[Chosen]:
    """Return the factors of each arm, with the smallest arms first."""
    every = range(factors)
    sizes = range(1, factors + 1) if factors <= WHOLE else sorted({1, factors - 1, factors})
    return [chosen for size in sizes for chosen in subsets(every, size)] if factors else []


@dataclass(frozen=True)
class FactorContrast:
    """A weighted sum of arms, which is either a main effect of one part or an interaction of two parts."""

    parts: tuple[str, ...]
    """Names of the combined arms; for a main effect, the name of the factor."""
    weights: dict[str, float]
    """Weights by the arms' names, which sum to zero. The name of the baseline is ''."""

    @property
    def name(self) -> str:
        return " × ".join(self.parts)

    @property
    def is_interaction(self) -> bool:
        return len(self.parts) > 1


def contrasts(labels: Sequence[str]) -> list[FactorContrast]:
    """Return main effects, then interactions of pairs (up to 3 factors) and of a factor with all others (from 3)."""
    arms = combinations(len(labels))
    names = {(): "", **{chosen: " + ".join(labels[index] for index in chosen) for chosen in arms}}
    found = [FactorContrast((labels[index],), _main_effect(index, names)) for index in range(len(labels))]
    return found + [_interaction(first, second, names) for first, second in _pairs(len(labels))]


def _main_effect(factor: int, names: dict[Chosen, str]) -> dict[str, float]:
    pairs = [
        (names[chosen], names[without])
        for chosen in names
        if factor in chosen and (without := tuple(index for index in chosen if index != factor)) in names
    ]
    return {name: sign / len(pairs) for pair in pairs for name, sign in zip(pair, (1.0, -1.0), strict=True)}


def _pairs(factors: int) -> list[tuple[Chosen, Chosen]]:
    """Return the two parts of each interaction, as tuples of factor indices."""
    every = tuple(range(factors))
    found: list[tuple[Chosen, Chosen]] = []
    if factors <= WHOLE:
        found += [((first,), (second,)) for first, second in subsets(every, 2)]
    if factors > 2:
        found += [((one,), tuple(index for index in every if index != one)) for one in every]
    return found


def _interaction(first: Chosen, second: Chosen, names: dict[Chosen, str]) -> FactorContrast:
    both = names[tuple(sorted(first + second))]
    parts = names[first], names[second]
    return FactorContrast(parts, {both: 1.0, parts[0]: -1.0, parts[1]: -1.0, "": 1.0})
