"""The densities from which training draws t, given by inverse distribution functions, without rejection sampling."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tintype.flow.part import TimePart
from tintype.flow.path import shift_time


class UniformTime(TimePart):
    """Uniform density of t, before the shift."""

    kind: Literal["uniform"] = "uniform"

    def quantile(self, value: Tensor, choice: Tensor) -> Tensor:
        lowest = float(self.unshifted_lowest())
        return shift_time(lowest + (1 - lowest) * value, self.shift)


class LogitNormalTime(TimePart):
    """Logit-normal density of t.

    t is the logistic function of a normal variable, shifted and restricted to t ≥ lowest.
    """

    kind: Literal["logit-normal"] = "logit-normal"

    def quantile(self, value: Tensor, choice: Tensor) -> Tensor:
        return logit_normal(self, value)


class MixtureTime(TimePart):
    """PRX's mixture of a logit-normal density and a uniform density. The uniform density is not shifted."""

    kind: Literal["mixture"] = "mixture"

    def quantile(self, value: Tensor, choice: Tensor) -> Tensor:
        plain = self.lowest + (1 - self.lowest) * value
        return torch.where(choice < self.uniform_share, plain, logit_normal(self, value))


def logit_normal(time: TimePart, value: Tensor) -> Tensor:
    mass_below = float(torch.special.ndtr((torch.logit(time.unshifted_lowest()) - time.mean) / time.std))
    quantile = (mass_below + (1 - mass_below) * value).clamp(1e-12, 1 - 1e-12)
    return shift_time(torch.sigmoid(time.mean + time.std * torch.special.ndtri(quantile)), time.shift)
