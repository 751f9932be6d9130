"""Deviation of the noise, shift by resolution, and JiT's density of t."""

from __future__ import annotations

import math

import pytest
import torch

from tests.tiny import tiny_plan
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.flow.path import shift_time
from tintype.plan import diff, read_plan
from tintype.sampling.generate import SamplerSettings, first_noise, generate
from tintype.seams import Draws
from tintype.settings import shift_factor
from tintype.study.contrasts import another_space
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session


def test_scaled_noise_is_in_the_point_and_in_the_velocity_and_at_the_start_of_sampling() -> None:
    usual, scaled = build_session(tiny_plan()), build_session(tiny_plan(techniques=["noise-scale:scale=2"]))
    x, draws = torch.randn(4, 3, 16, 16), Draws(0, torch.arange(4))
    one, two = usual.objective.draw(x, draws), scaled.objective.draw(x, draws)
    assert torch.equal(two.noise_BCHW, 2 * one.noise_BCHW) and torch.equal(two.t_B, one.t_B)
    t = one.t_B[:, None, None, None]
    assert torch.allclose(two.x_t_BCHW, (1 - t) * x + t * 2 * one.noise_BCHW, atol=1e-6)
    assert torch.allclose(scaled.objective.target(two), 2 * one.noise_BCHW - x, atol=1e-6)
    assert torch.equal(first_noise(scaled, draws, 16), 2 * first_noise(usual, draws, 16))


@pytest.mark.parametrize("names", [[], ["x-prediction"], ["epsilon-prediction"]])
def test_another_prediction_keeps_the_deviation_of_the_noise(names: list[str]) -> None:
    plan = tiny_plan("objective.noise_scale=2.0", techniques=names)
    assert plan.objective.noise_scale == 2.0
    assert build_session(plan).objective.noise_scale == 2.0


def test_validation_losses_of_other_noise_are_not_compared() -> None:
    """The target is scale · noise - x, so the error of any weights grows with the scale."""
    plan, scaled = tiny_plan(), tiny_plan(techniques=["noise-scale:scale=2"])
    assert another_space(scaled, plan).startswith("another space: the velocity is noise - x")
    assert "the deviation 2 here and 1 in the baseline" in another_space(scaled, plan)
    assert not another_space(scaled, tiny_plan("objective.noise_scale=2.0", techniques=["x-prediction"]))


def test_the_shift_follows_the_tokens() -> None:
    """Stable Diffusion 3: the root of the ratio of tokens. FLUX: exp of a line through (256, 0.5) and (4096, 1.15)."""
    assert [shift_factor("sqrt", tokens) for tokens in (64, 256, 1024, 4096)] == [0.5, 1.0, 2.0, 4.0]
    assert shift_factor("flux", 256) == pytest.approx(math.exp(0.5))
    assert shift_factor("flux", 4096) == pytest.approx(math.exp(1.15))
    mu = 1024 * (1.15 - 0.5) / (4096 - 256) + 0.5 - (1.15 - 0.5) / (4096 - 256) * 256
    assert shift_factor("flux", 1024) == pytest.approx(math.exp(mu))
    assert shift_factor("none", 4096) == 1.0
    t = torch.linspace(0.01, 0.99, 9, dtype=torch.float64)
    theirs = math.exp(mu) / (math.exp(mu) + (1 / t - 1))  # FLUX's time_shift with sigma 1
    assert torch.allclose(shift_time(t, shift_factor("flux", 1024)), theirs, rtol=1e-12)


@pytest.mark.parametrize("by", ["sqrt", "flux"])
def test_training_draws_times_with_the_shift_of_the_latents_own_size(by: str) -> None:
    plan = tiny_plan(f"time.shift_by={by}", "time.shift=1.5", "time.kind=uniform", "time.lowest=0.0")
    usual = tiny_plan("time.kind=uniform", "time.lowest=0.0")
    draws = Draws(0, torch.arange(64))
    even = usual.time.draw(draws).double()
    for height, width in ((16, 16), (16, 32), (64, 64)):
        x = torch.zeros(64, 3, height, width)
        tokens = (height // 4) * (width // 4)
        found = build_session(plan).objective.draw(x, draws).t_B.double()
        expected = shift_time(even, 1.5 * shift_factor(by, tokens))  # type: ignore[arg-type]
        assert torch.allclose(found, expected, atol=1e-6)
    assert plan.hash != tiny_plan("time.shift=1.5", "time.kind=uniform", "time.lowest=0.0").hash
    assert "shift_by" in " ".join(plan.warnings)


def test_sampling_takes_the_shift_of_the_size_that_it_makes() -> None:
    """With 16 tokens sqrt gives a quarter: the same images as with that shift."""
    settings = SamplerSettings(steps=3, guidance=ClassifierFreeSettings(scale=1.0))
    parts = [build_session(tiny_plan(f"sampling={one}")) for one in ("{shift_by: sqrt, shift: 3.0}", "{shift: 0.75}")]
    for one in parts:
        generator = torch.Generator().manual_seed(0)
        for parameter in one.modules.parameters():
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    first, second = (generate(one, ["a ball"], settings, seed=0, size_px=16) for one in parts)
    assert torch.equal(first, second)
    larger = [generate(one, ["a ball"], settings, seed=0, size_px=32) for one in parts]
    assert not torch.equal(*larger)


def test_jits_times_are_a_logit_normal_in_its_own_direction() -> None:
    """sigmoid(N(-0.8, 0.8)) is the share of data; ours is one minus it."""
    plan = tiny_plan("time.lowest=0.0", techniques=["jit-time"])
    t = plan.time.draw(Draws(0, torch.arange(50_000))).double()
    normal = torch.logit(1 - t)
    assert float(normal.mean()) == pytest.approx(-0.8, abs=0.02)
    assert float(normal.std()) == pytest.approx(0.8, abs=0.02)
    assert plan.time.lowest == 0.0


def test_jits_times_are_jits_whatever_the_shift_of_the_plan() -> None:
    """Half of its times lie below sigmoid(0.8) = 0.690. With PRX's shift of 3 on top it would be 0.870."""
    plain = read_plan("prx-jit-1024", ["time.shift_by=sqrt"])
    plan = apply_techniques(plain, ["jit-time"])
    half = torch.tensor([0.5], dtype=torch.float64)
    assert float(plan.time.quantile(half, half)) == pytest.approx(1 / (1 + math.exp(-0.8)), abs=1e-9)
    t = plan.time_density.draw(Draws(0, torch.arange(20_000))).double()
    assert float(t.median()) == pytest.approx(1 / (1 + math.exp(-0.8)), abs=0.01)
    changes = diff(plain, plan)
    assert changes["time.shift"] == (3.0, 1.0) and changes["time.shift_by"] == ("sqrt", "none")
    assert {key.split(".")[0] for key in changes} == {"time"}
