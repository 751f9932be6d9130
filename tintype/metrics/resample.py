"""How far a number would move with other images: jackknife and bootstrap, from stateless randomness.

The images that were generated are resampled; the reference stays as it is. So the error says what other noises would
have given with the same model and the same reference. It does not say what another training seed would give.

N: images, G: groups, D: bootstrap draws.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tintype import rng
from tintype.seams import Measured

SEED = 0
GROUPS = 10
DRAWS = 1000
_CHUNK = 1 << 22


def mean_error(value_N: Tensor) -> float | None:
    """Standard error of the mean of independent values; None for a single one."""
    if len(value_N) < 2:
        return None
    return float(value_N.double().std()) / math.sqrt(len(value_N))


def jackknife_error(left_out_G: Tensor) -> float:
    """Standard error from the values that are found without each image, or without each of G equal groups."""
    count = len(left_out_G)
    return float((left_out_G - left_out_G.mean()).square().sum().mul((count - 1) / count).sqrt())


def shuffled(count: int, stream: str, device: torch.device | None = None) -> Tensor:
    """A random order of `count` images, the same in every process and on every device."""
    return rng.bits(SEED, stream, torch.arange(count), 1)[:, 0].argsort().to(device or "cpu")


def group_of(count: int, stream: str, device: torch.device | None = None, groups: int = GROUPS) -> Tensor:
    """The group of each image. The groups are drawn at random and their sizes differ by one at most."""
    group_N = torch.empty(count, dtype=torch.int64, device=device or "cpu")
    group_N[shuffled(count, stream, device)] = torch.arange(count, device=device or "cpu") % groups
    return group_N


def bootstrap_means(value_N: Tensor, draws: int = DRAWS, stream: str = "bootstrap") -> Tensor:
    """The mean of each of `draws` resamples with replacement."""
    value_N = value_N.double().cpu()
    rows = max(1, _CHUNK // len(value_N))
    chunks = torch.arange(draws).split(rows)
    return torch.cat([value_N[rng.integers(SEED, stream, c, len(value_N), value_N.shape)].mean(1) for c in chunks])


def bootstrap_error(value_N: Tensor, draws: int = DRAWS) -> float | None:
    """Standard error of a mean over images; None for a single image."""
    return float(bootstrap_means(value_N, draws).std()) if len(value_N) > 1 else None


def bootstrap_interval(value_N: Tensor, level: float = 0.95, draws: int = DRAWS) -> tuple[float, float]:
    """Percentile interval of a mean over images."""
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = bootstrap_means(value_N, draws).quantile(ends).tolist()
    return low, high


def mean_with_error(value_N: Tensor) -> Measured:
    """The mean of one number for each image."""
    method = f"bootstrap over the images, {DRAWS} draws" if len(value_N) > 1 else ""
    return Measured(float(value_N.double().mean()), bootstrap_error(value_N), method)
