"""The exponential weight average, in fp32 whatever the weights are stored in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tintype.train.layout import local


class Ema:
    """Follows the weights that it is given; they are updated in place by the optimizer."""

    def __init__(self, decay: float, weights: Mapping[str, Tensor]) -> None:
        self.decay = decay
        self.average = {name: weight.detach().to(torch.float32, copy=True) for name, weight in weights.items()}
        self._weights = [local(weight.detach()) for weight in weights.values()]

    def tensors(self) -> dict[str, Tensor]:
        return self.average

    @torch.no_grad()
    def update(self, skipped: Tensor) -> None:
        """Moves the average towards the weights, unless `skipped` (a scalar on their device) is 1."""
        averages = [local(average) for average in self.average.values()]
        step = torch._foreach_sub([weight.float() for weight in self._weights], averages)
        torch._foreach_mul_(step, (1 - self.decay) * (1 - skipped))
        torch._foreach_add_(averages, step)
