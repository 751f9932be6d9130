"""The exponential weight average, in fp32 whatever the weights are stored in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Ema:
    def __init__(self, decay: float, weights: Mapping[str, Tensor]) -> None:
        self.decay = decay
        self.average = {name: weight.detach().to(torch.float32, copy=True) for name, weight in weights.items()}

    @torch.no_grad()
    def update(self, weights: Mapping[str, Tensor]) -> None:
        averages = list(self.average.values())
        current = [weights[name].detach().float() for name in self.average]
        torch._foreach_lerp_(averages, current, 1 - self.decay)
