"""Samplers against the closed form of a Gaussian: x ~ N(m, s²) gives a linear velocity field with a known flow."""

from __future__ import annotations

import math

import pytest
import torch

from tests.branches import PlainBranches
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.flow.path import sampling_times
from tintype.flow.sampler import euler, heun
from tintype.seams import Draws, Sampler

MEAN, STD = 0.7, 0.5


def gaussian_velocity(x: torch.Tensor, t: float) -> torch.Tensor:
    """E[noise - x | x_t] for independent Gaussian data and noise."""
    variance = (1 - t) ** 2 * STD**2 + t**2
    centred = x - (1 - t) * MEAN
    return (t - (1 - t) * STD**2) / variance * centred - MEAN


def error(sampler: Sampler, steps: int) -> float:
    noise = torch.linspace(-2, 2, 9, dtype=torch.float64).view(-1, 1, 1, 1)
    made = sampler(gaussian_velocity, noise, sampling_times(steps, 1.0), Draws(0, torch.arange(9)), lambda: None)
    return float((made - (MEAN + STD * noise)).abs().max())


def test_samplers_converge_with_their_order() -> None:
    assert error(euler, 400) < 5e-3
    assert error(euler, 200) / error(euler, 400) == pytest.approx(2, rel=0.1)
    assert error(heun, 400) < 1e-4
    assert error(heun, 100) / error(heun, 200) > 3


def test_heun_costs_two_evaluations_but_for_the_last_step() -> None:
    calls = []

    def velocity(x: torch.Tensor, t: float) -> torch.Tensor:
        calls.append(t)
        return torch.zeros_like(x)

    heun(velocity, torch.zeros(1, 1, 1, 1), sampling_times(3, 1.0))
    assert len(calls) == 5 and 0.0 not in calls


def test_guidance_interval_and_scale() -> None:
    x = torch.zeros(2, 1, 1, 1)
    settings = ClassifierFreeSettings(scale=3.0, from_t=0.25, to_t=0.75)
    guided = settings.build(PlainBranches(lambda x, t: torch.ones_like(x), lambda x, t: torch.zeros_like(x)))
    assert guided(x, 0.5).unique().tolist() == [3.0]
    assert guided(x, 0.8).unique().tolist() == [1.0]
    assert math.isclose(float(guided(x, 0.2).mean()), 1.0)


def test_scale_one_asks_for_the_caption_alone() -> None:
    guided = ClassifierFreeSettings(scale=1.0).build(PlainBranches(lambda x, t: x + 1))
    assert float(guided(torch.zeros(1, 1, 1, 1), 0.5)) == 1
