"""Maximum mean discrepancies between two sets of features, unbiased, in float64.

The unbiased estimate is near zero, and may be a little below it, when both sets come from one distribution.

N, M: images, F: size of a feature vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.seams import Direction


@dataclass(frozen=True)
class KernelDistance:
    """KID's kernel (arXiv 1801.01401) on any features."""

    name: str
    direction: Direction = "lower"
    definition: str = (
        "unbiased squared MMD with the kernel (x·y / F + 1)³ over all pairs of the N fake and M real images "
        "(no subsets), in float64"
    )

    def __call__(self, fake_NF: Tensor, real_NF: Tensor) -> float:
        fake, real = fake_NF.double(), real_NF.double()
        size = fake.shape[1]
        return unbiased_mmd(*((a @ b.T / size + 1) ** 3 for a, b in ((fake, fake), (real, real), (fake, real))))


@dataclass(frozen=True)
class GaussianMMD:
    """A Gaussian kernel as wide as the real features are apart, so that loss of diversity is seen too."""

    name: str
    direction: Direction = "lower"
    definition: str = (
        "unbiased squared MMD × 1000 with the kernel exp(-|x - y|² / 2σ²), σ the median distance between real images, "
        "in float64"
    )

    def __call__(self, fake_NF: Tensor, real_NF: Tensor) -> float:
        fake, real = fake_NF.double(), real_NF.double()
        real_distance = torch.cdist(real, real)
        upper = torch.triu_indices(len(real), len(real), 1, device=real.device)
        sigma = real_distance[upper[0], upper[1]].median()
        distances = (torch.cdist(fake, fake), real_distance, torch.cdist(fake, real))
        return 1000 * unbiased_mmd(*(torch.exp(-d.square() / (2 * sigma**2)) for d in distances))


def unbiased_mmd(k_NN: Tensor, k_MM: Tensor, k_NM: Tensor) -> float:
    """E k(x, x') + E k(y, y') - 2 E k(x, y), no image paired with itself."""
    return float(_mean_off_diagonal(k_NN) + _mean_off_diagonal(k_MM) - 2 * k_NM.mean())


def _mean_off_diagonal(k_NN: Tensor) -> Tensor:
    n = len(k_NN)
    return (k_NN.sum() - k_NN.trace()) / (n * (n - 1))
