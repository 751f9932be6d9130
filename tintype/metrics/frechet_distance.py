"""The Fréchet distance between features (FID), and its extrapolation to infinitely many images.

N: fake images, M: real images, F: size of a feature vector.
"""

from __future__ import annotations

from statistics import fmean, linear_regression

import torch

from tintype.errors import UserError
from tintype.metrics.metric import NOT_NEGATIVE, Measured, Metric
from tintype.metrics.pair import FeaturePair
from tintype.metrics.resample import BY_GROUPS, GROUPS, jackknife_error, mean_error

_BIAS_SHARE = 0.05
_SPLITS = 4
"""Number of random splits in the average. With one split, fd_inf varies by 20% to 50% of its sampling error."""
_FEWEST = 8
"""Minimum number of images. With it, each quarter has two images."""


def _fd(pair: FeaturePair) -> Measured:
    value = max(_whole_fd(pair), 0.0)
    return Measured(value, *_fd_error(pair), _fd_warnings(pair, value), bias=_fd_bias(pair))


def _whole_fd(pair: FeaturePair) -> float:
    return pair.frechet_fit.value if _differentiable(pair) else pair.frechet_of(slice(None))


def _differentiable(pair: FeaturePair) -> bool:
    """Return whether one image changes the distance so little that derivatives are accurate."""
    return pair.different >= 2 * min(pair.size, pair.reals)


def _fd_bias(pair: FeaturePair) -> float | None:
    """Return the bias; None if there are duplicates, or too few images for an expansion to first order in 1/N."""
    enough = min(pair.fakes, pair.reals) >= 2 * pair.size and pair.different == pair.fakes
    return pair.frechet_bias if enough else None


def _fd_error(pair: FeaturePair) -> tuple[float | None, str]:
    if _differentiable(pair):
        error = mean_error(pair.frechet_fit.influence_N, pair.copy_N)
        return error, "infinitesimal jackknife over the generated images"
    if pair.group is None:
        return None, ""
    left_out = [pair.frechet_of(pair.group != group) for group in range(GROUPS)]
    return jackknife_error(torch.tensor(left_out, dtype=torch.float64)), BY_GROUPS


def _fd_warnings(pair: FeaturePair, value: float) -> tuple[str, ...]:
    counts = (("fake", pair.different), ("real", pair.reals))
    few = [f"{count} {which}" for which, count in counts if count <= pair.size]
    if few:
        return (
            f"{' and '.join(few)} images give no full covariance of {pair.size} features: "
            "the distance is mostly that of small samples and can be compared at equal counts only",
        )
    bias = pair.frechet_fit.bias
    if bias <= _BIAS_SHARE * value:
        return ()
    return (
        f"about {bias:.3g} of the distance {value:.3g} would be there for perfect images too, "
        f"at {pair.fakes} fake and {pair.reals} real images; compare at equal counts only",
    )


def _fd_inf(pair: FeaturePair) -> Measured:
    """Extrapolate the distances of the whole set, its halves and its quarters to infinitely many images.

    Each image is in one half and one quarter of each split. So each image has the same weight in the intercept as in
    the distance of the whole set. To first order, both have the same error. The deviations of the points from the line
    come from the small sets, so they are a worse estimate of the intercept's error.
    """
    if pair.fakes < _FEWEST:
        raise UserError(
            f"fd_inf also uses quarters of the fake images, so it needs at least {_FEWEST} fake images; there "
            f"are {pair.fakes}"
        )
    inverse_count, values = [1 / pair.fakes], [_whole_fd(pair)]
    for count in (2, 4):
        inverse_count.append(count / pair.fakes)
        splits = [pair.parts(count, f"fd_inf {split}") for split in range(_SPLITS)]
        values.append(fmean(fmean(pair.frechet_of(part_N == part) for part in range(count)) for part_N in splits))
    warning = (
        f"a quarter of {pair.different} fake images gives no full covariance of {pair.size} features, and the distance "
        f"is then no straight line in 1/n: take more than {4 * pair.size} images"
    )
    warnings = () if pair.different > 4 * pair.size else (warning,)
    return Measured(linear_regression(inverse_count, values).intercept, *_fd_error(pair), warnings)


_TEXT = (
    "|m1 - m2|² + tr(S1 + S2 - 2 (S1 S2)^½) of the means m and covariances S (divided by N - 1) of the features, in "
    "float64 with symmetric eigenvalues"
)
FD = Metric(
    name="fd",
    label="Fréchet distance",
    direction="lower",
    definition=f"{_TEXT}; biased upwards for small N, equally in all arms",
    measure=_fd,
    range=NOT_NEGATIVE,
    is_primary=True,
)
FD_INF = Metric(
    name="fd_inf",
    label="Fréchet distance ∞",
    direction="lower",
    definition=f"{_TEXT}; extrapolated to infinitely many fake images (arXiv 1911.07023): the value at 1/n = 0 of the "
    "least-squares line through the whole set, the mean of two random halves and the mean of four random quarters, "
    f"each averaged over {_SPLITS} splits that do not depend on the order of the images; the reference stays as it "
    "is, and the value can be a little below zero",
    measure=_fd_inf,
    fewest=_FEWEST,
    revision=2,
)
