"""Memorisation measures how often a model returns training images when it gets their captions.

Samples of training captions are compared with the training images (arXiv 2212.03860, 2301.13188). A model that follows
captions generates images similar to the caption's image, even if it has never seen this image. So samples of unseen
images' captions are also compared with the unseen images. The rate of near-copies of unseen images is subtracted.

Distances are between features, and relative as in arXiv 2301.13188, section 5.1. A sample's distance to an image is
divided by the sample's mean distance to the nearest images of a third set. The model is not trained on the third set,
and is not sampled with its captions. Two kinds of near-copies are counted:

- Near-copies of the caption's own image have a relative distance below `OWN_BAR`, the paper's threshold.
- Near-copies of any image are the second kind. They include near-copies of the caption's own image, and samples very
  near to another image. For samples near to another image, only a fraction `CHANCE` of the third set's real images have
  a smaller relative distance. Among many images some are similar, so this threshold is lower than `OWN_BAR`. Training
  images and unseen images each have their own threshold.

Unlike arXiv 2301.13188, this metric uses features instead of pixels, neighbours outside of the training images, and a
threshold from the data.

N: samples, M: images to search for copies of, R: images of the third set, F: size of a feature vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tintype.metrics.metric import Measured, Metric
from tintype.metrics.pair import Points, Reference

OWN_BAR = 0.5
CHANCE = 0.01
"""Fraction of unseen real images that are nearer than the threshold for near-copies of any image."""
_NEIGHBOURS = 50
_FEWEST = 100
"""Minimum number of images of the third set. With fewer images, the thresholds would depend on very few images."""
_FAR = 1.2
"""Samples that do not resemble the data have neighbours this factor farther away than 99% of real images."""
_Z = 1.96

Verdict = Literal["copies", "unlike the data", "none found"]
Figure = Literal["any", "own"]


@dataclass(frozen=True)
class Asked:
    """Samples of captions, and the images with which they are compared, including the captions' own images."""

    fake_NF: Tensor
    image_MF: Tensor
    own_N: Tensor
    """For each caption, the row of its own image."""


@dataclass(frozen=True)
class Rate:
    """Share of near-copies for training captions and for unseen captions, and the 95% interval of the difference."""

    training: float
    unseen: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.training - self.unseen


@dataclass(frozen=True)
class Nearness:
    """Near-copies among the samples of training captions, or among the samples of unseen captions."""

    own_N: Tensor
    any_N: Tensor
    unlike_N: Tensor
    nearest_N: Tensor
    """For each sample, the row of its nearest image."""
    distance_N: Tensor
    """For each sample, the relative distance to its nearest image."""
    caption_N: Tensor
    """For each sample, the row of its caption's own image."""
    any_bar: float


@dataclass(frozen=True)
class Recall:
    """Samples of training captions and of unseen captions, with the same guidance scales in the same order."""

    training: Nearness
    unseen: Nearness
    scale_N: Tensor
    """Guidance scale of each sample."""
    images: int
    others: int
    trained_on: int
    """Number of all training images. Copies may be searched for only some of them."""

    def rate(self, figure: Figure, scale: float | None = None) -> Rate:
        """Return the rate of near-copies at one guidance scale, or at all scales together."""
        row_N = torch.ones_like(self.scale_N, dtype=torch.bool) if scale is None else self.scale_N == scale
        hits = [(side.any_N if figure == "any" else side.own_N)[row_N] for side in (self.training, self.unseen)]
        counts = [len(side.caption_N[row_N].unique()) for side in (self.training, self.unseen)]
        of_training, of_unseen = (float(hit.double().mean()) for hit in hits)
        return Rate(of_training, of_unseen, *newcombe((of_training, of_unseen), counts))

    @property
    def captions(self) -> int:
        return len(self.training.caption_N.unique())

    @property
    def unlike(self) -> float:
        return float(self.training.unlike_N.double().mean())

    @property
    def verdict(self) -> Verdict:
        """Return "copies" if the interval of a difference of rates is above 0.

        Otherwise, return "unlike the data" if most samples do not resemble the data, since no verdict is then possible.
        In all other cases, return "none found".
        """
        if max(self.rate("any").low, self.rate("own").low) > 0:
            return "copies"
        return "unlike the data" if self.unlike > 0.5 else "none found"


def recall(training: Asked, unseen: Asked, others_RF: Tensor, scales: Sequence[float], trained_on: int = 0) -> Recall:
    """Find near-copies. `scales` has the guidance scale of each sample; both kinds of captions have the same scales."""
    others = Reference(others_RF)
    count = min(_NEIGHBOURS, max(1, len(others_RF) // 10))
    around_R = _around(others_RF, others, count, themselves=True)
    far = _FAR * float(around_R.sort().values[math.ceil(0.99 * len(around_R)) - 1])
    near, near_unseen = (_nearness(one, others, around_R, count, far) for one in (training, unseen))
    scale_N, images = torch.tensor(scales, dtype=torch.float64), len(training.image_MF)
    return Recall(near, near_unseen, scale_N, images, len(others_RF), max(trained_on, images))


def _nearness(asked: Asked, others: Reference, around_R: Tensor, count: int, far: float) -> Nearness:
    real_RF = others.points.offset_NF + others.mean_F
    ratio_R = (_nearest(real_RF, asked.image_MF)[0] / around_R).sort().values
    any_bar = min(OWN_BAR, float(ratio_R[math.ceil(CHANCE * len(ratio_R)) - 1]))
    around_N = _around(asked.fake_NF, others, count)
    distance_N, nearest_N = _nearest(asked.fake_NF, asked.image_MF)
    to_own_N = (asked.fake_NF.double() - asked.image_MF[asked.own_N].double()).norm(dim=1)
    own_N = (to_own_N < OWN_BAR * around_N) | (to_own_N == 0)
    any_N = own_N | (distance_N < any_bar * around_N) | (distance_N == 0)
    unlike_N = (around_N > far) & ~any_N
    return Nearness(own_N, any_N, unlike_N, nearest_N, distance_N / around_N, asked.own_N, any_bar)


def _around(fake_NF: Tensor, others: Reference, count: int, *, themselves: bool = False) -> Tensor:
    """Return the mean distance to the third set's nearest images. `themselves` leaves out each image itself."""
    points, found = Points.about(others.mean_F, fake_NF.double()), []
    for block in others.blocks(points, others.points):
        distance2_RM = block.distance2()
        if themselves:
            distance2_RM = block.without_self(distance2_RM, math.inf)
        found.append(distance2_RM.topk(count, dim=1, largest=False).values.sqrt().mean(1))
    return torch.cat(found).clamp_min(1e-12)


def _nearest(fake_NF: Tensor, image_MF: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each sample, the distance to its nearest image and the row of this image."""
    images = Reference(image_MF if len(image_MF) > 1 else image_MF.repeat(2, 1))  # a reference needs two images
    points = Points.about(images.mean_F, fake_NF.double())
    found = [block.distance2().min(1) for block in images.blocks(points, images.points)]
    return torch.cat([one.values for one in found]).sqrt(), torch.cat([one.indices for one in found]) % len(image_MF)


def newcombe(shares: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Return the 95% interval of the difference of two shares (Newcombe, Statistics in Medicine 1998, method 10).

    A caption counts once, however many samples it has, since samples of one caption are similar.
    """
    (first, first_low, first_high), (second, second_low, second_high) = (
        (share, *_wilson(share, count)) for share, count in zip(shares, counts, strict=True)
    )
    low = math.hypot(first - first_low, second_high - second)
    high = math.hypot(first_high - first, second - second_low)
    return first - second - low, first - second + high


def _wilson(share: float, count: int) -> tuple[float, float]:
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return middle - half, middle + half


def _measured(recalled: Recall, figure: Figure) -> Measured:
    rate, scales = recalled.rate(figure), recalled.scale_N.unique().tolist()
    parts = {"on training captions": rate.training, "on unseen captions": rate.unseen}
    parts |= {f"at guidance {scale:g}": recalled.rate(figure, scale).difference for scale in scales}
    return Measured(
        rate.difference,
        (rate.high - rate.low) / (2 * _Z),
        "half of Newcombe's interval of the difference, each caption counted once",
        _warnings(recalled),
        parts,
        bounds=(rate.low, rate.high),
    )


def _warnings(recalled: Recall) -> tuple[str, ...]:
    warnings = []
    if recalled.unlike > 0.5:
        warnings.append(
            f"{recalled.unlike:.0%} of the samples of training captions are unlike the data: a value near 0 does not "
            "say that nothing was memorised"
        )
    if not recalled.training.any_bar:
        warnings.append(
            f"more than {CHANCE:.0%} of the held-out images are training images to the encoder, so only exact copies "
            "count; `tintype data inspect` finds them"
        )
    if recalled.others < _FEWEST:
        warnings.append(
            f"the bar of near-copies is taken from {recalled.others} held-out images; take {_FEWEST} or more "
            "(reference_count)"
        )
    if recalled.images < recalled.trained_on:
        warnings.append(
            f"copies are looked for among {recalled.images:,} of {recalled.trained_on:,} training images "
            "(training_count, and half of the held-out images)"
        )
    return tuple(warnings)


_RANGE = (-1.0, 1.0)
_MARGIN = "0.01"
"""One image in a hundred. Without copies, the metric and any relative margin would be about zero."""
ANY: Metric[Recall] = Metric(
    name="memorised",
    label="memorised",
    direction="lower",
    definition="share of samples of training captions that are near-copies of a training image, minus the same share "
    "for captions of images like those of training that were never seen, against these: 1 for a model that returns "
    "training images, about 0 for one that never saw them",
    measure=lambda recalled: _measured(recalled, "any"),
    range=_RANGE,
    margin=_MARGIN,
    revision=2,
)
OWN: Metric[Recall] = Metric(
    name="memorised_own",
    label="memorised, own image",
    direction="lower",
    definition="the share `memorised`, of near-copies of the very image whose caption was asked: 1 for a model that "
    "returns the image of the caption, about 1/n for one that returns any of n training images, 0 for one that never "
    "saw them",
    measure=lambda recalled: _measured(recalled, "own"),
    range=_RANGE,
    margin=_MARGIN,
)
