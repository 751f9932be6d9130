"""The mathematics of power-function averages (EDM2, arXiv 2312.02696, section 3), in float64.

After T updates, update t has the weight p(t) = (γ + 1) t^γ / T^(γ + 1) in the average, for t in [0, T]. p is called the
profile. The profile's standard deviation is the same share of T for every T. The share is called the *length* of the
average:

    length² = (γ + 1) / ((γ + 2)² (γ + 3)).

With the decay (1 - 1/t)^(γ + 1) at update t, the length is exact, and not only true in the limit. Update k has the
weight (k^(γ + 1) - (k - 1)^(γ + 1)) / T^(γ + 1), which is p's integral over [k - 1, k].

A profile of another length is approximated by stored profiles, with least squares in L2. All inner products have a
closed form.

P: stored profiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

LONGEST = 1 / math.sqrt(12)
"""Length of the plain mean (γ = 0). With a greater length, early weights would have more weight than late weights."""


@lru_cache(maxsize=256)
def exponent(length: float) -> float:
    """Return γ, the largest real root of γ³ + 7γ² + (16 - s⁻²)γ + (12 - s⁻²) = 0, for a length s below LONGEST.

    The signs of the coefficients change only once, so there is one positive root. The root is below 1/s.
    """
    if not 0 < length < LONGEST:
        raise ValueError(
            f"the length of an average must lie between 0 and {LONGEST:.4f} (the plain mean), but is {length:g}"
        )
    inverse = length**-2
    root = brentq(lambda g: ((g + 7) * g + 16 - inverse) * g + 12 - inverse, 0.0, 1 / length, xtol=1e-14, rtol=1e-15)
    return float(root)


@dataclass(frozen=True)
class Profile:
    """Weights of past updates in an average of this length after `updates` updates."""

    length: float
    updates: int


@dataclass(frozen=True)
class Mixture:
    """Weights of stored profiles that approximate another profile, and the residual relative to that profile's norm."""

    weights: tuple[float, ...]
    residual: float


def fit(stored: Sequence[Profile], wanted: Profile) -> Mixture:
    """Return the least-squares fit whose weights sum to one. If the wanted profile is stored, return it exactly."""
    if wanted in stored:
        first = stored.index(wanted)
        return Mixture(tuple(float(index == first) for index in range(len(stored))), 0.0)
    product_PP = products(stored, stored)
    product_P = products(stored, [wanted])[:, 0]
    norm_P = np.sqrt(np.diagonal(product_PP))
    cosine_PP = product_PP / np.outer(norm_P, norm_P)
    # A profile that is stored twice, since all steps between were skipped, makes this singular.
    scaled_P = np.linalg.lstsq(cosine_PP, product_P / norm_P, rcond=None)[0]
    weight_P = scaled_P / norm_P
    weight_P = weight_P / weight_P.sum()
    whole = float(products([wanted], [wanted])[0, 0])
    missed = whole - 2 * weight_P @ product_P + weight_P @ product_PP @ weight_P
    return Mixture(tuple(weight_P.tolist()), math.sqrt(max(0.0, float(missed)) / whole))


def products(first: Sequence[Profile], second: Sequence[Profile]) -> NDArray[np.float64]:
    """Return ∫ p q dt = (γ + 1)(δ + 1) / (γ + δ + 1) · (T / U)^δ / U for each pair.

    p has the exponent γ and ends at T. q has the exponent δ and ends at U ≥ T.
    """
    gamma, end = (column[:, None] for column in _columns(first))
    delta, last = (column[None, :] for column in _columns(second))
    earlier, later = np.minimum(end, last), np.maximum(end, last)
    of_later = np.where(end <= last, delta, gamma)
    product: NDArray[np.float64] = (
        (gamma + 1) * (delta + 1) / (gamma + delta + 1) * (earlier / later) ** of_later / later
    )
    return product


def _columns(profiles: Sequence[Profile]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    gammas = np.array([exponent(profile.length) for profile in profiles], dtype=np.float64)
    return gammas, np.array([profile.updates for profile in profiles], dtype=np.float64)
