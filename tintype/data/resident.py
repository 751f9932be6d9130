"""Keep a source's images in device memory after their first use.

B: images. C: channels. H, W: rows, columns. N: images of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tintype.runtime.transfer import send


class Resident:
    """Caches a source's images on the device. A function makes each image when it is first used."""

    def __init__(self, count: int, size_px: int, device: torch.device) -> None:
        self._device = device
        self._image_NCHW = torch.zeros(count, 3, size_px, size_px, dtype=torch.uint8, device=device)
        self.have_N = torch.zeros(count, dtype=torch.bool)

    def prepare(self, ids: Sequence[int], make: Callable[[Sequence[int]], Tensor]) -> None:
        index_B = torch.tensor(ids, dtype=torch.int64)
        missing = index_B[~self.have_N[index_B]].unique()
        if len(missing):
            self._image_NCHW[missing.to(self._device)] = make(missing.tolist())
            self.have_N[missing] = True

    def images(self, ids: Sequence[int], make: Callable[[Sequence[int]], Tensor]) -> Tensor:
        self.prepare(ids, make)
        return self._image_NCHW[send(torch.tensor(ids, dtype=torch.int64), self._device)]


def resident_bytes(count: int, size_px: int) -> int:
    return count * 3 * size_px * size_px
