"""Memorisation: the share of generated images that lie nearer to a training image than held-out images do.

Every held-out image has a nearest training image, at a distance that says how near two images of this data can be
without one being a copy. Nineteen of twenty held-out images are farther from theirs than the `bound`. A generated image
nearer than that counts. A model that returns training images gets 1, real images that it never saw get about 0.05,
and noise 0. Distances are between features, of the encoder that reads the images.

N: generated images, H: held-out images, M: training images, F: size of a feature vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.metrics.metric import SHARE, Measured, Metric
from tintype.metrics.pair import FeaturePair, Points, Reference
from tintype.metrics.resample import mean_error

CHANCE = 0.05
"""Share of held-out images that are nearer than the bound."""
_FEWEST = 100
"""Held-out images below which the bound is that of a handful of images."""


@dataclass(frozen=True)
class Seen:
    """Generated and held-out images, and the images that the model was trained on."""

    pair: FeaturePair
    train: Reference
    trained_on: int
    """All training images, of which `train` may be a part."""


def _memorised(seen: Seen) -> Measured:
    pair, train = seen.pair, seen.train
    origin_F = pair.reference.mean_F
    of_held_out_H = nearest2(pair.reference.points.offset_NF + origin_F, train)
    bound2 = float(of_held_out_H.sort().values[math.ceil(CHANCE * len(of_held_out_H)) - 1])
    nearer_N = nearest2(pair.points.offset_NF + origin_F, train) < bound2
    warnings = []
    if not bound2:
        warnings.append(
            f"more than {CHANCE:.0%} of the held-out images are training images to the encoder: nothing is nearer, so "
            "the value says nothing; `tintype data inspect` finds the copies"
        )
    if len(of_held_out_H) < _FEWEST:
        warnings.append(
            f"the bound is taken from {len(of_held_out_H)} held-out images; take {_FEWEST} or more (reference_count)"
        )
    if len(train) < seen.trained_on:
        warnings.append(
            f"{len(train):,} of {seen.trained_on:,} training images were compared with; copies of the others are not "
            "found (training_count)"
        )
    method = "standard error of a mean over the generated images"
    value_N = nearer_N.double()
    return Measured(float(value_N.mean()), mean_error(value_N, pair.copy_N), method, tuple(warnings))


def nearest2(feature_NF: Tensor, train: Reference) -> Tensor:
    """Return the squared distance of each image to the nearest training image."""
    points = Points.about(train.mean_F, feature_NF)
    return torch.cat([block.distance2().amin(1) for block in train.blocks(points, train.points)])


METRIC = Metric(
    name="memorised",
    label="memorised",
    direction="lower",
    definition="share of generated images that are nearer to a training image than all but "
    f"{CHANCE:.0%} of the held-out images are to theirs: 1 for copies of training images, {CHANCE:g} for real images "
    "that were never seen, 0 for noise",
    measure=_memorised,
    range=SHARE,
)
