"""Recognises steps whose loss or gradient norm is far above that of the steps before.

The last values stand on the device, so that the host does not wait, and are part of the state, so that a resumed run
decides as an uninterrupted one. A spike enters them as the limit that it exceeded: one widens the limit little, and a
loss that stays at a higher level (a larger image, a new loss term) is accepted after some steps.

Differs from OLMo-core's `SkipStepOptimizer`, which takes spikes in as they are and keeps the values out of the state.

W: steps of the window. V: values of a step, its loss and its gradient norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tintype.settings import SpikeSettings

_LEAST_SPREAD = 0.01
"""The deviation counts as at least this share of the mean: a loss that hardly moves has no spikes of a percent."""


class SpikeWindow:
    """Loss and gradient norm of the last steps that were finite."""

    def __init__(self, settings: SpikeSettings, device: torch.device) -> None:
        self.settings = settings
        self.value_VW = torch.zeros(2, settings.window, dtype=torch.float64, device=device)
        self.seen = torch.zeros((), dtype=torch.int64, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """All that it is: a checkpoint saves these and restores them in place."""
        return {"values": self.value_VW, "seen": self.seen}

    @torch.no_grad()
    def is_spike(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Return 1 where one of them is above its limit, else 0, and take them in.

        Nothing is a spike before half of the window is filled.
        """
        value_V = torch.stack([loss, grad_norm]).to(self.value_VW)
        limit_V, known = self._limits()
        spike = known & (value_V > limit_V).any()
        entry_V = torch.where(known, torch.minimum(value_V, limit_V), value_V)
        finite = value_V.isfinite().all()
        next_W = torch.arange(self.settings.window, device=self.seen.device) == self.seen % self.settings.window
        self.value_VW.copy_(torch.where(finite & next_W, entry_V[:, None], self.value_VW))
        self.seen += finite
        return spike.float()

    def _limits(self) -> tuple[Tensor, Tensor]:
        """The largest values that are no spikes, and whether enough steps were seen to know them."""
        window = self.settings.window
        count = self.seen.clamp_max(window)
        filled_W = torch.arange(window, device=count.device) < count
        mean_V = (self.value_VW * filled_W).sum(1) / count.clamp_min(1)
        square_VW = (self.value_VW - mean_V[:, None]).square() * filled_W
        spread_V = (square_VW.sum(1) / (count - 1).clamp_min(1)).sqrt()
        limit_V = mean_V + self.settings.deviations * torch.maximum(spread_V, _LEAST_SPREAD * mean_V.abs())
        return limit_V, 2 * count >= window
