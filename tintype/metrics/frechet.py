"""Fréchet distance between Gaussians fitted to two sets of features, in float64.

The distance is |m_x - m_y|² + tr S_x + tr S_y - 2 tr (S_x S_y)^½. Let B be any factor with S_y = B Bᵀ. The trace tr
(S_x S_y)^½ is then the sum of the singular values of X B / √(N - 1), where X has the centred rows of the fake set. So B
is computed once per reference, and no general matrix root is needed. If there are fewer images than features, the
matrix is only as large as the number of images.

N: fake images, M: real images, F: size of a feature vector, K = min(M, F): number of columns of B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ReferenceSpread:
    """The factored covariance of the real features."""

    factor_FK: Tensor
    trace: float
    rank: int
    count: int


def reference_spread(centred_MF: Tensor) -> ReferenceSpread:
    count, size = centred_MF.shape
    trace = float(centred_MF.square().sum()) / (count - 1)
    return ReferenceSpread(_factor(centred_MF), trace, min(count - 1, size), count)


def _factor(centred_MF: Tensor) -> Tensor:
    """Return B such that B Bᵀ is the covariance: the rows if they are few, else Cholesky factors or eigenvectors."""
    count, size = centred_MF.shape
    if count <= size:
        return centred_MF.T / math.sqrt(count - 1)
    cov_FF = centred_MF.T @ centred_MF / (count - 1)
    factor_FF: Tensor
    factor_FF, failed = torch.linalg.cholesky_ex(cov_FF)
    if int(failed):
        eigenvalue_F, vector_FF = torch.linalg.eigh(cov_FF)
        factor_FF = vector_FF * eigenvalue_F.clamp_min(0).sqrt()
    return factor_FF


def distance(offset_NF: Tensor, projected_NK: Tensor, spread: ReferenceSpread) -> float:
    """Return the distance of fake features: given as offsets from the reference's mean, and as offsets times B."""
    shift_F = offset_NF.mean(0)
    trace = float((offset_NF - shift_F).square().sum()) / (len(offset_NF) - 1)
    root = float(_eigenvalues(projected_NK, spread).sqrt().sum())
    return float(shift_F.square().sum()) + trace + spread.trace - 2 * root


def _eigenvalues(projected_NK: Tensor, spread: ReferenceSpread) -> Tensor:
    """Return the eigenvalues of Bᵀ S_x B that can be nonzero.

    All other eigenvalues are rounding errors, with which the sum of the square roots would be too large.
    """
    wide_NK = projected_NK - projected_NK.mean(0)
    count, size = wide_NK.shape
    gram = (wide_NK @ wide_NK.T if count < size else wide_NK.T @ wide_NK) / (count - 1)
    eigenvalue: Tensor = torch.linalg.eigvalsh(gram)
    return eigenvalue[-min(count - 1, spread.rank) :].clamp_min(0)


@dataclass(frozen=True)
class FrechetFit:
    """The distance of a whole set, and its derivative by the weight of each image."""

    value: float
    influence_N: Tensor
    """The infinitesimal jackknife: the distance's derivative by each image's share of the weight, of mean zero."""
    bias: float
    """Expected distance between two samples of these sizes from the same Gaussian, which has this covariance."""


def fit(offset_NF: Tensor, projected_NK: Tensor, spread: ReferenceSpread) -> FrechetFit:
    """Fit a set with more images than features. The root of the covariances' product is then differentiable.

    d tr (BᵀSB)^½ = ½ tr ((BᵀSB)^-½ Bᵀ dS B). So an image at offset x from the fakes' mean contributes 2 (m_x - m_y)·x +
    |x|² - |(BᵀSB)^-¼ Bᵀx|², minus the mean of this expression over all images.
    """
    count = len(offset_NF)
    shift_F = offset_NF.mean(0)
    x_NF, wide_NK = offset_NF - shift_F, projected_NK - projected_NK.mean(0)
    square_N = x_NF.square().sum(1)
    value_K, vector_KK = torch.linalg.eigh(wide_NK.T @ wide_NK / (count - 1))
    kept = value_K > value_K[-1] * torch.finfo(value_K.dtype).eps * len(value_K)
    root_K = value_K[kept].sqrt()
    along_NK = wide_NK @ vector_KK[:, kept]
    influence_N = 2 * x_NF @ shift_F + square_N - (along_NK.square() / root_K).sum(1)
    trace = float(square_N.sum()) / (count - 1)
    value = float(shift_F.square().sum()) + trace + spread.trace - 2 * float(root_K.sum())
    bias = (1 / count + 1 / spread.count) * _bias_times_count(root_K)
    return FrechetFit(value, influence_N - influence_N.mean(), bias)


def _bias_times_count(variance_K: Tensor) -> float:
    """Return N times the distance between N samples and their own Gaussian, to first order in 1/N.

    The error of the mean contributes tr S / N. The error of the covariance has the mean square s_i s_j (1 + δ_ij) / N,
    and contributes ½ |dS_ij|² / (s_i + s_j), the Bures metric.
    """
    if not len(variance_K):
        return 0.0
    pair_KK = variance_K[:, None] * variance_K / (variance_K[:, None] + variance_K)
    return float(variance_K.sum() + (pair_KK.sum() + pair_KK.trace()) / 2)


def sampling_bias(offset_NF: Tensor, projected_NK: Tensor, real_MF: Tensor) -> float:
    """Return the bias of the distance for finite sets of fake and real images, to first order in 1/N and 1/M.

    Rows need not be Gaussian, since the errors of the covariances are estimated from the rows. Unlike the bias of a
    fit, the two sets may have different distributions.
    """
    x_NF = offset_NF - offset_NF.mean(0)
    fake = _bias_of_rows(x_NF, projected_NK - projected_NK.mean(0))
    return fake + _bias_of_rows(real_MF, real_MF @ _factor(x_NF))


def _bias_of_rows(x_NF: Tensor, projected_NK: Tensor) -> float:
    """Return one set's contribution to the bias, from its centred rows, also times the other set's factor.

    The mean contributes tr S / N. In the eigenbasis of Bᵀ S B, let y be the rows and r_i² the eigenvalues. In this
    basis, the error of a covariance entry has the variance var(y_i y_j) / N. The second derivative of -2 tr (Bᵀ S B)^½
    gives the squared error the factor 1 / (2 r_i r_j (r_i + r_j)). For Gaussian rows, the product is r_i r_j (1 + δ_ij)
    / (2 N (r_i + r_j)).
    """
    count = len(x_NF)
    value_K, vector_KK = torch.linalg.eigh(projected_NK.T @ projected_NK / (count - 1))
    kept = value_K > value_K[-1] * torch.finfo(value_K.dtype).eps * len(value_K)
    root_K = value_K[kept].sqrt()
    square_NK = (projected_NK @ vector_KK[:, kept]).square()
    variance_KK = (square_NK.T @ square_NK / count - value_K[kept].square().diag()) / count
    cost_KK = 1 / (2 * root_K[:, None] * root_K * (root_K[:, None] + root_K))
    return float(x_NF.square().sum()) / (count - 1) / count + float((variance_KK * cost_KK).sum())
