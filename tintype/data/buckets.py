"""Aspect-ratio buckets: images roughly keep their proportions, and each micro-batch has one shape.

An image goes to the bucket with the nearest aspect ratio. The image is shrunk until it covers the bucket's shape, and
is center-cropped.

The order is a pure function of (seed, position). Each bucket has an endless stream of its images, reshuffled in each
epoch. Each stream is split into units. A unit is one micro-batch over all ranks, so a step has the same images for any
number of ranks. If stages have micro-batches of several sizes, a unit holds whole micro-batches of every stage.

Epoch e consists of all units that end within the e-th pass over their bucket, in random order. Images that do not fill
a unit join the bucket's first unit of the next epoch. So no image is left out, and a bucket's stream repeats an image
only after it has had all images of the bucket.

In a stage of smaller images each shape is scaled down, and an image stays in its bucket. So the order does not depend
on the stages' sizes.

N: images. S: shapes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from tintype.data.order import ids_at
from tintype.rng import stream_key

Shape = tuple[int, int]
"""Height and width in pixels."""


def shapes(size_px: int, unit_px: int, ratio: float) -> list[Shape]:
    """Return the (height, width) shapes in multiples of `unit_px`, with at most size_px² pixels.

    `ratio` is the largest quotient of long and short side. Of two shapes where one covers the other, only the larger is
    returned. An image whose short side has at least `size_px` pixels is large enough for every shape.
    """
    found = []
    for short in range(unit_px, size_px + 1, unit_px):
        long = size_px**2 // short // unit_px * unit_px
        if long <= ratio * short:
            found.append((short, long))
    kept = [one for one in found if not any(one[1] == two[1] and one[0] < two[0] for two in found)]
    return sorted({*kept, *((width, height) for height, width in kept)})


def nearest_shape(height_N: Tensor, width_N: Tensor, chosen: Sequence[Shape]) -> Tensor:
    """Return for each image the index of the shape with the nearest logarithm of the aspect ratio."""
    ratio_N = height_N.double().log() - width_N.double().log()
    ratio_S = torch.tensor([math.log(height / width) for height, width in chosen], dtype=torch.float64)
    return (ratio_N[:, None] - ratio_S).abs().argmin(1)


def scaled_shape(shape: Shape, size_px: int, stage_px: int, unit_px: int) -> Shape:
    """Scale a shape for data of `size_px` down to a stage of `stage_px`, in multiples of `unit_px`.

    Both sides shrink by stage_px / size_px and are rounded up or down to a multiple. Of these shapes, only those with
    at most stage_px² pixels are considered. The result has the nearest aspect ratio, and among equal ratios the most
    pixels. Raise ValueError if a side would be shorter than `unit_px`.
    """
    height, width = shape
    if min(height, width) * stage_px < unit_px * size_px:
        raise ValueError(f"{height} × {width} would give images with a side shorter than {unit_px} px")

    def multiples(side_px: int) -> set[int]:
        below, rest = divmod(side_px * stage_px, size_px * unit_px)
        return {below * unit_px, (below + (rest > 0)) * unit_px}

    def loss(found: Shape) -> tuple[Fraction, int]:
        """Return by which factor the two aspect ratios differ, and how many pixels the shape lacks to stage_px²."""
        high, wide = found[0] * width, found[1] * height
        return Fraction(max(high, wide), min(high, wide)), stage_px**2 - found[0] * found[1]

    near = [(high, wide) for high in multiples(height) for wide in multiples(width) if high * wide <= stage_px**2]
    return min(sorted(near), key=loss)


@dataclass(frozen=True, eq=False)
class Bucketed:
    """The order of images. All images of a micro-batch, over all ranks, come from one bucket."""

    seed: int
    bucket_N: Tensor
    unit: int
    """Number of images in a micro-batch over all ranks: see `TrainSettings.alike`."""

    def ids(self, first: int, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            position = first + len(found)
            skipped = position % self.unit
            some = min(self.unit - skipped, count - len(found))
            bucket, turn = self._place(position // self.unit)
            found += self._of_bucket(bucket, turn * self.unit + skipped, some)
        return found

    def once(self, first: int, end: int, chunk: int) -> Iterator[list[int]]:
        if end - first >= 2 * len(self.bucket_N):  # images that fill no unit in one epoch come in the next epoch
            for members in self._members:
                yield from (some.tolist() for some in members.split(chunk))
            return
        for start in range(first, end, chunk):
            yield self.ids(start, min(chunk, end - start))

    @cached_property
    def _members(self) -> list[Tensor]:
        """Image ids of each non-empty bucket."""
        return [(self.bucket_N == bucket).nonzero().flatten() for bucket in self.bucket_N.unique()]

    def _of_bucket(self, bucket: int, first: int, count: int) -> list[int]:
        members = self._members[bucket]
        seed = stream_key(self.seed, f"order/bucket/{bucket}")
        found: list[int] = members[ids_at(seed, first, count, len(members))].tolist()
        return found

    def _units_before(self, epoch: int) -> list[int]:
        """Return the number of full units of each bucket after `epoch` epochs."""
        return [epoch * len(members) // self.unit for members in self._members]

    def _place(self, index: int) -> tuple[int, int]:
        """Return the bucket of a unit, and the unit's index within the bucket."""
        most = (index + 1) * self.unit // max(len(members) for members in self._members) + 1
        epoch = bisect_right(range(most + 1), index, key=lambda epoch: sum(self._units_before(epoch))) - 1
        before, after = self._units_before(epoch), self._units_before(epoch + 1)
        first, units = sum(before), sum(after) - sum(before)
        place = int(ids_at(stream_key(self.seed, f"order/units/{epoch}"), index - first, 1, units))
        for bucket, (start, end) in enumerate(zip(before, after, strict=True)):
            if place < end - start:
                return bucket, start + place
            place -= end - start
        raise AssertionError("a unit of images lies in none of the buckets of its epoch")
