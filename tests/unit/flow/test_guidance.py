"""`unbias` on the closed form of a Gaussian, whose contrastive minimiser is (v - λ m) / (1 - λ)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.gaussian import MEAN, STD, best_velocity
from tintype.flow.guidance import ClassifierFreeSettings, VelocityBias
from tintype.flow.path import sampling_times
from tintype.flow.sampler import integrate
from tintype.seams import VelocityFn

STRENGTH = 0.3
BIAS = VelocityBias(STRENGTH, torch.full((1, 1, 1), -MEAN, dtype=torch.float64))
NOISE = torch.linspace(-2, 2, 9, dtype=torch.float64).view(-1, 1, 1, 1)


def biased(v: Tensor) -> Tensor:
    return (v + STRENGTH * MEAN) / (1 - STRENGTH)


def null_velocity(x: Tensor, t: float) -> Tensor:
    return torch.sin(x) + t


def guided(scale: float, bias: VelocityBias | None, trained_biased: bool) -> VelocityFn:
    through = biased if trained_biased else torch.clone
    settings = ClassifierFreeSettings(scale=scale, from_t=0.25, to_t=0.75)
    return settings.build(
        lambda x, t: through(best_velocity(x, t)),
        lambda x, t: (through(best_velocity(x, t)), through(null_velocity(x, t))),
        bias,
    )


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.5])
@pytest.mark.parametrize("t", [0.1, 0.5, 1.0])
def test_undone_the_guided_velocity_is_that_of_a_model_without_the_bias(scale: float, t: float) -> None:
    """With guidance or without, inside its interval and outside."""
    honest = guided(scale, None, False)(NOISE, t)
    assert torch.allclose(guided(scale, BIAS, True)(NOISE, t), honest, rtol=0, atol=1e-14)
    assert float((guided(scale, None, True)(NOISE, t) - honest).abs().max()) > 0.1


def test_undone_the_sampler_ends_at_the_data() -> None:
    times = sampling_times(200, 1.0)
    end = integrate(guided(1.0, BIAS, True), NOISE, times, "heun")
    assert torch.allclose(end, MEAN + STD * NOISE, atol=1e-3)
    left = integrate(guided(1.0, None, True), NOISE, times, "heun")
    assert float((left - end).abs().max()) > 0.1


def test_the_mean_is_that_of_each_place() -> None:
    mean_CHW = torch.arange(12.0).view(3, 2, 2)
    velocity = ClassifierFreeSettings(scale=1.0).build(
        lambda x, t: torch.zeros_like(x), lambda x, t: (x, x), VelocityBias(0.5, mean_CHW)
    )
    assert torch.equal(velocity(torch.zeros(2, 3, 2, 2), 0.5), (mean_CHW / 2).expand(2, -1, -1, -1))
