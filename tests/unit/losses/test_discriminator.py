from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.tiny_perceptual import sample_images
from tintype.losses.discriminator import (
    SMALLEST_PX,
    Discriminator,
    DiscriminatorSettings,
    discriminator_hinge,
    generator_hinge,
)
from tintype.tokenizers.part import to_floats


def adversary(width: int = 8) -> Discriminator:
    torch.manual_seed(0)
    return Discriminator(width)


def gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def test_the_hinge_losses_have_their_closed_forms() -> None:
    seen, true = torch.tensor([-2.0, -0.5, 3.0]).double(), torch.tensor([2.0, 0.25, -1.0]).double()
    assert discriminator_hinge(seen, true).item() == pytest.approx(0.5 * ((0 + 0.75 + 2) / 3 + (0 + 0.5 + 4) / 3))
    assert generator_hinge(seen).item() == pytest.approx(-0.5 / 3)
    assert discriminator_hinge(torch.tensor([-1.0, -9.0]), torch.tensor([1.0, 9.0])).item() == 0


def test_at_the_best_discriminator_of_equal_sets_the_loss_is_one() -> None:
    """Where seen and true cannot be told apart, E relu(1 - D) + E relu(1 + D) is at least 2 for any D."""
    logit = torch.linspace(-3, 3, 101).double()
    assert min(discriminator_hinge(one, one).item() for one in logit) == pytest.approx(1.0)


def test_the_losses_are_those_of_the_logits() -> None:
    judge, seen, true = adversary(), to_floats(sample_images(0)), to_floats(sample_images(1))
    assert judge.generator_loss(seen).item() == pytest.approx(-judge(seen).mean().item())
    expected = 0.5 * ((1 - judge(true)).clamp_min(0).mean() + (1 + judge(seen)).clamp_min(0).mean())
    assert judge.discriminator_loss(seen, true).item() == pytest.approx(expected.item())


def test_the_generators_loss_reaches_the_images_and_not_the_discriminator() -> None:
    judge, seen = adversary(), nn.Parameter(to_floats(sample_images(0)))
    torch.autograd.backward([judge.generator_loss(seen)])
    assert seen.grad is not None and float(seen.grad.abs().max()) > 0
    assert not gradients(judge)
    expected = torch.autograd.grad(-judge(seen).mean(), seen)[0]
    torch.testing.assert_close(seen.grad, expected)


def test_the_discriminators_loss_reaches_the_discriminator_and_no_image() -> None:
    judge, seen, true = (
        adversary(),
        nn.Parameter(to_floats(sample_images(0))),
        nn.Parameter(to_floats(sample_images(1))),
    )
    torch.autograd.backward([judge.discriminator_loss(seen, true)])
    assert seen.grad is None and true.grad is None
    assert len(gradients(judge)) == len(list(judge.parameters()))
    *inner, last_bias = gradients(judge)
    assert all(float(gradient.abs().max()) > 0 for gradient in inner)
    assert float(last_bias.abs()) < 1e-6  # it moves both logits alike, and none is beyond its hinge yet


def test_an_image_is_judged_by_itself() -> None:
    """With a batch norm it would not be."""
    judge, image = adversary(), to_floats(sample_images(0, count=4))
    alone = torch.cat([judge(one[None]) for one in image])
    torch.testing.assert_close(judge(image), alone, rtol=1e-4, atol=1e-6)


def test_its_shape_is_that_of_the_patch_discriminator_of_ldm() -> None:
    """3 layers, 64 channels: 2.77 M parameters and, at 256 px, 30 × 30 patches of 70 px."""
    judge = Discriminator()
    convolutions = sum(layer.weight.numel() for layer in judge.layers if isinstance(layer, nn.Conv2d))
    assert convolutions == 16 * (3 * 64 + 64 * 128 + 128 * 256 + 256 * 512 + 512)
    with torch.device("meta"):
        assert Discriminator()(torch.empty(1, 3, 256, 256)).shape == (1, 1, 30, 30)
    small = adversary()
    assert small(torch.zeros(1, 3, SMALLEST_PX, SMALLEST_PX)).shape == (1, 1, 1, 1)
    with pytest.raises(RuntimeError):
        small(torch.zeros(1, 3, SMALLEST_PX - 1, SMALLEST_PX - 1))


def test_it_learns_to_tell_two_sets_apart() -> None:
    judge, seen, true = adversary(), to_floats(sample_images(0)), to_floats(sample_images(1))
    optimizer = torch.optim.Adam(judge.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = judge.discriminator_loss(seen, true)
        torch.autograd.backward([loss])
        optimizer.step()
    assert loss.item() < 0.5


def test_it_is_off_by_default_and_before_its_first_step() -> None:
    assert not any(DiscriminatorSettings().on_at(step) for step in (0, 10**6))
    assert [DiscriminatorSettings(weight=0.1, start_step=3).on_at(step) for step in (2, 3, 4)] == [False, True, True]
