"""Copies from the host to a GPU, without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device. From pinned memory the copy waits in the GPU's queue, and the host does not."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
