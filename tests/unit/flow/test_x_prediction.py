from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.gaussian import MEAN, STD, best_velocity
from tests.tiny import tiny_plan
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.flow.objective import mean_square
from tintype.flow.path import draw_sample, velocity
from tintype.flow.sampler import heun
from tintype.flow.time_density import MixtureTime, UniformTime
from tintype.flow.x_prediction import XPrediction
from tintype.sampling.generate import SamplerSettings, generate
from tintype.seams import Draws
from tintype.tokenizers.pixels import Pixels
from tintype.train.session import build_session

CLAMP = 0.05


def test_the_loss_is_the_weighted_square_of_the_error_in_x() -> None:
    """JiT: both sides become velocities with the same clamp, so the weight is 1 / max(t, clamp)²."""
    objective = XPrediction(UniformTime(lowest=0.0), CLAMP)
    x = torch.randn(64, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sample = objective.draw(x, Draws(0, torch.arange(64)))
    predicted = x + 0.1
    loss = mean_square(objective.velocity(predicted, sample.x_t_BCHW, sample.t_B), objective.target(sample))
    expected = 0.1**2 / sample.t_B.double().clamp_min(CLAMP) ** 2
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert torch.allclose(loss, 0.1**2 * objective.x_weight(sample.t_B.double()), rtol=1e-5)
    assert float(sample.t_B.min()) < CLAMP


def test_a_perfect_prediction_gives_the_true_velocity_outside_the_clamp() -> None:
    x = torch.randn(32, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    sample = draw_sample(x, UniformTime(lowest=0.06), Draws(0, torch.arange(32)))
    made = XPrediction(MixtureTime(), CLAMP).velocity(x, sample.x_t_BCHW, sample.t_B)
    assert torch.allclose(made, velocity(x, sample.noise_BCHW), atol=1e-4)


def test_minimiser_on_gaussian_data_is_the_posterior_mean() -> None:
    """For x ~ N(0, s²) and one t, the best linear x̂ = a x_t has a = (1-t) s² / ((1-t)² s² + t²)."""
    s, t, count = 0.6, 0.4, 200_000
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(count, dtype=torch.float64, generator=generator) for _ in range(2))
    x_t = (1 - t) * s * x + t * noise
    coefficient = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    objective = XPrediction(MixtureTime(), CLAMP)
    t_B = torch.full((count,), t, dtype=torch.float64)
    velocity_of_x = objective.velocity((s * x)[:, None], x_t[:, None], t_B)
    predicted = objective.velocity((coefficient * x_t)[:, None], x_t[:, None], t_B)
    loss = (predicted - velocity_of_x).square().mean()
    (slope,) = torch.autograd.grad(loss, coefficient, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, coefficient)
    best = float((-slope / curvature).detach())
    assert abs(best - (1 - t) * s**2 / ((1 - t) ** 2 * s**2 + t**2)) < 0.01


def best_x(x_t: Tensor, t: float) -> Tensor:
    """E[x | x_t] on Gaussian data."""
    return x_t - t * best_velocity(x_t, t)


def test_latents_of_sixteen_channels_take_the_same_trajectory_as_with_the_velocity() -> None:
    """Down to the clamp; from there one step ends at the data."""
    objective = XPrediction(MixtureTime(), CLAMP)
    noise = torch.randn(64, 16, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def by_x(x_t: Tensor, t: float) -> Tensor:
        return objective.velocity(best_x(x_t, t), x_t, torch.full((64,), t, dtype=x_t.dtype))

    times = [float(t) for t in torch.linspace(1, CLAMP, 200, dtype=torch.float64)]
    reached = heun(by_x, noise, times)
    assert torch.allclose(reached, heun(best_velocity, noise, times), atol=1e-12)
    assert torch.allclose(heun(by_x, noise, [*times, 0.0]), MEAN + STD * noise, atol=0.02)


def test_the_sampler_divides_by_the_clamp_that_the_loss_divides_by() -> None:
    """With x̂ = 0 an Euler step multiplies x_t by 1 - dt / max(t, clamp); without the clamp the last gives zero."""
    parts = replace(build_session(tiny_plan(techniques=["x-prediction:clamp=0.3"])), tokenizer=AsItIs())
    for parameter in parts.modules.parameters():
        torch.nn.init.zeros_(parameter)
    settings = SamplerSettings(steps=10, guidance=ClassifierFreeSettings(scale=2.0))
    made = generate(parts, ["a"], settings, seed=0, size_px=16)
    noise = Draws(0, torch.arange(1)).normal("sample", (3, 16, 16))
    factor = math.prod(1 - 0.1 / max(t / 10, 0.3) for t in range(1, 11))
    assert factor > 0.05
    assert torch.allclose(made, factor * noise, atol=1e-5)
    t_B = torch.tensor([0.1])
    assert float(parts.objective.x_weight(t_B)) == pytest.approx(1 / 0.3**2)


class AsItIs(Pixels):
    def decode(self, z_BCHW: Tensor) -> Tensor:
        return z_BCHW
