"""JiT's grid: what the network predicts, and whose squared error the loss is (arXiv 2511.13720, table 1)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_plan
from tintype.flow.epsilon_prediction import EpsilonPrediction
from tintype.flow.loss_space import LossSpaceSettings
from tintype.flow.objective import VelocityObjective, mean_square
from tintype.flow.time_density import UniformTime
from tintype.flow.x_prediction import XPrediction
from tintype.runtime.clock import Clock
from tintype.seams import Draws, Objective
from tintype.train.session import build_session
from tintype.train.update import micro_batch_losses

CLAMP = 0.05
INSIDE = UniformTime(lowest=0.06)
SPACES = ("x", "velocity", "epsilon")


def objective_of(predicts: str, noise_scale: float = 1.0) -> Objective:
    found: dict[str, Objective] = {
        "velocity": VelocityObjective(INSIDE, noise_scale),
        "x": XPrediction(INSIDE, CLAMP, noise_scale),
        "epsilon": EpsilonPrediction(INSIDE, CLAMP, noise_scale),
    }
    return found[predicts]


def three(predicts: str, output: Tensor, z: Tensor, t: Tensor) -> dict[str, Tensor]:
    """The paper's table: x, v and noise from one of them and z = (1 - t) x + t noise."""
    if predicts == "x":
        return {"x": output, "velocity": (z - output) / t, "epsilon": (z - (1 - t) * output) / t}
    if predicts == "velocity":
        return {"x": z - t * output, "velocity": output, "epsilon": z + (1 - t) * output}
    return {"x": (z - t * output) / (1 - t), "velocity": (output - z) / (1 - t), "epsilon": output}


@pytest.mark.parametrize("noise_scale", [1.0, 2.0])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("predicts", SPACES)
def test_each_of_the_nine_losses_is_the_squared_error_in_its_space(
    predicts: str, space: str, noise_scale: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, output = (torch.randn(64, 3, 4, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    objective = objective_of(predicts, noise_scale)
    sample = objective.draw(x, Draws(0, torch.arange(64)))
    keep = sample.t_B < 1 - CLAMP
    t = sample.t_B.double()
    found = mean_square(objective.velocity(output, sample.x_t_BCHW, t), objective.target(sample))
    if space != "velocity":
        found = found * LossSpaceSettings(space=space).build(INSIDE, objective)(t)  # type: ignore[arg-type]
    at = t[:, None, None, None]
    true = {"x": x, "velocity": sample.noise_BCHW - x, "epsilon": sample.noise_BCHW}[space]
    expected = (three(predicts, output, sample.x_t_BCHW, at)[space] - true).square().flatten(1).mean(1)
    assert torch.allclose(found[keep], expected[keep], rtol=1e-4)
    assert keep.sum() > 50


@pytest.mark.parametrize(("predicts", "space"), [("x", "x"), ("epsilon", "epsilon")])
def test_in_its_own_space_a_prediction_has_no_weight_left_even_under_the_clamp(predicts: str, space: str) -> None:
    objective = objective_of(predicts)
    t = torch.tensor([0.001, 0.02, 0.5, 0.98, 0.999], dtype=torch.float64)
    z, first, second = torch.randn(3, 5, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    error = mean_square(objective.velocity(first, z, t), objective.velocity(second, z, t))
    weight = LossSpaceSettings(space=space).build(INSIDE, objective)(t)  # type: ignore[arg-type]
    assert torch.allclose(error * weight, (first - second).square().flatten(1).mean(1), rtol=1e-12)


def test_the_error_of_the_other_space_has_the_clamp_of_the_prediction() -> None:
    """Below it the noise of an x-prediction, and the x of a noise, are divided by the clamp, not by t or 1 - t."""
    t = torch.tensor([0.001, 0.02, 0.5, 0.98, 0.999], dtype=torch.float64)
    z, first, second = torch.randn(3, 5, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    at = t[:, None, None, None]

    def noise_of(x: Tensor) -> Tensor:
        noise: Tensor = (z - (1 - at) * x) / at.clamp_min(CLAMP)
        return noise

    def x_of(noise: Tensor) -> Tensor:
        x: Tensor = (z - at * noise) / (1 - at).clamp_min(CLAMP)
        return x

    for predicts, space, derived in (("x", "epsilon", noise_of), ("epsilon", "x", x_of)):
        objective = objective_of(predicts)
        error = mean_square(objective.velocity(first, z, t), objective.velocity(second, z, t))
        weight = LossSpaceSettings(space=space).build(INSIDE, objective)(t)  # type: ignore[arg-type]
        expected = mean_square(derived(first), derived(second))
        assert torch.allclose(error * weight, expected, rtol=1e-12)


def test_a_training_step_takes_the_loss_in_its_space() -> None:
    """The loss of a sample on x is that on velocities times t²."""
    plan = tiny_plan()
    t = float(plan.time.draw(Draws(plan.seed, torch.arange(1))))
    usual, weighted = (
        micro_batch_losses(build_session(tiny_plan(techniques=names)), 0, 1, 0, Clock(torch.device("cpu")))
        for names in ([], ["loss-space:space=x"])
    )
    assert weighted.parts["flow"].item() == pytest.approx(t**2 * usual.parts["flow"].item(), rel=1e-5)
