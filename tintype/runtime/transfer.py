"""Copies between the host and a GPU, without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device. From pinned memory the copy waits in the GPU's queue, and the host does not."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class PendingNumbers:
    """Values of a small tensor. Reading them waits for the step that made them and for no later one."""

    def __init__(self, value: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._value = value.detach()
        if value.device.type == "cuda":
            self._value = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._value.copy_(value.detach(), non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def numbers(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        found: list[float] = self._value.tolist()
        return found
