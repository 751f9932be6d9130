"""Precision, recall, density and coverage: the share of a set in the other set's nearest-neighbour balls."""

from __future__ import annotations

from torch import Tensor

from tintype.errors import UserError
from tintype.metrics.metric import NOT_NEGATIVE, SHARE, Measured, Metric
from tintype.metrics.pair import FeaturePair
from tintype.metrics.prdc import COVERAGE_NEIGHBOURS, PRECISION_NEIGHBOURS
from tintype.metrics.resample import BY_GROUPS, jackknife_error, mean_error

_FEW_IMAGES = 1000


def _precision(pair: FeaturePair) -> Measured:
    return _mean(pair, PRECISION_NEIGHBOURS, pair.membership.inside_N.double())


def _density(pair: FeaturePair) -> Measured:
    return _mean(pair, COVERAGE_NEIGHBOURS, pair.membership.balls_N / COVERAGE_NEIGHBOURS)


def _mean(pair: FeaturePair, k: int, value_N: Tensor) -> Measured:
    method = "standard error of a mean over the generated images"
    return Measured(float(value_N.mean()), mean_error(value_N, pair.copy_N), method, _warnings(pair, k))


def _recall(pair: FeaturePair) -> Measured:
    return _share(pair, PRECISION_NEIGHBOURS, pair.membership.recalled, pair.membership.recalled_left_out_G)


def _coverage(pair: FeaturePair) -> Measured:
    return _share(pair, COVERAGE_NEIGHBOURS, pair.membership.covered, pair.membership.covered_left_out_G)


def _share(pair: FeaturePair, k: int, share: float, left_out_G: Tensor) -> Measured:
    error, method = (jackknife_error(left_out_G), BY_GROUPS) if len(left_out_G) else (None, "")
    return Measured(share, error, method, _warnings(pair, k))


def _warnings(pair: FeaturePair, k: int) -> tuple[str, ...]:
    """Raise if a set has too few images for a k-th neighbour. Warn if the balls of the two sets cannot be compared."""
    for which, count in (("fake", pair.fakes), ("real", pair.reals)):
        if count <= k:
            raise UserError(
                f"to find a {k}-th nearest neighbour, the metric needs at least {k + 1} {which} "
                f"images; there are {count}"
            )
    warnings = []
    if max(pair.fakes, pair.reals) > 2 * min(pair.fakes, pair.reals):
        warnings.append(
            f"{pair.fakes} fake and {pair.reals} real images: the smaller set has the larger balls, so the value "
            "can be compared at equal counts only"
        )
    if pair.fakes < _FEW_IMAGES:
        warnings.append(f"{pair.fakes} fake images are few for neighbours; take {_FEW_IMAGES} or more")
    return tuple(warnings)


PRECISION = Metric(
    name="precision",
    label="precision",
    direction="higher",
    definition=f"share of fake images inside the ball of some real image (to its {PRECISION_NEIGHBOURS}rd nearest real "
    "neighbour, the edge included; arXiv 1904.06991)",
    measure=_precision,
    fewest=PRECISION_NEIGHBOURS + 1,
    range=SHARE,
)
RECALL = Metric(
    name="recall",
    label="recall",
    direction="higher",
    definition=f"share of real images inside the ball of some fake image (to its {PRECISION_NEIGHBOURS}rd nearest fake "
    "neighbour, the edge included; arXiv 1904.06991)",
    measure=_recall,
    fewest=PRECISION_NEIGHBOURS + 1,
    range=SHARE,
)
DENSITY = Metric(
    name="density",
    label="density",
    direction="higher",
    definition="mean over the fake images of the number of real images' balls that hold them, divided by "
    f"{COVERAGE_NEIGHBOURS} (to the {COVERAGE_NEIGHBOURS}th nearest real neighbour, the edge excluded; arXiv "
    "2002.09797); near 1 for perfect images, and can be above it",
    measure=_density,
    fewest=COVERAGE_NEIGHBOURS + 1,
    range=NOT_NEGATIVE,
)
COVERAGE = Metric(
    name="coverage",
    label="coverage",
    direction="higher",
    definition=f"share of real images whose ball (to the {COVERAGE_NEIGHBOURS}th nearest real neighbour, the edge "
    "excluded) holds a fake image (arXiv 2002.09797)",
    measure=_coverage,
    fewest=COVERAGE_NEIGHBOURS + 1,
    range=SHARE,
)
