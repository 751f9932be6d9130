"""Fréchet distance between Gaussians fitted to two sets of features, in float64.

N: images, F: size of a feature vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.seams import Direction


@dataclass(frozen=True)
class FrechetDistance:
    name: str
    direction: Direction = "lower"
    definition: str = (
        "|m1 - m2|² + tr(S1 + S2 - 2 (S1^½ S2 S1^½)^½) of the means m and covariances S (divided by N - 1) of the "
        "features, in float64 with symmetric eigenvalues; biased upwards for small N, equally in all arms"
    )

    def __call__(self, fake_NF: Tensor, real_NF: Tensor) -> float:
        return frechet(*moments(fake_NF), *moments(real_NF))


def moments(feature_NF: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance."""
    if len(feature_NF) < 2:
        raise ValueError("a covariance needs at least two images")
    wide = feature_NF.double()
    return wide.mean(0), torch.cov(wide.T).reshape(wide.shape[1], wide.shape[1])


def frechet(mean_1: Tensor, cov_1: Tensor, mean_2: Tensor, cov_2: Tensor) -> float:
    """The root's trace is the sum of the roots of the eigenvalues of S1^½ S2 S1^½: no general matrix root is taken."""
    root_1 = _root(cov_1)
    product = root_1 @ cov_2 @ root_1
    eigenvalues = torch.linalg.eigvalsh((product + product.T) / 2).clamp_min(0)
    distance = (mean_1 - mean_2).square().sum() + cov_1.trace() + cov_2.trace() - 2 * eigenvalues.sqrt().sum()
    return float(distance.clamp_min(0))


def _root(cov: Tensor) -> Tensor:
    eigenvalues, vectors = torch.linalg.eigh(cov)
    root: Tensor = (vectors * eigenvalues.clamp_min(0).sqrt()) @ vectors.T
    return root
