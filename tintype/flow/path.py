"""The path between data and noise.

The whole project uses the convention of diffusers and PRX: `x` is data, t = 1 is pure noise, x_t = (1 - t) x + t noise,
and the velocity is v = dx_t/dt = noise - x. `noise` has the standard deviation `noise_scale` (1 by default). x_t and v
contain the scaled noise, and sampling starts from scaled noise.

B: samples, C: channels, H, W: latent rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tintype.seams import Draws, Sample, TimeDensity


def over_image(t_B: Tensor, like_BCHW: Tensor) -> Tensor:
    """Return each sample's t in a shape that broadcasts over the sample's image."""
    return t_B.view(-1, *[1] * (like_BCHW.ndim - 1))


def interpolate(x_BCHW: Tensor, noise_BCHW: Tensor, t_B: Tensor) -> Tensor:
    t = over_image(t_B, x_BCHW)
    return (1 - t) * x_BCHW + t * noise_BCHW


def velocity(x_BCHW: Tensor, noise_BCHW: Tensor) -> Tensor:
    return noise_BCHW - x_BCHW


def x_to_velocity(x_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor, clamp: float = 0.0) -> Tensor:
    """Return v = (x_t - x) / max(t, clamp), which is exact for t ≥ clamp."""
    return (x_t_BCHW - x_BCHW) / over_image(t_B.clamp_min(clamp), x_t_BCHW)


def noise_to_velocity(noise_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor, clamp: float = 0.0) -> Tensor:
    """Return v = (noise - x_t) / max(1 - t, clamp), which is exact for t ≤ 1 - clamp."""
    return (noise_BCHW - x_t_BCHW) / over_image((1 - t_B).clamp_min(clamp), x_t_BCHW)


def shift_time(t: Tensor, shift: float) -> Tensor:
    """Shift t towards the noise (t = 1) if `shift` > 1. The values 0 and 1 do not change."""
    return shift * t / (1 + (shift - 1) * t)


def unshift_time(t: Tensor, shift: float) -> Tensor:
    return t / (shift - (shift - 1) * t)


def draw_sample(x_BCHW: Tensor, time: TimeDensity, draws: Draws, noise_scale: float = 1.0) -> Sample:
    """Draw noise and t for each sample of the batch, and compute the point x_t between noise and data."""
    noise_BCHW = scaled(draws.normal("noise", tuple(x_BCHW.shape[1:])).to(x_BCHW.dtype), noise_scale)
    t_B = time.at(*x_BCHW.shape[-2:]).draw(draws)
    return Sample(x_BCHW, noise_BCHW, t_B, interpolate(x_BCHW, noise_BCHW, t_B))


def scaled(noise_BCHW: Tensor, noise_scale: float) -> Tensor:
    """Scale noise of standard deviation 1 to the path's noise scale."""
    return noise_BCHW if noise_scale == 1 else noise_BCHW * noise_scale


def sampling_times(steps: int, shift: float) -> list[float]:
    """Return the samplers' time grid of steps + 1 times, from exactly 1 (noise) to exactly 0 (data)."""
    grid = shift_time(torch.linspace(1, 0, steps + 1, dtype=torch.float64), shift)
    return [float(t) for t in grid]
