"""Detect steps whose loss or gradient norm is far above the values of the last steps.

The last values stay on the device, so that the host does not wait. The values are part of the state, so that a resumed
run makes the same decisions as an uninterrupted run. In place of a spike, the window stores the limit that the spike
exceeded. So a single spike raises the limit only slightly. A loss that remains at a higher level (larger images, a new
loss term) is accepted after some steps.

OLMo-core's `SkipStepOptimizer` differs from this, since it stores spikes unchanged and keeps the values out of the
state.

Tensor dimensions are W (steps of the window) and V (values of a step, its loss and its gradient norm).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tintype.settings import SpikeSettings

_LEAST_SPREAD = 0.01
"""Smallest relative standard deviation, so that one percent is not a spike in a nearly constant loss."""


class SpikeWindow:
    def __init__(self, settings: SpikeSettings, device: torch.device) -> None:
        self.settings = settings
        self.value_VW = torch.zeros(2, settings.window, dtype=torch.float64, device=device)
        self.seen = torch.zeros((), dtype=torch.int64, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """Return the complete state of the window. A checkpoint saves these tensors and restores them in place."""
        return {"values": self.value_VW, "seen": self.seen}

    @torch.no_grad()
    def is_spike(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Store both values; return 1 if one is above its limit, else 0.

        Until half of the window is filled, no step counts as a spike.
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
        """Return the limits above which values count as spikes, and whether enough steps were seen."""
        window = self.settings.window
        count = self.seen.clamp_max(window)
        filled_W = torch.arange(window, device=count.device) < count
        mean_V = (self.value_VW * filled_W).sum(1) / count.clamp_min(1)
        square_VW = (self.value_VW - mean_V[:, None]).square() * filled_W
        spread_V = (square_VW.sum(1) / (count - 1).clamp_min(1)).sqrt()
        limit_V = mean_V + self.settings.deviations * torch.maximum(spread_V, _LEAST_SPREAD * mean_V.abs())
        return limit_V, 2 * count >= window
