"""Integrates the velocity from noise (t = 1) to data (t = 0). The state is fp32 or better.

B: samples, C: channels, H, W: latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor

from tintype.seams import VelocityFn

Method = Literal["euler", "heun"]


def integrate(
    velocity: VelocityFn,
    noise_BCHW: Tensor,
    times: Sequence[float],
    method: Method = "euler",
    on_step: Callable[[], None] = lambda: None,
) -> Tensor:
    x = noise_BCHW
    for now, then in pairwise(times):
        v = velocity(x, now)
        ahead = x + (then - now) * v
        if method == "heun" and then > 0:  # the last step stays Euler: the velocity at t = 0 was never trained
            v = (v + velocity(ahead, then)) / 2
            ahead = x + (then - now) * v
        x = ahead
        on_step()
    return x
