from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tests.tiny_perceptual import sample_images
from tests.unit.losses.alignment_views import normal
from tintype.losses.vf import VfSettings, balance, marginal_cosine, marginal_distances
from tintype.vision.scene_encoder import FEATURES, SceneTeacherSettings

CPU = torch.device("cpu")
SCENES = SceneTeacherSettings()


def cosine(one: list[float], other: list[float]) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths


def written_out(z_BLT: Tensor, token_BLT: Tensor, m1: float, m2: float) -> tuple[float, float]:
    """The two losses of the paper, place by place and pair by pair."""
    near, pairs = [], []
    for z, f in zip(z_BLT.tolist(), token_BLT.tolist(), strict=True):
        for i in range(len(z)):
            near.append(max(0.0, 1 - m1 - cosine(z[i], f[i])))
            for j in range(len(z)):
                pairs.append(max(0.0, abs(cosine(z[i], z[j]) - cosine(f[i], f[j])) - m2))
    return sum(near) / len(near), sum(pairs) / len(pairs)


@pytest.mark.parametrize(("m1", "m2"), [(0.5, 0.25), (0.0, 0.0), (0.9, 0.6)])
def test_both_losses_are_the_formulas_place_by_place(m1: float, m2: float) -> None:
    z_BLT, token_BLT = normal(2, 6, 5).double(), normal(2, 6, 5, seed=1).double()
    near, pairs = written_out(z_BLT, token_BLT, m1, m2)
    assert float(marginal_cosine(z_BLT, token_BLT, m1)) == pytest.approx(near, rel=1e-12)
    assert float(marginal_distances(z_BLT, token_BLT, m2)) == pytest.approx(pairs, rel=1e-12)
    assert near > 0


def test_the_teachers_own_tokens_have_no_loss_even_turned_or_scaled() -> None:
    """Pairs keep their cosines in any turned space; the place by place cosine does not."""
    token_BLT = normal(2, 6, 5).double()
    turn_TT = torch.linalg.qr(normal(5, 5, seed=3).double()).Q
    assert float(marginal_cosine(3 * token_BLT, token_BLT, 0.0)) == pytest.approx(0, abs=1e-12)
    assert float(marginal_distances(token_BLT @ turn_TT, token_BLT, 0.0)) == pytest.approx(0, abs=1e-12)
    assert float(marginal_cosine(token_BLT @ turn_TT, token_BLT, 0.0)) > 0.1


def test_the_weight_is_the_ratio_of_gradients_at_the_last_layer() -> None:
    weight, x = nn.Parameter(normal(3, 4).double()), normal(4, seed=1).double()
    y = weight @ x
    first, second = (2 * y).square().sum(), y.abs().sum()
    of_first = torch.outer(8 * (weight.detach() @ x), x)
    of_second = torch.outer((weight.detach() @ x).sign(), x)
    wanted = of_first.norm() / (of_second.norm() + 1e-4)
    found = balance(first, second, weight)
    assert float(found) == pytest.approx(float(wanted), rel=1e-12) and not found.requires_grad
    torch.autograd.backward([first + found * second])  # both graphs are still there
    torch.testing.assert_close(weight.grad, of_first + wanted * of_second)


def test_a_loss_without_gradient_gets_no_endless_weight() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    assert float(balance(1e6 * weight.sum(), 0.0 * weight.sum(), weight)) == pytest.approx(1e8)


def test_the_term_projects_latents_and_sees_the_teachers_tokens_at_their_places() -> None:
    loss = VfSettings(weight=0.1, teacher=SCENES).build(3, (4, 4), 0, CPU)
    assert loss is not None
    image, z_BCHW = sample_images(0, 2, 32), normal(2, 3, 4, 4)
    token_BLT = loss.look(image)
    assert token_BLT.shape == (2, 16, FEATURES) and not token_BLT.requires_grad
    projected = torch.einsum("bchw,tc->bhwt", z_BCHW, loss.project.weight).reshape(2, 16, FEATURES)
    wanted = sum(written_out(projected.detach().double(), token_BLT.double(), 0.5, 0.25))
    found = loss(z_BCHW, token_BLT)
    assert found.item() == pytest.approx(wanted, rel=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(z_BCHW, token_BLT), found)
    assert [name for name, _ in loss.named_parameters()] == ["project.weight"]


def test_without_adaptive_the_weight_is_its_own() -> None:
    loss = VfSettings(weight=0.3, adaptive=False, teacher=SCENES).build(3, (4, 4), 0, CPU)
    assert loss is not None
    assert float(loss.weight(torch.tensor(2.0), torch.tensor(5.0), torch.ones(1))) == pytest.approx(0.3)


def test_off_nothing_is_loaded() -> None:
    assert VfSettings().build(3, (4, 4), 0, CPU) is None
