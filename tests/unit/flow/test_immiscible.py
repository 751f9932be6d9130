from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_plan
from tintype import rng
from tintype.errors import UserError
from tintype.flow.immiscible import Immiscible, ImmiscibleSettings, nearest_noise
from tintype.flow.objective import VelocitySettings
from tintype.flow.time_density import UniformTime
from tintype.flow.x_prediction import XPredictionSettings
from tintype.seams import Draws, Sample
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session

SHAPE = (3, 4, 4)
DRAWS = Draws(5, torch.arange(100, 106))


def images(count: int = 6) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def candidates(count: int, draws: Draws = DRAWS) -> Tensor:
    """[B, k, C, H, W]; the first are those of the baseline's stream."""
    streams = ["noise", *(f"noise/{index}" for index in range(1, count))]
    return torch.stack([rng.normal(draws.seed, stream, draws.position_B, SHAPE) for stream in streams], 1)


@pytest.mark.parametrize("count", [2, 5, 40])
def test_each_image_takes_the_nearest_of_its_own_noises(count: int) -> None:
    x, drawn = images(), candidates(count)
    distance2 = (x[:, None].double() - drawn.double()).square().sum((2, 3, 4))
    expected = drawn[torch.arange(len(x)), distance2.argmin(1)]
    assert torch.equal(nearest_noise(x, DRAWS, count), expected)


def test_a_draw_depends_on_nothing_but_its_image_and_position() -> None:
    x = images()
    whole = nearest_noise(x, DRAWS, 8)
    parts = [nearest_noise(x[i : i + 2], Draws(5, DRAWS.position_B[i : i + 2]), 8) for i in (0, 2, 4)]
    assert torch.equal(whole, torch.cat(parts))


def test_more_candidates_bring_the_noise_nearer() -> None:
    x = images()
    far, near, nearest = ((x - nearest_noise(x, DRAWS, k)).square().flatten(1).sum(1) for k in (2, 8, 64))
    assert (near <= far).all() and (nearest <= near).all() and (nearest < far).any()


@pytest.mark.parametrize("part", [VelocitySettings(), XPredictionSettings()])
def test_all_but_the_noise_is_the_plan_s_own(part: VelocitySettings | XPredictionSettings) -> None:
    x, inner = images(), part.build(UniformTime())
    paired = ImmiscibleSettings(candidates=4).pair(inner)
    found, usual = paired.draw(x, DRAWS), inner.draw(x, DRAWS)
    noise = nearest_noise(x, DRAWS, 4)
    t = usual.t_B[:, None, None, None]
    assert torch.equal(found.t_B, usual.t_B) and torch.equal(found.noise_BCHW, noise)
    torch.testing.assert_close(found.x_t_BCHW, (1 - t) * x + t * noise)
    own = Sample(x, noise, found.t_B, found.x_t_BCHW)
    assert torch.equal(paired.target(found), inner.target(own))
    prediction = images().flip(0)
    velocities = (one.velocity(prediction, found.x_t_BCHW, found.t_B) for one in (paired, inner))
    assert torch.equal(*velocities)
    assert torch.equal(paired.x_weight(found.t_B), inner.x_weight(found.t_B))


def test_no_gradient_goes_through_the_choice() -> None:
    x = images().requires_grad_()
    sample = Immiscible(VelocitySettings().build(UniformTime()), 4).draw(x, DRAWS)
    assert not sample.noise_BCHW.requires_grad and sample.x_t_BCHW.requires_grad


def test_a_training_draws_so() -> None:
    parts = build_session(tiny_plan(techniques=["immiscible:candidates=5"]))
    x, draws = torch.randn(4, 3, 16, 16), Draws(0, torch.arange(4))
    assert torch.equal(parts.draw(x, draws).noise_BCHW, nearest_noise(x, draws, 5))


def test_plans_without_it_keep_their_hash_and_one_candidate_is_refused() -> None:
    assert tiny_plan().hash == tiny_plan("noise=null").hash
    assert tiny_plan(techniques=["immiscible"]).hash != tiny_plan().hash
    with pytest.raises(UserError, match="must be at least 2"):
        apply_techniques(tiny_plan(), ["immiscible:candidates=1"])
