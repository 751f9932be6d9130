"""immiscible: pair each image with a nearby noise, so that the paths of different images mix less.

Immiscible Diffusion (arXiv 2406.12303) assigns the noises of a batch to its images so that the sum of distances is
minimal. This module implements a later variant by the same authors (arXiv 2505.18521). Each image takes the nearest of
k noises drawn for this image. The choice does not depend on other images. So batch size, accumulation and ranks change
no draw, ranks need not communicate, and the device does not wait for the host. The first of the k noises is the noise
that the plan would have drawn without immiscible.

Two details differ from the authors' code. Distances are in fp32 and not in fp16. The noises are drawn one after the
other, so memory holds two of them instead of k. Given the image, the noise in training is not exactly normal. Sampling
starts from normal noise, as in the paper.

B: samples, C: channels, H, W: latent rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype.flow.part import NoisePart
from tintype.flow.path import scaled
from tintype.seams import Draws, Objective, Sample

NOISE = "noise"
"""Name of the random stream for the path's noise."""


class ImmiscibleSettings(NoisePart):
    kind: Literal["immiscible"] = "immiscible"
    candidates: int = Field(
        4,
        ge=2,
        description="Number k of noises drawn for each image, of which the nearest is used; the authors use 4 "
        "for flow matching and 64 for Stable Diffusion",
    )

    def pair(self, objective: Objective) -> Immiscible:
        return Immiscible(objective, self.candidates)


@dataclass(frozen=True)
class Immiscible:
    """An objective like the wrapped one, but with the nearest of several noises for each sample."""

    objective: Objective
    candidates: int

    @property
    def noise_scale(self) -> float:
        return self.objective.noise_scale

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample:
        noise_BCHW = nearest_noise(x_BCHW.detach(), draws, self.candidates, self.noise_scale)
        return self.objective.draw(x_BCHW, ChosenNoise(draws.seed, draws.position_B, noise_BCHW))

    def target(self, sample: Sample) -> Tensor:
        return self.objective.target(sample)

    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor:
        return self.objective.velocity(prediction_BCHW, x_t_BCHW, t_B)

    def x_weight(self, t_B: Tensor) -> Tensor:
        return self.objective.x_weight(t_B)

    def noise_weight(self, t_B: Tensor) -> Tensor:
        return self.objective.noise_weight(t_B)


@dataclass(frozen=True)
class ChosenNoise(Draws):
    noise_BCHW: Tensor

    def normal(self, stream: str, shape: tuple[int, ...] = ()) -> Tensor:
        return self.noise_BCHW if stream == NOISE else super().normal(stream, shape)


def nearest_noise(x_BCHW: Tensor, draws: Draws, candidates: int, noise_scale: float = 1.0) -> Tensor:
    """Return the nearest candidate noise, on a tie the first. The path has not yet scaled the noises."""
    nearest_BCHW = draws.normal(NOISE, tuple(x_BCHW.shape[1:]))
    least_B = _distance2(x_BCHW, scaled(nearest_BCHW, noise_scale))
    for index in range(1, candidates):
        noise_BCHW = draws.normal(f"{NOISE}/{index}", tuple(x_BCHW.shape[1:]))
        distance2_B = _distance2(x_BCHW, scaled(noise_BCHW, noise_scale))
        nearest_BCHW = torch.where((distance2_B < least_B)[:, None, None, None], noise_BCHW, nearest_BCHW)
        least_B = torch.minimum(distance2_B, least_B)
    return nearest_BCHW


def _distance2(x_BCHW: Tensor, noise_BCHW: Tensor) -> Tensor:
    return (x_BCHW.float() - noise_BCHW).square().flatten(1).sum(1)
