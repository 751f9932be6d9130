"""Maximum mean discrepancies: KID, CMMD, and MMD with a Gaussian kernel whose bandwidth comes from the data.

N: fake images, M: real images, F: size of a feature vector.
"""

from __future__ import annotations

from dataclasses import replace

from tintype.errors import UserError
from tintype.metrics.metric import NOT_NEGATIVE, Measured, Metric
from tintype.metrics.mmd import GAUSSIAN, POLYNOMIAL, UNIT, KernelSums
from tintype.metrics.pair import MEDIAN_IMAGES, FeaturePair
from tintype.metrics.resample import jackknife_error

_SCALE = 1000.0
_BIAS_SHARE = 0.05


def _mmd(pair: FeaturePair) -> Measured:
    if pair.reference.sigma2 <= 0:
        raise UserError(
            "more than half of the pairs of real images have equal features, so the kernel width is undefined"
        )
    return _estimate(pair, pair.kernel_sums(GAUSSIAN))


def _mmd_published(pair: FeaturePair) -> Measured:
    sums = _unit_sums(pair)
    found, unbiased = _estimate(pair, sums, biased=True), _SCALE * sums.estimate()
    bias = found.value - unbiased
    if bias <= _BIAS_SHARE * found.value:
        return found
    warning = (
        f"{bias:.3g} of {found.value:.3g} is the bias of this estimate at {pair.fakes} fake and {pair.reals} real "
        f"images; without it the value is {unbiased:.3g}"
    )
    return replace(found, warnings=(warning,))


def _estimate(pair: FeaturePair, sums: KernelSums, scale: float = _SCALE, biased: bool = False) -> Measured:
    value = scale * sums.estimate(biased)
    if pair.different < 3:
        return Measured(value)
    error = jackknife_error(scale * sums.left_out(biased), pair.copy_N)
    return Measured(value, error, "jackknife over the generated images")


def _unit_sums(pair: FeaturePair) -> KernelSums:
    for which, points in (("fake", pair.points), ("real", pair.reference.points)):
        zero_N = points.norm_N == 0
        if zero_N.any():
            row = int(zero_N.double().argmax())
            raise UserError(f"the features of {which} image {row} are all zero and cannot be normalised to unit length")
    return pair.kernel_sums(UNIT)


_UNIT_TEXT = "squared MMD × 1000 with the kernel exp(-|x - y|² / 200) (σ = 10) of features brought to unit length"
KID = Metric[FeaturePair](
    name="kid",
    label="KID",
    direction="lower",
    definition="unbiased squared MMD with the kernel (x·y / F + 1)³ (arXiv 1801.01401) over all pairs of the N fake "
    "and the M real images (no subsets), in float64; not multiplied by anything",
    measure=lambda pair: _estimate(pair, pair.kernel_sums(POLYNOMIAL), 1.0),
    scale="asinh",
)
MMD = Metric(
    name="mmd",
    label="MMD",
    direction="lower",
    definition="unbiased squared MMD × 1000 with the kernel exp(-|x - y|² / 2σ²), σ the median distance between real "
    f"images (of {MEDIAN_IMAGES} evenly spaced ones by their features when there are more), in float64",
    measure=_mmd,
    scale="asinh",
    revision=2,
    revised_above=MEDIAN_IMAGES,
)
MMD_PUBLISHED = Metric(
    name="mmd_published",
    label="MMD as published",
    direction="lower",
    definition=f"{_UNIT_TEXT}, each image paired with itself too: the biased estimate of CMMD (arXiv 2401.09603), in "
    "float64. Close to 10 × the squared distance of the means, and so blind to diversity",
    measure=_mmd_published,
    range=NOT_NEGATIVE,
)
MMD_UNBIASED = Metric[FeaturePair](
    name="mmd_unbiased",
    label="MMD as published, unbiased",
    direction="lower",
    definition=f"{_UNIT_TEXT}, no image paired with itself, in float64; blind to diversity like the published estimate",
    measure=lambda pair: _estimate(pair, _unit_sums(pair)),
    scale="asinh",
)
