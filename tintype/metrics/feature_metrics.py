"""The metrics on features, by kind: what each one is in words, and its value with the error of sampling.

N: fake images, M: real images, F: size of a feature vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.metrics import frechet
from tintype.metrics.mmd import GAUSSIAN, POLYNOMIAL, UNIT, KernelSums
from tintype.metrics.pair import MEDIAN_IMAGES, FeaturePair
from tintype.metrics.prdc import COVERAGE_NEIGHBOURS, PRECISION_NEIGHBOURS
from tintype.metrics.resample import GROUPS, jackknife_error, mean_error
from tintype.seams import ANY_VALUE, NOT_NEGATIVE, SHARE, Direction, Measured, Range

_SCALE = 1000.0
_BIAS_SHARE = 0.05
_FEW_IMAGES = 1000
_SPLITS = 4
"""One split into halves and quarters moves fd_inf by a fifth to a half of its error of sampling."""
_INFLUENCE = "infinitesimal jackknife over the generated images"
_GROUPS = f"jackknife over {GROUPS} groups of the generated images"
_JACKKNIFE = "jackknife over the generated images"
_MEAN = "standard error of a mean over the generated images"


@dataclass(frozen=True)
class FeatureMetric:
    kind: str
    label: str
    direction: Direction
    definition: str
    measure: Callable[[FeaturePair], Measured]
    range: Range = ANY_VALUE
    """Unbiased estimates of a distance can be a little below zero: they have no bound."""

    def __call__(self, pair: FeaturePair) -> Measured:
        return self.measure(pair)


def _fd(pair: FeaturePair) -> Measured:
    value = max(_whole_fd(pair), 0.0)
    error, method = _fd_error(pair)
    return Measured(value, error, method, _fd_warnings(pair, value))


def _whole_fd(pair: FeaturePair) -> float:
    everyone = torch.arange(pair.fakes, device=pair.reference.device)
    return pair.frechet_fit.value if _differentiable(pair) else pair.frechet_of(everyone)


def _differentiable(pair: FeaturePair) -> bool:
    """With few more images than features one image weighs too much for a derivative to say what it is worth."""
    return pair.different >= 2 * min(pair.size, pair.reals)


def _fd_error(pair: FeaturePair) -> tuple[float | None, str]:
    if _differentiable(pair):
        return mean_error(pair.frechet_fit.influence_N, pair.copy_N), _INFLUENCE
    if pair.group is None:
        return None, ""
    left_out = [pair.frechet_of((pair.group != group).nonzero()[:, 0]) for group in range(GROUPS)]
    return jackknife_error(torch.tensor(left_out, dtype=torch.float64)), _GROUPS


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
    """Each image is in one half and one quarter of each split. So it weighs in the intercept as in the distance of the
    whole set, and to first order the error is the same. The spread about the line says less: it is that of the small
    sets.
    """
    if pair.fakes < 8:
        raise UserError(f"fd_inf takes quarters of the fake images and needs 8 of them; there are {pair.fakes}")
    inverse_count, values = [1 / pair.fakes], [_whole_fd(pair)]
    for pieces in (2, 4):
        inverse_count.append(pieces / pair.fakes)
        values.append(fmean(fmean(_fd_of_parts(pair, pieces, f"fd_inf {split}")) for split in range(_SPLITS)))
    error, method = _fd_error(pair)
    return Measured(frechet.intercept(inverse_count, values), error, method, _fd_inf_warnings(pair))


def _fd_of_parts(pair: FeaturePair, pieces: int, stream: str) -> list[float]:
    part_N = pair.parts(pieces, stream)
    return [pair.frechet_of((part_N == part).nonzero()[:, 0]) for part in range(pieces)]


def _fd_inf_warnings(pair: FeaturePair) -> tuple[str, ...]:
    if pair.different > 4 * pair.size:
        return ()
    return (
        f"a quarter of {pair.different} fake images gives no full covariance of {pair.size} features, and the distance "
        f"is then no straight line in 1/n: take more than {4 * pair.size} images",
    )


def _kid(pair: FeaturePair) -> Measured:
    return _unbiased(pair, pair.kernel_sums(POLYNOMIAL), 1.0)


def _mmd(pair: FeaturePair) -> Measured:
    if pair.reference.sigma2 <= 0:
        raise UserError("more than half of the pairs of real images have equal features: no kernel width can be found")
    return _unbiased(pair, pair.kernel_sums(GAUSSIAN), _SCALE)


def _mmd_unbiased(pair: FeaturePair) -> Measured:
    return _unbiased(pair, _unit_sums(pair), _SCALE)


def _unbiased(pair: FeaturePair, sums: KernelSums, scale: float) -> Measured:
    return Measured(scale * sums.unbiased(), *_jackknife(sums.unbiased_left_out, pair, scale))


def _mmd_published(pair: FeaturePair) -> Measured:
    sums = _unit_sums(pair)
    value, unbiased = _SCALE * sums.biased(), _SCALE * sums.unbiased()
    warnings: tuple[str, ...] = ()
    if value - unbiased > _BIAS_SHARE * value:
        warnings = (
            f"{value - unbiased:.3g} of {value:.3g} is the bias of this estimate at {pair.fakes} fake and "
            f"{pair.reals} real images; without it the value is {unbiased:.3g}",
        )
    return Measured(value, *_jackknife(sums.biased_left_out, pair, _SCALE), warnings)


def _jackknife(left_out: Callable[[], Tensor], pair: FeaturePair, scale: float) -> tuple[float | None, str]:
    if pair.different < 3:
        return None, ""
    return jackknife_error(scale * left_out(), pair.copy_N), _JACKKNIFE


def _unit_sums(pair: FeaturePair) -> KernelSums:
    for which, points in (("fake", pair.points), ("real", pair.reference.points)):
        zero_N = points.norm_N == 0
        if zero_N.any():
            row = int(zero_N.double().argmax())
            raise UserError(f"the features of {which} image {row} are all zero and cannot be brought to unit length")
    return pair.kernel_sums(UNIT)


def _precision(pair: FeaturePair) -> Measured:
    warnings = _neighbour_warnings(pair, PRECISION_NEIGHBOURS)
    inside_N = pair.membership.inside_N.double()
    return Measured(float(inside_N.mean()), mean_error(inside_N, pair.copy_N), _MEAN, warnings)


def _density(pair: FeaturePair) -> Measured:
    warnings = _neighbour_warnings(pair, COVERAGE_NEIGHBOURS)
    share_N = pair.membership.balls_N / COVERAGE_NEIGHBOURS
    return Measured(float(share_N.mean()), mean_error(share_N, pair.copy_N), _MEAN, warnings)


def _recall(pair: FeaturePair) -> Measured:
    warnings = _neighbour_warnings(pair, PRECISION_NEIGHBOURS)
    return Measured(pair.membership.recalled, *_groups(pair.membership.recalled_left_out_G), warnings)


def _coverage(pair: FeaturePair) -> Measured:
    warnings = _neighbour_warnings(pair, COVERAGE_NEIGHBOURS)
    return Measured(pair.membership.covered, *_groups(pair.membership.covered_left_out_G), warnings)


def _groups(left_out_G: Tensor) -> tuple[float | None, str]:
    return (jackknife_error(left_out_G), _GROUPS) if len(left_out_G) else (None, "")


def _neighbour_warnings(pair: FeaturePair, k: int) -> tuple[str, ...]:
    """Refuses sets without a k-th neighbour, and says when the balls of both sets cannot be compared."""
    for which, count in (("fake", pair.fakes), ("real", pair.reals)):
        if count <= k:
            raise UserError(f"a {k}-th neighbour needs at least {k + 1} {which} images; there are {count}")
    warnings = []
    if max(pair.fakes, pair.reals) > 2 * min(pair.fakes, pair.reals):
        warnings.append(
            f"{pair.fakes} fake and {pair.reals} real images: the smaller set has the larger balls, so the value "
            "can be compared at equal counts only"
        )
    if pair.fakes < _FEW_IMAGES:
        warnings.append(f"{pair.fakes} fake images are few for neighbours; take {_FEW_IMAGES} or more")
    return tuple(warnings)


_FD_TEXT = (
    "|m1 - m2|² + tr(S1 + S2 - 2 (S1 S2)^½) of the means m and covariances S (divided by N - 1) of the features, in "
    "float64 with symmetric eigenvalues"
)
_UNIT_TEXT = "squared MMD × 1000 with the kernel exp(-|x - y|² / 200) (σ = 10) of features brought to unit length"

_TABLE = (
    FeatureMetric(
        "fd",
        "Fréchet distance",
        "lower",
        f"{_FD_TEXT}; biased upwards for small N, equally in all arms",
        _fd,
        NOT_NEGATIVE,
    ),
    FeatureMetric(
        "fd_inf",
        "Fréchet distance ∞",
        "lower",
        f"{_FD_TEXT}; extrapolated to infinitely many fake images (arXiv 1911.07023): the value at 1/n = 0 of the "
        "least-squares line through the whole set, the mean of two random halves and the mean of four random quarters, "
        f"each averaged over {_SPLITS} splits that do not depend on the order of the images; the reference stays as it "
        "is, and the value can be a little below zero",
        _fd_inf,
    ),
    FeatureMetric(
        "kid",
        "KID",
        "lower",
        "unbiased squared MMD with the kernel (x·y / F + 1)³ (arXiv 1801.01401) over all pairs of the N fake and the M "
        "real images (no subsets), in float64; not multiplied by anything",
        _kid,
    ),
    FeatureMetric(
        "mmd",
        "MMD",
        "lower",
        "unbiased squared MMD × 1000 with the kernel exp(-|x - y|² / 2σ²), σ the median distance between real images "
        f"(of {MEDIAN_IMAGES} evenly spaced ones by their features when there are more), in float64",
        _mmd,
    ),
    FeatureMetric(
        "mmd_published",
        "MMD as published",
        "lower",
        f"{_UNIT_TEXT}, each image paired with itself too: the biased estimate of CMMD (arXiv 2401.09603), in float64. "
        "Close to 10 × the squared distance of the means, and so blind to diversity",
        _mmd_published,
        NOT_NEGATIVE,
    ),
    FeatureMetric(
        "mmd_unbiased",
        "MMD as published, unbiased",
        "lower",
        f"{_UNIT_TEXT}, no image paired with itself, in float64; blind to diversity like the published estimate",
        _mmd_unbiased,
    ),
    FeatureMetric(
        "precision",
        "precision",
        "higher",
        f"share of fake images inside the ball of some real image (to its {PRECISION_NEIGHBOURS}rd nearest real "
        "neighbour, the edge included; arXiv 1904.06991)",
        _precision,
        SHARE,
    ),
    FeatureMetric(
        "recall",
        "recall",
        "higher",
        f"share of real images inside the ball of some fake image (to its {PRECISION_NEIGHBOURS}rd nearest fake "
        "neighbour, the edge included; arXiv 1904.06991)",
        _recall,
        SHARE,
    ),
    FeatureMetric(
        "density",
        "density",
        "higher",
        f"mean over the fake images of the number of real images' balls that hold them, divided by "
        f"{COVERAGE_NEIGHBOURS} (to the {COVERAGE_NEIGHBOURS}th nearest real neighbour, the edge excluded; arXiv "
        "2002.09797); near 1 for perfect images, and can be above it",
        _density,
        NOT_NEGATIVE,
    ),
    FeatureMetric(
        "coverage",
        "coverage",
        "higher",
        f"share of real images whose ball (to the {COVERAGE_NEIGHBOURS}th nearest real neighbour, the edge excluded) "
        "holds a fake image (arXiv 2002.09797)",
        _coverage,
        SHARE,
    ),
)

FEATURE_METRICS: dict[str, FeatureMetric] = {metric.kind: metric for metric in _TABLE}


def revisions(kinds: Iterable[str], reals: int) -> dict[str, int]:
    """Which of these metrics give other values than they did at first, and the number of their present definition.

    It is a part of a protocol's hash: values of two definitions are never compared. Those that took some images by
    their place in the set: fd_inf, and mmd where the reference has more than `MEDIAN_IMAGES`.
    """
    changed = {"fd_inf": True, "mmd": reals > MEDIAN_IMAGES}
    return {kind: 2 for kind in kinds if changed.get(kind, False)}
