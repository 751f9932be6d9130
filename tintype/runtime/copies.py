"""Copies of weights in a shorter type, as matrix products read them: made when a weight has changed, not in every pass.

A copy is fresh while its weight lies where it lay and has the version that it was made from. All that torch writes in
place raises the version: loading a checkpoint, taking the average to sample from. A kernel that writes past torch
raises it itself (`torch.autograd.graph.increment_version`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Copy:
    """The place of a weight's copy, and which state of the weight it has."""

    def __init__(self, weight: Tensor, values: Tensor) -> None:
        self.weight, self.values = weight, values
        self._made_from: tuple[int, int] | None = None

    @property
    def fresh(self) -> bool:
        """Return whether the copy has the weight's numbers of now."""
        return self._made_from == self._state()

    def mark_fresh(self) -> None:
        """Note that the copy was written from the weight as it is now."""
        self._made_from = self._state()

    def _state(self) -> tuple[int, int]:
        return self.weight.data_ptr(), self.weight._version


@torch.no_grad()
def cast(copies: Sequence[Copy]) -> None:
    """Write the copies from their weights."""
    torch._foreach_copy_([copy.values for copy in copies], [copy.weight for copy in copies])
