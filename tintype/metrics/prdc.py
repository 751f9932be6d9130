"""Compute precision, recall (arXiv 1904.06991), density and coverage (arXiv 2002.09797) from nearest-neighbour balls.

The ball of an image reaches to the image's k-th nearest neighbour in its own set. Precision and recall count an image
on the edge of a ball as inside, as in their paper and code. Density and coverage count it as outside, as in their paper
and code. Distances that differ only by rounding count as equal. Otherwise the order of the images or the block size
could change the result.

N: fake images, M: real images, R: rows of a block (real images), K: nearest neighbours, G: groups left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.metrics.resample import GROUPS

PRECISION_NEIGHBOURS = 3
COVERAGE_NEIGHBOURS = 5
NEAREST = 16
"""Number of neighbours stored per fake image, enough to find the third neighbour if a group is left out."""
_TIE = 1e-10


@dataclass(frozen=True)
class Neighbours:
    """The nearest other images of the same set, the nearest first."""

    distance2_NK: Tensor
    index_NK: Tensor

    def radius2(self, k: int) -> Tensor:
        return self.distance2_NK[:, min(k, self.distance2_NK.shape[1]) - 1]

    def radius2_without(self, k: int, group_N: Tensor, group: int) -> Tensor:
        """Return the radii of the balls if a group of images is left out.

        Images of the group get negative radii, so their balls are empty. If fewer than k of an image's stored
        neighbours remain, its radius is the distance to the farthest stored neighbour.
        """
        remains_NK = group_N[self.index_NK] != group
        known_N = remains_NK.sum(1) >= k
        kth_N = (remains_NK & (remains_NK.cumsum(1) == k)).double().argmax(1).where(known_N, self.index_NK.shape[1] - 1)
        radius2_N = self.distance2_NK.gather(1, kth_N[:, None])[:, 0]
        return radius2_N.masked_fill(group_N == group, -1.0)


def nearest(distance2_RN: Tensor, count: int) -> tuple[Tensor, Tensor]:
    found = distance2_RN.topk(min(count, distance2_RN.shape[1] - 1), dim=1, largest=False)
    return found.values, found.indices


def within(distance2: Tensor, radius2: Tensor) -> Tensor:
    """Return whether the distance is at most the radius, so that the image is in the ball or on its edge."""
    return distance2 <= radius2 * (1 + _TIE)


def strictly_within(distance2: Tensor, radius2: Tensor) -> Tensor:
    return distance2 < radius2 * (1 - _TIE)


@dataclass(frozen=True)
class Membership:
    """The real balls that contain each fake image, and the shares of real images and real balls near fake images."""

    inside_N: Tensor
    """Whether the fake image is in any real ball with k = 3."""
    balls_N: Tensor
    """Number of real balls with k = 5 that contain the fake image."""
    recalled: float
    """Share of real images that are in a fake ball with k = 3."""
    covered: float
    """Share of real balls with k = 5 that contain a fake image."""
    recalled_left_out_G: Tensor
    covered_left_out_G: Tensor


class MembershipCount:
    """Builds a Membership from blocks. Each block has the distances from some real images to all fake images."""

    def __init__(self, real: Neighbours, fake: Neighbours, group_N: Tensor | None) -> None:
        count, device = len(fake.distance2_NK), fake.distance2_NK.device
        self._real_3, self._real_5 = real.radius2(PRECISION_NEIGHBOURS), real.radius2(COVERAGE_NEIGHBOURS)
        self._fake_3 = fake.radius2(PRECISION_NEIGHBOURS)
        self._group_N, self._without = group_N, list[Tensor]()
        if group_N is not None:
            self._without = [fake.radius2_without(PRECISION_NEIGHBOURS, group_N, group) for group in range(GROUPS)]
        self._inside_N = torch.zeros(count, dtype=torch.bool, device=device)
        self._balls_N = torch.zeros(count, dtype=torch.float64, device=device)
        self._recalled = torch.zeros(1 + len(self._without), dtype=torch.float64, device=device)
        self._covered = torch.zeros(1 + len(self._without), dtype=torch.float64, device=device)

    def add(self, rows: slice, distance2_RN: Tensor) -> None:
        self._inside_N |= within(distance2_RN, self._real_3[rows, None]).any(0)
        in_ball_RN = strictly_within(distance2_RN, self._real_5[rows, None])
        self._balls_N += in_ball_RN.sum(0)
        covered_R = in_ball_RN.any(1)
        self._covered[0] += covered_R.sum()
        self._recalled[0] += within(distance2_RN, self._fake_3).any(1).sum()
        for group, radius2_N in enumerate(self._without):
            self._recalled[1 + group] += within(distance2_RN, radius2_N).any(1).sum()
        if self._group_N is not None:
            self._covered[1:] += self._covered_without(in_ball_RN, self._group_N)

    def _covered_without(self, in_ball_RN: Tensor, group_N: Tensor) -> Tensor:
        """Count, for each group, the balls that still contain a fake image if this group is left out."""
        row, column = in_ball_RN.nonzero(as_tuple=True)
        count_RG = torch.zeros(len(in_ball_RN), GROUPS, dtype=torch.float64, device=in_ball_RN.device)
        count_RG.index_put_((row, group_N[column]), torch.ones_like(row, dtype=torch.float64), accumulate=True)
        return (count_RG.sum(1, keepdim=True) > count_RG).sum(0)

    def result(self) -> Membership:
        recalled, covered = self._recalled / len(self._real_3), self._covered / len(self._real_3)
        return Membership(
            self._inside_N, self._balls_N, float(recalled[0]), float(covered[0]), recalled[1:], covered[1:]
        )
