"""Compute squared maximum mean discrepancies from sums of kernel values, also with each image left out in turn.

If both sets come from one distribution, the unbiased estimate is near zero, and may be slightly negative.

A discrepancy does not change when a constant is added to its kernel. This module subtracts 1 from each kernel. A
Gaussian kernel is then zero for equal images, and KID's kernel is zero for orthogonal images. The subtraction avoids
cancellation in the sums.

N: fake images, M: real images, F: size of a feature vector, R: rows of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

POLYNOMIAL, GAUSSIAN, UNIT = range(3)
UNIT_SIGMA = 10.0


def polynomial(dot_RM: Tensor, size: int) -> Tensor:
    """Return KID's kernel (arXiv 1801.01401), (x·y / F + 1)³ - 1."""
    a_RM = dot_RM / size
    return (a_RM + 3).mul_(a_RM).add_(3).mul_(a_RM)


def gaussian(distance2_RM: Tensor, sigma2: Tensor | float) -> Tensor:
    """Return exp(-|x - y|² / 2σ²) - 1."""
    return (distance2_RM / (-2 * sigma2)).expm1_()


def unit_gaussian(cosine_RM: Tensor) -> Tensor:
    """Return CMMD's kernel (arXiv 2401.09603), Gaussian for rows of unit length, where |x - y|² = 2 - 2 x·y."""
    return (cosine_RM - 1).div_(UNIT_SIGMA**2).expm1_()


@dataclass(frozen=True)
class KernelSums:
    """Sums of kernel values. `within_N` has, for each fake image, the sum over its pairs with all other fake images."""

    within_N: Tensor
    between_N: Tensor
    """For each fake image, the mean over the real images."""
    real_sum: float
    """Sum over all ordered pairs of different real images."""
    real_count: int

    def estimate(self, biased: bool = False) -> float:
        """Return E k(x, x') + E k(y, y') - 2 E k(x, y), without pairs of an image with itself.

        With `biased`, pairs of an image with itself are included. The kernel must then be zero for such pairs.
        """
        n, m = len(self.within_N), self.real_count
        own = float(self.within_N.sum()) / _pairs(n, biased) + self.real_sum / _pairs(m, biased)
        return own - 2 * float(self.between_N.mean())

    def left_out(self, biased: bool = False) -> Tensor:
        """Return the estimate without each fake image in turn, by subtracting the image's pairs from the sums."""
        n, m = len(self.within_N), self.real_count
        own_N = (self.within_N.sum() - 2 * self.within_N) / _pairs(n - 1, biased)
        between_N = (self.between_N.sum() - self.between_N) / (n - 1)
        return own_N + self.real_sum / _pairs(m, biased) - 2 * between_N


def _pairs(count: int, with_self: bool) -> int:
    return count**2 if with_self else count * (count - 1)
