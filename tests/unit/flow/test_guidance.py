"""The guidances on plain functions, and `unbias` on a Gaussian, whose contrastive minimiser is (v - λ m) / (1 - λ)."""

from __future__ import annotations

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from tests.branches import PlainBranches
from tests.gaussian import MEAN, STD, best_velocity
from tintype.flow.guidance import (
    AutoguidanceSettings,
    ClassifierFreeSettings,
    Guidance,
    GuidancePart,
    PathDropSettings,
    SelfSettings,
    VelocityBias,
)
from tintype.flow.path import sampling_times
from tintype.flow.sampler import heun
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
    branches = PlainBranches(lambda x, t: through(best_velocity(x, t)), lambda x, t: through(null_velocity(x, t)))
    return settings.build(branches, bias)


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.5])
@pytest.mark.parametrize("t", [0.1, 0.5, 1.0])
def test_undone_the_guided_velocity_is_that_of_a_model_without_the_bias(scale: float, t: float) -> None:
    """With guidance or without, inside its interval and outside."""
    honest = guided(scale, None, False)(NOISE, t)
    assert torch.allclose(guided(scale, BIAS, True)(NOISE, t), honest, rtol=0, atol=1e-14)
    assert float((guided(scale, None, True)(NOISE, t) - honest).abs().max()) > 0.1


def test_undone_the_sampler_ends_at_the_data() -> None:
    times = sampling_times(200, 1.0)
    end = heun(guided(1.0, BIAS, True), NOISE, times)
    assert torch.allclose(end, MEAN + STD * NOISE, atol=1e-3)
    left = heun(guided(1.0, None, True), NOISE, times)
    assert float((left - end).abs().max()) > 0.1


def test_the_mean_is_that_of_each_place() -> None:
    mean_CHW = torch.arange(12.0).view(3, 2, 2)
    branches = PlainBranches(lambda x, t: torch.zeros_like(x))
    velocity = ClassifierFreeSettings(scale=1.0).build(branches, VelocityBias(0.5, mean_CHW))
    assert torch.equal(velocity(torch.zeros(2, 3, 2, 2), 0.5), (mean_CHW / 2).expand(2, -1, -1, -1))


@pytest.mark.parametrize(
    ("settings", "weak"),
    [
        (ClassifierFreeSettings(scale=3.0, to_t=0.9), 2.0),
        (SelfSettings(scale=3.0, to_t=0.9, share=0.25), 0.25),
        (PathDropSettings(scale=3.0, to_t=0.9), 4.0),
        (AutoguidanceSettings(scale=3.0, to_t=0.9, step=7, length=0.05), 7.05),
    ],
)
def test_each_guidance_extrapolates_from_its_own_weak_velocity(settings: GuidancePart, weak: float) -> None:
    """v = weak + 3 (strong - weak) inside the interval, the strong one alone outside."""

    def constant(value: float) -> VelocityFn:
        return lambda x, t: torch.full_like(x, value)

    branches = PlainBranches(
        constant(5.0),
        constant(2.0),
        lambda x, t, share: torch.full_like(x, share),
        constant(4.0),
        lambda guide: constant(guide.step + (guide.length or 0)),
    )
    velocity = settings.build(branches)
    wanted = pytest.approx(weak + 3 * (5 - weak), rel=1e-12)
    assert float(velocity(NOISE, 0.5).unique()) == float(velocity(NOISE, 0.9).unique()) == wanted
    assert float(velocity(NOISE, 0.95).unique()) == 5.0


@pytest.mark.parametrize(
    "settings", [SelfSettings(scale=1.0), PathDropSettings(scale=1.0), AutoguidanceSettings(scale=1.0)]
)
def test_a_scale_of_one_asks_no_weak_branch(settings: GuidancePart) -> None:
    assert torch.equal(settings.build(PlainBranches(lambda x, t: x + t))(NOISE, 0.5), NOISE + 0.5)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"scale": 2}', ClassifierFreeSettings(scale=2)),
        ('"self"', SelfSettings()),
        ('{"kind": "path-drop", "scale": 3}', PathDropSettings(scale=3)),
        ('{"kind": "autoguidance", "step": 100}', AutoguidanceSettings(step=100)),
        ('{"kind": "autoguidance", "step": 0.25}', AutoguidanceSettings(step=0.25)),
    ],
)
def test_a_guidance_is_written_with_a_kind_or_without(written: str, meant: GuidancePart) -> None:
    assert TypeAdapter[GuidancePart](Guidance).validate_json(written) == meant


def test_the_words_of_a_guidance_say_all_that_differs_from_nothing_said() -> None:
    assert ClassifierFreeSettings(scale=3).words == "classifier-free guidance 3"
    assert PathDropSettings(scale=2, from_t=0.25, unbias=True).words == (
        "path-drop guidance 2 for t in 0.25-1, unbiased velocity"
    )
    assert "0.75 of the tokens skip" in SelfSettings(share=0.75).words
    assert "weights of step 1,000, average 0.1" in AutoguidanceSettings(step=1000, length=0.1).words
    assert "weights of 0.25 of the training)" in AutoguidanceSettings(step=0.25).words


@pytest.mark.parametrize("step", [0, -3, 0.0, 1.0, 2.5])
def test_a_step_that_is_neither_a_step_nor_a_share_is_refused(step: float) -> None:
    with pytest.raises(ValueError, match="neither a step, from 1 on, nor a share"):
        AutoguidanceSettings(step=step)
