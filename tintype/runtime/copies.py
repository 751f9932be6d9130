"""Lower-precision copies of weights for matrix products. A copy is cached, and is cast again when its weight changes.

A copy is fresh if its weight has the same address and version as at the time of the copy. Every in-place write by torch
raises the version, for example loading a checkpoint or swapping in the average. A kernel that bypasses torch does not
raise the version. Code with such a kernel must raise the version itself (`torch.autograd.graph.increment_version`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Copy:
    """A cast copy of a weight. The copy records the address and the version that the weight had when it was copied."""

    def __init__(self, weight: Tensor, values: Tensor) -> None:
        self.weight, self.values = weight, values
        self._made_from: tuple[int, int] | None = None

    @property
    def fresh(self) -> bool:
        return self._made_from == self._state()

    def mark_fresh(self) -> None:
        """Record that the copy has the current values of its weight."""
        self._made_from = self._state()

    def _state(self) -> tuple[int, int]:
        return self.weight.data_ptr(), self.weight._version


@torch.no_grad()
def cast(copies: Sequence[Copy]) -> None:
    torch._foreach_copy_([copy.values for copy in copies], [copy.weight for copy in copies])
