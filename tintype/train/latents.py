"""Measures the latents of a run's first images before its first step: their mean and deviation decide what the noise
means, and a tokenizer that is scaled wrongly trains without complaint and worse.

B: images, C: channels, H, W: latent rows and columns.
"""

from __future__ import annotations

from math import gcd

import torch

from tintype.errors import UserError
from tintype.seams import Draws
from tintype.train.folder import RunFolder
from tintype.train.session import Session

MOST_IMAGES = 256
"""Number of first images whose latents are measured."""
_BATCH = 32


def check_latents(folder: RunFolder, parts: Session, step: int) -> None:
    """Record the statistics of the latents, and refuse those that no noise would fit."""
    if step and folder.read_record(folder.latents_file):
        return
    mean_C, std_C, images = measure_latents(parts)
    folder.write_latents(images, mean_C.tolist(), std_C.tolist())
    if fault := parts.tokenizer.check_latents(mean_C, std_C):
        kind = parts.plan.tokenizer.kind
        raise UserError(f"tokenizer '{kind}' on the first {images} images: {fault} (numbers: {folder.latents_file})")


def measure_latents(parts: Session) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return mean and deviation of each channel as training will see them, and the number of images; on every rank."""
    plan = parts.plan
    count = min(MOST_IMAGES, len(parts.source), plan.train.steps * plan.train.batch)
    sums = []
    most = _BATCH if len(plan.data.shapes) == 1 else gcd(_BATCH, plan.train.batch // plan.train.accumulate)
    for first in range(0, count, most):  # images of one shape
        position_B = torch.arange(first, min(first + most, count))
        ids = parts.order.ids(first, len(position_B))
        draws = Draws(plan.seed, position_B.to(parts.device))
        z_BCHW = parts.latents(ids, None, draws).double()
        sums.append(torch.stack([z_BCHW.mean((2, 3)).sum(0), z_BCHW.square().mean((2, 3)).sum(0)]).cpu())
    mean_C, square_C = torch.stack(sums).sum(0) / count
    return mean_C, (square_C - mean_C.square()).clamp_min(0).sqrt(), count
