from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats

from tintype.flow import path
from tintype.flow.time_density import LogitNormalTime, MixtureTime, UniformTime
from tintype.seams import Draws


def pair() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(6, 3, 4, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    return x, noise, torch.linspace(0.05, 1, 6, dtype=torch.float64)


def test_the_ends_of_the_path() -> None:
    x, noise, t = pair()
    assert torch.equal(path.interpolate(x, noise, torch.zeros_like(t)), x)
    assert torch.equal(path.interpolate(x, noise, torch.ones_like(t)), noise)


def test_velocity_is_the_derivative_of_the_path() -> None:
    x, noise, t = pair()
    step = 1e-6
    slope = (path.interpolate(x, noise, t + step) - path.interpolate(x, noise, t - step)) / (2 * step)
    assert torch.allclose(slope, path.velocity(x, noise), atol=1e-8)


def test_x_converts_to_the_velocity() -> None:
    x, noise, t = pair()
    x_t, v = path.interpolate(x, noise, t), path.velocity(x, noise)
    assert torch.allclose(path.x_to_velocity(x, x_t, t), v)
    assert torch.allclose(path.x_to_velocity(x, x_t, t, clamp=0.05), v)
    clamped = path.x_to_velocity(x, x_t, t, clamp=0.5)
    assert torch.allclose(clamped[0], v[0] * t[0] / 0.5)


@pytest.mark.parametrize("shift", [1.0, 3.0, 0.5])
def test_shift_and_its_inverse(shift: float) -> None:
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    moved = path.shift_time(t, shift)
    assert moved[0] == 0 and moved[-1] == 1
    assert torch.allclose(path.unshift_time(moved, shift), t)


def test_the_sampling_grid_of_prx() -> None:
    assert path.sampling_times(4, 3.0) == pytest.approx([1, 0.9, 0.75, 0.5, 0])


def draws(count: int = 20_000) -> Draws:
    return Draws(0, torch.arange(count))


def test_uniform_time() -> None:
    t = UniformTime(lowest=0.0).draw(draws())
    assert t.dtype == torch.float32
    assert stats.kstest(t.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_logit_normal_time(shift: float) -> None:
    settings = LogitNormalTime(mean=-0.3, std=0.8, shift=shift)
    t = path.unshift_time(settings.draw(draws()).double(), shift)
    assert stats.kstest(torch.logit(t).numpy(), stats.norm(-0.3, 0.8).cdf).pvalue > 1e-3


def test_mixture_is_nine_tenths_shifted_logit_normal_and_one_tenth_plain_uniform() -> None:
    t = MixtureTime(shift=3.0).draw(draws(100_000)).double().numpy()

    def distribution(value: Any) -> Any:
        value = torch.as_tensor(value)
        normal = torch.special.ndtr(torch.logit(path.unshift_time(value, 3.0)))
        return (0.9 * normal + 0.1 * (value - 0.001) / 0.999).numpy()

    assert stats.kstest(t, distribution).pvalue > 1e-3
    assert t.min() >= 0.001 and t.max() < 1


@pytest.mark.parametrize("kind", [MixtureTime, LogitNormalTime, UniformTime])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_the_mean_over_time_is_that_of_the_drawn_times(
    kind: type[MixtureTime | LogitNormalTime | UniformTime], shift: float
) -> None:
    settings = kind(uniform_share=0.3, mean=-0.5, std=0.8, lowest=0.1, shift=shift)
    for of in (torch.square, torch.exp, lambda t: (t < 0.3).double()):
        drawn = of(settings.draw(draws(200_000)).double())
        error = float(drawn.std()) / len(drawn) ** 0.5
        assert settings.mean_of(of) == pytest.approx(float(drawn.mean()), abs=4 * error)


def test_the_mean_over_time_in_closed_form() -> None:
    assert UniformTime(lowest=0.2).mean_of(torch.square) == pytest.approx((1 - 0.2**3) / 3 / 0.8, rel=1e-9)
    symmetric = LogitNormalTime(lowest=0.0, std=2.0)
    assert symmetric.mean_of(lambda t: t) == pytest.approx(0.5, abs=1e-9)
    mixed = MixtureTime(uniform_share=0.25, lowest=0.2, mean=100.0, std=0.1)
    assert mixed.mean_of(lambda t: t) == pytest.approx(0.25 * 0.6 + 0.75, abs=1e-9)


def test_noise_and_time_of_a_sample_do_not_depend_on_the_batch() -> None:
    x = torch.zeros(8, 3, 4, 4)
    whole = path.draw_sample(x, MixtureTime(), Draws(1, torch.arange(8)))
    part = path.draw_sample(x[:2], MixtureTime(), Draws(1, torch.tensor([5, 6])))
    assert torch.equal(whole.noise_BCHW[5:7], part.noise_BCHW) and torch.equal(whole.t_B[5:7], part.t_B)
