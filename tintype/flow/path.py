"""The path between data and noise, and the density from which t is drawn.

The convention of the whole project (diffusers' and PRX's): `x` is data, t = 1 is pure noise,
x_t = (1 - t) x + t noise, and the velocity is v = dx_t/dt = noise - x.

B: samples, C: channels, H, W: latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tintype.seams import Draws, Sample
from tintype.settings import TimeSettings


def over_image(t_B: Tensor, like_BCHW: Tensor) -> Tensor:
    """t of each sample, shaped to broadcast over its image."""
    return t_B.view(-1, *[1] * (like_BCHW.ndim - 1))


def interpolate(x_BCHW: Tensor, noise_BCHW: Tensor, t_B: Tensor) -> Tensor:
    t = over_image(t_B, x_BCHW)
    return (1 - t) * x_BCHW + t * noise_BCHW


def velocity(x_BCHW: Tensor, noise_BCHW: Tensor) -> Tensor:
    return noise_BCHW - x_BCHW


def x_to_velocity(x_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor, clamp: float = 0.0) -> Tensor:
    """v = (x_t - x) / max(t, clamp): exact for t ≥ clamp."""
    return (x_t_BCHW - x_BCHW) / over_image(t_B.clamp_min(clamp), x_t_BCHW)


def velocity_to_x(v_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor:
    return x_t_BCHW - over_image(t_B, x_t_BCHW) * v_BCHW


def shift_time(t: Tensor, shift: float) -> Tensor:
    """Moves t towards the noise for shift > 1; 0 and 1 stay where they are."""
    return shift * t / (1 + (shift - 1) * t)


def unshift_time(t: Tensor, shift: float) -> Tensor:
    return t / (shift - (shift - 1) * t)


def draw_time(settings: TimeSettings, draws: Draws) -> Tensor:
    """t of each sample, fp32 in [lowest, 1)."""
    value, choice = draws.uniform("time", (2,)).double().unbind(1)
    return _time_at(settings, value, choice).float().clamp(settings.lowest, 1 - 2**-24)


_NODES = 1 << 17


def mean_over_time(settings: TimeSettings, of: Callable[[Tensor], Tensor]) -> float:
    """The mean of a function of t under the density of `draw_time`: the midpoint rule in float64 over its uniforms."""
    value = (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES
    share = settings.uniform_share
    uniform, other = (of(_time_at(settings, value, torch.full_like(value, choice))).mean() for choice in (0.0, 1.0))
    return float(share * uniform + (1 - share) * other)


def _time_at(settings: TimeSettings, value: Tensor, choice: Tensor) -> Tensor:
    """t from two uniforms, float64: the first gives its quantile, the second the component of a mixture."""
    if settings.kind == "uniform":
        lowest = float(unshift_time(torch.tensor(settings.lowest, dtype=torch.float64), settings.shift))
        return shift_time(lowest + (1 - lowest) * value, settings.shift)
    t = _logit_normal(settings, value)
    if settings.kind == "mixture":  # PRX: the uniform share is not shifted
        plain = settings.lowest + (1 - settings.lowest) * value
        t = torch.where(choice < settings.uniform_share, plain, t)
    return t


def _logit_normal(settings: TimeSettings, u: Tensor) -> Tensor:
    """The shifted logit-normal restricted to t ≥ lowest, by its inverse distribution function: no rejection loop."""
    lowest = unshift_time(torch.tensor(settings.lowest, dtype=torch.float64), settings.shift)
    mass_below = float(torch.special.ndtr((torch.logit(lowest) - settings.mean) / settings.std))
    quantile = (mass_below + (1 - mass_below) * u).clamp(1e-12, 1 - 1e-12)
    return shift_time(torch.sigmoid(settings.mean + settings.std * torch.special.ndtri(quantile)), settings.shift)


def draw_sample(x_BCHW: Tensor, settings: TimeSettings, draws: Draws) -> Sample:
    """Noise, t and the point between, for each sample of the batch."""
    noise_BCHW = draws.normal("noise", tuple(x_BCHW.shape[1:])).to(x_BCHW.dtype)
    t_B = draw_time(settings, draws)
    return Sample(x_BCHW, noise_BCHW, t_B, interpolate(x_BCHW, noise_BCHW, t_B))


def sampling_times(steps: int, shift: float) -> list[float]:
    """The grid of the samplers: steps + 1 times from exactly 1 (noise) to exactly 0 (data)."""
    grid = shift_time(torch.linspace(1, 0, steps + 1, dtype=torch.float64), shift)
    return [float(t) for t in grid]
