"""Two validated sets of features in float64, and computations that several metrics share.

The full matrix of distances is never stored. Pairs of images are visited in blocks, and all metrics collect their sums
in one pass. Results that depend only on the reference are computed once. All sets that are compared with this reference
share them.

N: fake images, M: real images, F: size of a feature vector, K: columns of the reference's factor, R: rows of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.metrics import frechet, mmd, prdc
from tintype.metrics.resample import GROUPS, canonical_order, group_of

_BLOCK_NUMBERS = {"cpu": 1 << 21, "cuda": 1 << 26}
_SAME = 1e-12
"""Squared distances below this fraction of squared lengths count as zero: such features are equal in float32."""
MEDIAN_IMAGES = 10_000
"""Maximum number of real images for the median distance, evenly spaced in their `canonical_order`."""


class Reference:
    """Real features, and results that depend only on them. All sets that are scored on this reference share them."""

    def __init__(self, real_MF: Tensor, device: torch.device | str | None = None) -> None:
        self.device = torch.device(device) if device is not None else real_MF.device
        wide_MF = _checked("real", real_MF, self.device)
        self.mean_F = wide_MF.mean(0)
        self.points = Points.about(self.mean_F, wide_MF)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def size(self) -> int:
        return self.points.offset_NF.shape[1]

    @cached_property
    def spread(self) -> frechet.ReferenceSpread:
        return frechet.reference_spread(self.points.offset_NF)

    @cached_property
    def sigma2(self) -> float:
        """Return the squared median distance between different real images. Of two middle values, use the smaller."""
        points = self.points
        if len(self) > MEDIAN_IMAGES:
            rank = torch.linspace(0, len(self) - 1, MEDIAN_IMAGES, dtype=torch.float64, device=self.device)
            points = points[canonical_order(points.offset_NF)[rank.round().long()]]
        distance2 = torch.cat([_pairs_from(points, rows) for rows in self._slices(points, points)])
        return float(distance2.kthvalue((len(distance2) + 1) // 2).values)

    @cached_property
    def own(self) -> tuple[Tensor, prdc.Neighbours]:
        """Return, for the real images, each kernel's sum over ordered pairs of different images, and the neighbours."""
        return _own(self, self.points, prdc.COVERAGE_NEIGHBOURS)

    def blocks(self, rows: Points, columns: Points) -> Iterator[Block]:
        for part in self._slices(rows, columns):
            yield Block(part, rows, columns)

    def _slices(self, rows: Points, columns: Points) -> list[slice]:
        step = max(1, _BLOCK_NUMBERS.get(self.device.type, 1 << 21) // len(columns))
        return [slice(start, start + step) for start in range(0, len(rows), step)]


class FeaturePair:
    """Fake features that are compared with a reference.

    `copy_N` numbers the fake images by their content, from 0. `copy_N` is None if all images differ, or if equal images
    are independent draws, as from a model.
    """

    def __init__(self, fake_NF: Tensor, real: Tensor | Reference, copy_N: Tensor | None = None) -> None:
        self.reference = real if isinstance(real, Reference) else Reference(real)
        wide_NF = _checked("fake", fake_NF, self.reference.device)
        if wide_NF.shape[1] != self.reference.size:
            raise UserError(
                f"the features of fake images have {wide_NF.shape[1]} numbers, but those of real images have "
                f"{self.reference.size}",
                "use the same encoder for both",
            )
        self.points = Points.about(self.reference.mean_F, wide_NF)
        self.copy_N = None if copy_N is None else copy_N.to(self.reference.device)

    @property
    def fakes(self) -> int:
        return len(self.points)

    @cached_property
    def different(self) -> int:
        return self.fakes if self.copy_N is None else int(self.copy_N.max()) + 1

    @property
    def reals(self) -> int:
        return len(self.reference)

    @property
    def size(self) -> int:
        return self.reference.size

    @cached_property
    def projected(self) -> Tensor:
        """Return the centred fake features times the factor of the reference's covariance."""
        return self.points.offset_NF @ self.reference.spread.factor_FK

    def frechet_of(self, rows: Tensor | slice) -> float:
        """Return the Fréchet distance of a subset of the fake images."""
        return frechet.distance(self.points.offset_NF[rows], self.projected[rows], self.reference.spread)

    @cached_property
    def frechet_fit(self) -> frechet.FrechetFit:
        return frechet.fit(self.points.offset_NF, self.projected, self.reference.spread)

    @cached_property
    def frechet_bias(self) -> float:
        return frechet.sampling_bias(self.points.offset_NF, self.projected, self.reference.points.offset_NF)

    @cached_property
    def group(self) -> Tensor | None:
        """Return random groups of equal size for a jackknife; None if there are too few images."""
        return self.parts(GROUPS, "jackknife") if self.different >= 2 * GROUPS else None

    def parts(self, count: int, stream: str) -> Tensor:
        """Split the fake images at random into equal parts, independent of their order. Return each image's part.

        An image's duplicates are in one part, unless there are too few distinct images.
        """
        rank_N = self._rank
        if self.copy_N is not None and self.different >= 2 * count:
            first_C = torch.full_like(rank_N[: self.different], self.fakes)
            rank_N = first_C.scatter_reduce(0, self.copy_N, rank_N, "amin").argsort().argsort()[self.copy_N]
        return group_of(int(rank_N.max()) + 1, stream, self.reference.device, count)[rank_N]

    @cached_property
    def _rank(self) -> Tensor:
        return canonical_order(self.points.offset_NF).argsort()

    @cached_property
    def _own(self) -> tuple[Tensor, prdc.Neighbours]:
        return _own(self.reference, self.points, prdc.NEAREST)

    @cached_property
    def _between(self) -> tuple[Tensor, prdc.Membership]:
        real, fake = self.reference.own[1], self._own[1]
        count = prdc.MembershipCount(real, fake, self.group)
        sum_3N = torch.zeros(3, self.fakes, dtype=torch.float64, device=self.reference.device)
        for block in self.reference.blocks(self.reference.points, self.points):
            distance2_RN = block.distance2()
            count.add(block.rows, distance2_RN)
            for total_N, kernel_RN in zip(sum_3N, block.kernels(distance2_RN, self.reference.sigma2), strict=True):
                total_N += kernel_RN.sum(0)
        return sum_3N / self.reals, count.result()

    def kernel_sums(self, kernel: int) -> mmd.KernelSums:
        real_3M, within_3N, between_3N = self.reference.own[0], self._own[0], self._between[0]
        return mmd.KernelSums(within_3N[kernel], between_3N[kernel], float(real_3M[kernel].sum()), self.reals)

    @property
    def membership(self) -> prdc.Membership:
        return self._between[1]


def _own(reference: Reference, points: Points, neighbours: int) -> tuple[Tensor, prdc.Neighbours]:
    """Return, for each image, the sum of each kernel over the other images, and the image's nearest neighbours."""
    sums, values, indices = [], [], []
    for block in reference.blocks(points, points):
        distance2_RN = block.distance2()
        kernels = block.kernels(distance2_RN, reference.sigma2)
        sums.append(torch.stack([block.without_self(kernel_RN, 0.0).sum(1) for kernel_RN in kernels]))
        value_RK, index_RK = prdc.nearest(block.without_self(distance2_RN, float("inf")), neighbours)
        values.append(value_RK)
        indices.append(index_RK)
    return torch.cat(sums, 1), prdc.Neighbours(torch.cat(values), torch.cat(indices))


@dataclass(frozen=True)
class Points:
    """Features as offsets from the reference's mean. Small differences between features thus keep their precision."""

    offset_NF: Tensor
    length2_N: Tensor
    along_N: Tensor
    """Correction: x·y equals the dot product of the offsets plus `along` of both images."""
    norm_N: Tensor

    @classmethod
    def about(cls, mean_F: Tensor, wide_NF: Tensor) -> Points:
        offset_NF = wide_NF - mean_F
        along_N = offset_NF @ mean_F + mean_F.square().sum() / 2
        return cls(offset_NF, offset_NF.square().sum(1), along_N, wide_NF.norm(dim=1))

    def __len__(self) -> int:
        return len(self.offset_NF)

    def __getitem__(self, chosen: Tensor | slice) -> Points:
        return Points(self.offset_NF[chosen], self.length2_N[chosen], self.along_N[chosen], self.norm_N[chosen])


class Block:
    """A block of pairs. It pairs some images of one set with all images of another set."""

    def __init__(self, rows: slice, left: Points, right: Points) -> None:
        self.rows, self._left, self._right = rows, left, right
        self._product_RM = left.offset_NF[rows] @ right.offset_NF.T

    def distance2(self) -> Tensor:
        length2_RM = self._left.length2_N[self.rows, None] + self._right.length2_N
        distance2_RM = torch.sub(length2_RM, self._product_RM, alpha=2)
        return distance2_RM.masked_fill_(distance2_RM < length2_RM.mul_(_SAME), 0.0)

    def kernels(self, distance2_RM: Tensor, sigma2: float) -> Iterator[Tensor]:
        """Yield the kernels' values. The kernels are in the order of their numbers in `mmd`."""
        dot_RM = (self._product_RM + self._left.along_N[self.rows, None]).add_(self._right.along_N)
        yield mmd.polynomial(dot_RM, self._left.offset_NF.shape[1])
        yield mmd.gaussian(distance2_RM, sigma2)
        yield mmd.unit_gaussian(dot_RM.div_(self._left.norm_N[self.rows, None]).div_(self._right.norm_N))

    def without_self(self, value_RN: Tensor, instead: float) -> Tensor:
        """In a block of a set with itself, replace the values of pairs of an image with itself."""
        value_RN.diagonal(self.rows.start).fill_(instead)
        return value_RN


def _pairs_from(points: Points, rows: slice) -> Tensor:
    """Return squared distances from some images to all later images. So each pair of a set occurs only once."""
    distance2_RN = Block(slice(None), points[rows], points[rows.start :]).distance2()
    return distance2_RN[torch.ones_like(distance2_RN, dtype=torch.bool).triu_(1)]


def _checked(which: str, feature_NF: Tensor, device: torch.device) -> Tensor:
    if feature_NF.ndim != 2 or not feature_NF.shape[1]:
        raise UserError(f"{which} features must have the shape [images, features], not {tuple(feature_NF.shape)}")
    if len(feature_NF) < 2:
        raise UserError(f"a metric needs at least 2 {which} images; there are {len(feature_NF)}")
    wide_NF = feature_NF.detach().to(device=device, dtype=torch.float64)
    bad_N = ~wide_NF.isfinite().all(1)
    if bad_N.any():
        raise UserError(
            f"{int(bad_N.sum())} of the {len(bad_N)} {which} images have features that are not finite; "
            f"the first is row {int(bad_N.double().argmax())}"
        )
    return wide_NF
