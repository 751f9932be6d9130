"""Weight averages of every kind. An update moves them towards the weights, alone or in the optimizer's pass.

A: averages of each weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tintype.runtime.layout import local


class Averages:
    """One or several averages of given weights. The optimizer can update them together with the weights."""

    def __init__(self, weights: Mapping[str, Tensor], averages: Sequence[Mapping[str, Tensor]]) -> None:
        self._weights = [local(weight.detach()) for weight in weights.values()]
        self._index = {id(weight): index for index, weight in enumerate(weights.values())}
        self._owners = list(weights.values())  # so that no other tensor comes to have the id of one
        self._averages = averages

    @property
    def _device(self) -> torch.device:
        return self._weights[0].device

    def update(self, skipped: Tensor) -> None:
        """Move the averages towards the weights. If `skipped` (a scalar on their device) is 1, change nothing."""
        self.begin(skipped).finish()

    @torch.no_grad()
    def begin(self, skipped: Tensor) -> Update:
        """Count an update and return it. The caller must apply it after the weights have changed."""
        moved = [[local(average) for average in one.values()] for one in self._averages]
        return Update(self._shares(1 - skipped), self._weights, self._index, moved)

    def _shares(self, taken: Tensor) -> list[Tensor]:
        """Count an update if `taken` is 1. Return the fraction by which each average moves, or else 0."""
        raise NotImplementedError


class Update:
    """An update of which the optimizer takes the averages that it moves in its own pass; `finish` moves all others."""

    def __init__(
        self,
        shares: Sequence[Tensor],
        weights: Sequence[Tensor],
        index: Mapping[int, int],
        averages: Sequence[Sequence[Tensor]],
    ) -> None:
        self.shares = shares
        self._weights, self._index, self._averages = weights, index, averages
        self._taken = set[int]()

    def take(self, weight: Tensor) -> list[Tensor]:
        """Return the averages of a weight; empty if it has none. The caller must then move these averages."""
        index = self._index.get(id(weight))
        if index is None:
            return []
        self._taken.add(index)
        return [averages[index] for averages in self._averages]

    @torch.no_grad()
    def finish(self) -> None:
        """Move the averages that were not taken."""
        left = [index for index in range(len(self._weights)) if index not in self._taken]
        if not left:
            return
        weights = [self._weights[index].float() for index in left]
        for share, all_averages in zip(self.shares, self._averages, strict=True):
            averages = [all_averages[index] for index in left]
            step = torch._foreach_sub(weights, averages)
            torch._foreach_mul_(step, share)
            torch._foreach_add_(averages, step)
