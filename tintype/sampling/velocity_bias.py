"""Compute the bias that a run's loss terms cause in its velocity, given by its strength and by the mean velocity.

Tensor dimensions are B (images of a batch), C (channels), H (latent rows) and W (latent columns).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tintype.data.mixture.settings import MixtureSettings
from tintype.errors import UserError
from tintype.flow.guidance import VelocityBias
from tintype.flow.path import interpolate
from tintype.seams import Draws, Sample
from tintype.train.parts import Model

MOST_IMAGES = 1024
"""Number of training images used for the mean velocity; if the data has fewer images, all are used."""
_BATCH = 64
_DECIDE = {"seed", "data", "tokenizer", "objective", "time", "precision"}
_cached: dict[tuple[str, int, int, torch.device], Tensor] = {}
"""Cache of mean velocities by the plan sections that determine them, since a study samples one run many times."""


def velocity_bias(parts: Model, size_px: int | tuple[int, int]) -> VelocityBias | None:
    """Return the bias that guidance must correct, with the last value of a scheduled weight; None without bias.

    The mean velocity is known only for the sizes of the training images, also of earlier stages.
    """
    plan = parts.plan
    height, width = (size_px, size_px) if isinstance(size_px, int) else size_px
    known = [*(stage.size_px for stage in plan.train.stages), plan.data.size_px]
    strength = sum(loss.velocity_bias(_trained_steps(parts) - 1) for loss in plan.losses)
    if not strength:
        return None
    if height != width or height not in known:
        shown = f"{height} px" if height == width else f"{height} × {width} px"
        raise UserError(
            f"guidance.unbias: the mean velocity is known only for the size of the training images, "
            f"{' and '.join(map(str, known))} px, not for {shown}",
            "sample at that size, or without unbias",
        )
    if len(plan.data.shapes) > 1:
        raise UserError(
            "guidance.unbias: it needs training images of a single shape, but data.buckets has several",
            "sample without unbias",
        )
    if plan.tuning is not None:  # then the latents are this run's alone, and of this step
        return VelocityBias(strength, mean_target(parts, height))
    key = plan.model_dump_json(include=_DECIDE), height, _first(parts), parts.device
    if key not in _cached:
        _cached[key] = mean_target(parts, height)
    return VelocityBias(strength, _cached[key])


def _trained_steps(parts: Model) -> int:
    return parts.plan.train.steps if parts.trained_steps is None else parts.trained_steps


def _first(parts: Model) -> int:
    """Return the position of the first image used for the mean."""
    if not isinstance(parts.plan.data, MixtureSettings):
        return 0
    return max(0, parts.plan.train.images_before(_trained_steps(parts)) - min(MOST_IMAGES, len(parts.source)))


@torch.no_grad()
def mean_target(parts: Model, size_px: int) -> Tensor:
    """Return the mean of the target velocity over the first training images at their times, as float32 [C, H, W].

    For a mixture of data sets, whose shares may have changed, the last images are used. The target is linear in the
    noise, whose mean is zero, so noise is left out to avoid sampling error.
    """
    seed, count = parts.plan.seed, min(MOST_IMAGES, len(parts.source))
    begin, source = _first(parts), parts.source_of(size_px)
    sums = []
    for first in range(begin, begin + count, _BATCH):
        position_B = torch.arange(first, min(first + _BATCH, begin + count))
        ids = parts.order.ids(first, len(position_B))
        with parts.compute():
            draws = Draws(seed, position_B.to(parts.device))
            x_BCHW = parts.tokenizer.encode(source.images(ids).to(parts.device), draws)
            t_B = parts.objective.draw(x_BCHW, draws).t_B
            zero_BCHW = torch.zeros_like(x_BCHW)
            sample = Sample(x_BCHW, zero_BCHW, t_B, interpolate(x_BCHW, zero_BCHW, t_B))
            sums.append(parts.objective.target(sample).double().sum(0))
    return (torch.stack(sums).sum(0) / count).float()
