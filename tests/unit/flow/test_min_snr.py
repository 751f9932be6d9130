from __future__ import annotations

import pytest
import torch

from tests.bounds import rounding_bound
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.flow.min_snr import MinSnrSettings
from tintype.flow.objective import VelocityObjective, mean_square
from tintype.flow.part import TimePart
from tintype.flow.time_density import LogitNormalTime, MixtureTime, UniformTime
from tintype.flow.x_prediction import XPrediction
from tintype.runtime.clock import Clock
from tintype.seams import Draws, Objective, Weighting
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session
from tintype.train.update import micro_batch_losses

CLAMP, GAMMA = 0.05, 5.0
UNIFORM = UniformTime(lowest=0.0)
OBJECTIVES: dict[str, Objective] = {"velocity": VelocityObjective(UNIFORM), "x": XPrediction(UNIFORM, CLAMP)}
T = torch.linspace(0, 1, 10_001, dtype=torch.float64)


def plain(objective: str, gamma: float = GAMMA) -> Weighting:
    return MinSnrSettings(gamma=gamma, normalised=False).build(UNIFORM, OBJECTIVES[objective])


def test_the_weight_of_a_velocity() -> None:
    """The rectified flow's own form, not that of a variance-preserving path."""
    assert torch.allclose(plain("velocity")(T), torch.minimum((1 - T) ** 2, GAMMA * T**2), rtol=1e-12, atol=0)


def test_the_weight_of_x_prediction_has_the_clamp_of_its_loss() -> None:
    expected = torch.minimum((1 - T) ** 2, GAMMA * T**2) * (T.clamp_min(CLAMP) / T).square()
    assert torch.allclose(plain("x")(T)[1:], expected[1:], rtol=1e-12, atol=0)


def test_scaled_noise_has_another_ratio() -> None:
    """The loss is min(SNR, γ) |x̂ - x|² with SNR = (1 - t)² / (t scale)²."""
    weighting = MinSnrSettings(gamma=GAMMA, normalised=False).build(UNIFORM, VelocityObjective(UNIFORM, 2.0))
    expected = torch.minimum((1 - T) ** 2 / 4, GAMMA * T**2)
    assert torch.allclose(weighting(T), expected, rtol=1e-12, atol=0)


def test_published_numbers() -> None:
    """The peak of the velocity's weight, and its mean over uniform t."""
    weight = plain("velocity")(T)
    assert float(T[weight.argmax()]) == pytest.approx(0.309, abs=5e-4)
    assert float(weight.max()) == pytest.approx(0.4775, abs=1e-4)
    assert float(weight.mean()) == pytest.approx(0.159, abs=1e-3)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ends_of_the_path(name: str, dtype: torch.dtype) -> None:
    ends = plain(name)(torch.tensor([0.0, 1e-30, 1.0], dtype=dtype))
    at_data = GAMMA * CLAMP**2 if name == "x" else 0.0
    assert ends.tolist() == pytest.approx([at_data, at_data, 0.0], rel=rounding_bound(4, 1.0, dtype), abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_error_of_x_counts_the_bounded_ratio(name: str) -> None:
    """As in the paper: whatever is predicted, the loss is min(SNR, γ) |x̂ - x|²."""
    objective = OBJECTIVES[name]
    x = torch.randn(512, 16, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sample = objective.draw(x, Draws(0, torch.arange(512)))
    t = sample.t_B.double()
    predicted_x = x + 0.1
    exact = (sample.x_t_BCHW - predicted_x) / t[:, None, None, None]
    output = predicted_x if name == "x" else exact
    error = mean_square(objective.velocity(output, sample.x_t_BCHW, sample.t_B), objective.target(sample))
    assert torch.allclose(plain(name)(t) * error, 0.1**2 * ((1 - t) / t).square().clamp_max(GAMMA), rtol=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(
    "time",
    [
        UniformTime(lowest=0.0),
        UniformTime(lowest=0.2, shift=3.0),
        LogitNormalTime(mean=-0.8, std=0.8),
        MixtureTime(),
        MixtureTime(uniform_share=0.4, shift=3.0, lowest=0.05, mean=0.5),
    ],
    ids=lambda time: f"{time.kind} {time.shift:g}",
)
def test_normalised_the_mean_weight_of_the_drawn_times_is_one(time: TimePart, name: str) -> None:
    weighting = MinSnrSettings().build(time, OBJECTIVES[name])
    weight = weighting(time.draw(Draws(0, torch.arange(200_000))).double())
    error = float(weight.std()) / len(weight) ** 0.5
    assert float(weight.mean()) == pytest.approx(1, abs=4 * error)
    assert error < 4e-3
    ratio = weighting(T[1:-1]) / plain(name)(T[1:-1])
    assert torch.allclose(ratio, ratio[0].expand_as(ratio), rtol=1e-12)


def test_the_training_step_weights_each_sample_by_its_own_time() -> None:
    plan = tiny_plan(techniques=["min-snr:gamma=2"])
    parts = build_session(plan)
    found = micro_batch_losses(parts, 0, 4, 0, Clock(parts.device))
    t = plan.time.draw(Draws(plan.seed, torch.arange(4)))
    weighting = MinSnrSettings(gamma=2.0).build(plan.time, parts.objective)
    each = []
    for position in range(4):
        alone = micro_batch_losses(build_session(tiny_plan()), position, 1, 0, Clock(parts.device))
        each.append(float(weighting(t)[position]) * alone.parts["flow"].item())
    assert found.parts["flow"].item() == pytest.approx(sum(each) / 4, rel=1e-5)


def test_a_bound_of_zero_is_refused() -> None:
    with pytest.raises(UserError, match="gamma"):
        apply_techniques(tiny_plan(), ["min-snr:gamma=0"])
