"""The exponential weight average, in fp32 regardless of the weights' dtype.

Update n moves the average towards the weights by a fraction w. With a fixed decay d, w is 1 - d, and the random initial
weights have a share of d^n in the average. For d = 0.999, this share is 55% after 600 updates. So by default the decay
is ramped:

    w = max(1 - d, 10 / (n + 9))

The first update copies the weights, so the initial weights never have a share. During the ramp, the weights of update k
have the share C(k + 8, 9) / C(n + 9, 10). The standard deviation of this profile is about 8% of the training so far.
From n = 10 / (1 - d) - 9 on, the decay is d. timm and diffusers ramp the decay as (1 + n) / (10 + n). This ramp of timm
and diffusers is one update later, so the first update keeps a tenth of the initial weights.

Adam's bias correction, w = (1 - d) / (1 - d^n), is not used here. With bias correction, the initial weights also have
no share. But while n is below 1 / (1 - d), the result is close to the plain mean of all weights so far, including those
of the first steps. Scene accuracy and validation loss were measured on `pocket` (600 steps, decay 0.999, one seed). Raw
weights reached 0.430 and 0.141, a fixed decay 0.245 and 0.697. Bias correction reached 0.383 and 0.182, and this ramp
0.429 and 0.141.

Differs: PRX has a fixed decay of 0.999 every 10 steps, beginning with the initial weights (`ramp=false, every=10`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from tintype.optim.averages import Averages
from tintype.optim.part import AverageSettings
from tintype.settings import PlanView

UPDATES = "updates"
"""Name of the tensor with the number of updates, among the tensors of an average."""
_RAMP = 10
"""Constant of the ramp. Update n moves the average by at least the fraction `_RAMP` / (n + `_RAMP` - 1)."""


class EmaSettings(AverageSettings):
    """An exponential weight average in fp32.

    These settings have no `kind`, so that plans from before there were other averages stay valid.
    """

    decay: float = Field(0.999, ge=0, lt=1, description="Decay: the share of the old average in each update")
    ramp: bool = Field(
        True,
        description="Whether the average starts from the first trained weights, with a low decay that rises to "
        "`decay`; if not, it starts from the initial weights, as PRX does",
    )
    every: int = Field(1, ge=1, description="Number of steps between two updates of the average")

    def check(self, plan: PlanView) -> None:
        if self.every > plan.train.steps:
            raise ValueError(
                f"ema.every is {self.every}, but the run has {plan.train.steps} steps (train.steps): the average would "
                "never be updated; lower ema.every"
            )

    def build(self, weights: Mapping[str, Tensor]) -> Ema:
        return Ema(self.decay, weights, ramp=self.ramp)

    def update_due(self, step: int) -> bool:
        return step % self.every == 0

    def init_share(self, steps: int) -> float:
        return 0.0 if self.ramp else self.decay ** (steps // self.every)

    def sampled(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the average, or before a ramp's first update nothing: sampling then uses the weights themselves."""
        if UPDATES in stored and not stored[UPDATES]:
            return {}
        return {name: tensor for name, tensor in stored.items() if name != UPDATES}


class Ema(Averages):
    """The average of given weights, which the optimizer can update.

    A ramp starts from zeros, so that the first update copies the weights exactly. The device counts the updates. So a
    skipped step is not counted, and the host does not wait.
    """

    def __init__(self, decay: float, weights: Mapping[str, Tensor], *, ramp: bool = True) -> None:
        self.decay = decay
        self.average = {
            name: torch.zeros_like(weight, dtype=torch.float32)
            if ramp
            else weight.detach().to(torch.float32, copy=True)
            for name, weight in weights.items()
        }
        super().__init__(weights, [self.average])
        self.updates = torch.zeros((), dtype=torch.int64, device=self._device) if ramp else None

    def tensors(self) -> dict[str, Tensor]:
        return self.average if self.updates is None else {UPDATES: self.updates, **self.average}

    def _shares(self, taken: Tensor) -> list[Tensor]:
        if self.updates is None:
            return [(1 - self.decay) * taken]
        self.updates += taken.long()
        ramp = _RAMP / (self.updates.double() + (_RAMP - 1))
        return [(ramp.clamp_min(1 - self.decay) * taken).float()]
