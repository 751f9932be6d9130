"""Numbers that are on their way from the GPU: the host goes on, and looks at them when they are there."""

from __future__ import annotations

import torch
from torch import Tensor


class Later:
    """A scalar tensor's value. Asking for it waits for the step that made it and for no later one."""

    def __init__(self, value: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._value = value.detach()
        if value.device.type == "cuda":
            self._value = torch.empty((), dtype=value.dtype, pin_memory=True)
            self._value.copy_(value.detach(), non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def __float__(self) -> float:
        if self._event is not None:
            self._event.synchronize()
        return float(self._value)
