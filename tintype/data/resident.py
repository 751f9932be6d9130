"""Images of a source that stay on the device once they were made.

B: images. C: channels. H, W: rows, columns. N: images of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tintype.runtime.transfer import send


class Resident:
    """`make` gives the images with some ids; each is made once, when it is first asked for."""

    def __init__(self, count: int, size_px: int, device: torch.device, make: Callable[[Sequence[int]], Tensor]) -> None:
        self._make, self._device = make, device
        self._image_NCHW = torch.zeros(count, 3, size_px, size_px, dtype=torch.uint8, device=device)
        self.have_N = torch.zeros(count, dtype=torch.bool)

    def prepare(self, ids: Sequence[int]) -> None:
        index_B = torch.tensor(ids, dtype=torch.int64)
        missing = index_B[~self.have_N[index_B]].unique()
        if len(missing):
            self._image_NCHW[missing.to(self._device)] = self._make(missing.tolist())
            self.have_N[missing] = True

    def images(self, ids: Sequence[int]) -> Tensor:
        self.prepare(ids)
        return self._image_NCHW[send(torch.tensor(ids, dtype=torch.int64), self._device)]


def resident_bytes(count: int, size_px: int) -> int:
    return count * 3 * size_px * size_px
