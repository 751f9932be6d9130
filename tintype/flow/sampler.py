"""Samplers integrate the velocity from noise (t = 1) to data (t = 0). The state is in fp32 or better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator
from torch import Tensor

from tintype.config.strict import nearest
from tintype.plugins.table import Table
from tintype.seams import Draws, Sampler, VelocityFn


def euler(
    velocity: VelocityFn,
    noise: Tensor,
    times: Sequence[float],
    draws: Draws | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Tensor:
    """Integrate with Euler's method. Each step uses the velocity at its beginning."""
    x = noise
    for now, then in pairwise(times):
        x = x + (then - now) * velocity(x, now)
        on_step()
    return x


def heun(
    velocity: VelocityFn,
    noise: Tensor,
    times: Sequence[float],
    draws: Draws | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Tensor:
    """Integrate with Heun's method. Each step uses the mean of the velocities at its beginning and its end."""
    x = noise
    for now, then in pairwise(times):
        v = velocity(x, now)
        ahead = x + (then - now) * v
        if then > 0:  # the last step stays Euler: the velocity at t = 0 was never trained
            v = (v + velocity(ahead, then)) / 2
            ahead = x + (then - now) * v
        x = ahead
        on_step()
    return x


SAMPLERS: Table[Sampler] = Table("samplers", {"euler": euler, "heun": heun}, None)


def _known(name: str) -> str:
    if name not in SAMPLERS:
        raise ValueError(
            f"must be the name of a sampler; {nearest(name, SAMPLERS)}; for your own sampler, load its plugin"
        )
    return name


Method = Annotated[str, AfterValidator(_known)]
"""Name of a sampler."""
