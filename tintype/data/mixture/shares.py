"""The number of images of each source in each batch: a pure function of the shares, in whole numbers.

A batch has its sources' shares to rounding, and what rounding takes from one batch it gives to a later one. The first
source (in the order of names) gets, up to the end of each step, the nearest whole number to the sum of its shares of
all batches so far; the second the nearest to the sum of its shares of what the first left over, and so on. Each count
is a rounded running sum of terms between nothing and what is left over, so no count ever falls, and a share of 0 is no
image and a share of 1 is all of them, exactly. Of two sources the count up to any step is within half an image of the
sum of the shares, of more within an image for each split.

The sums are of integers: they are the same on every machine, however long the run.

S: steps. B: images of a batch. N: sources.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from tintype.schedule import Schedule

_UNIT = 1 << 30
"""Shares are whole parts of this; the sum of 2^33 images' shares fits into 64 bits."""


class Share(Protocol):
    @property
    def schedule(self) -> Schedule: ...
    def share_at(self, step: int) -> float: ...


@lru_cache(maxsize=16)
def images_before(shares: tuple[Share, ...], batch: int, steps: int) -> Tensor:
    """Return the images of each source before each step, and after the last: int64 [S + 1, N]."""
    share_SN = torch.stack([_shares(share, steps) for share in shares], dim=1)
    nothing = (share_SN.sum(1) <= 0).nonzero()
    if len(nothing):
        raise ValueError(f"data: at step {int(nothing[0])} no source has a share; shares may change, not all be 0")
    left_S = torch.full((steps,), batch)
    counts: list[Tensor] = []
    for index in range(len(shares) - 1):
        of_rest_S = share_SN[:, index] / share_SN[:, index:].sum(1).clamp_min(1e-300)
        sum_S = ((of_rest_S * _UNIT).round().long() * left_S).cumsum(0)
        rounded_S = (sum_S + _UNIT // 2) // _UNIT
        counts.append(rounded_S.diff(prepend=torch.zeros(1, dtype=torch.int64)))
        left_S = left_S - counts[-1]
    count_SN = torch.stack([*counts, left_S], dim=1)
    return torch.cat([torch.zeros(1, len(shares), dtype=torch.int64), count_SN.cumsum(0)])


def _shares(share: Share, steps: int) -> Tensor:
    if share.schedule.kind == "constant":
        return torch.full((steps,), share.share_at(0), dtype=torch.float64)
    return torch.tensor([share.share_at(step) for step in range(steps)], dtype=torch.float64)


def dealt(before_SN: Tensor, slot_SB: Tensor) -> tuple[Tensor, Tensor]:
    """Return the source at each position of each batch, and the number of its image: int64 [S, B] twice.

    `before_SN` has the counts before each of these steps and after the last. `slot_SB` shuffles each batch: its slots
    are dealt out source by source, and the images of a source come in the order of their places.
    """
    count_SN = before_SN.diff(dim=0)
    source_SB = (slot_SB[:, :, None] >= count_SN.cumsum(1)[:, None, :]).sum(2)
    own_SBN = source_SB[:, :, None] == torch.arange(before_SN.shape[1])
    number_SBN = before_SN[:-1, None, :] + own_SBN.cumsum(1) - 1
    return source_SB, number_SBN.gather(2, source_SB[:, :, None])[:, :, 0]
