"""The DINOv2 term against transformers' own model, with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from tests.bounds import rounding_bound
from tests.tiny import tiny_plan
from tests.tiny_dino import PATCH, REGISTERS, SIZE_PX, dino_model, write_dino
from tests.tiny_perceptual import sample_images, view_of
from tintype.errors import UserError
from tintype.losses.perceptual import PerceptualTerm
from tintype.losses.perceptual_dino import PerceptualDinoSettings
from tintype.tokenizers.pixels import Pixels

transformers = pytest.importorskip("transformers")

CPU = torch.device("cpu")


def ready_term(source: Path, size_px: int = SIZE_PX) -> PerceptualTerm:
    term = PerceptualTerm(PerceptualDinoSettings(source=str(source), size_px=size_px), CPU)
    term.ready()
    return term


def patch_tokens(image_BCHW: Tensor, size_px: int, first: int = 1 + REGISTERS) -> Tensor:
    """Return the tokens of an image in [-1, 1], in float64; the tokens from `first` on."""
    small = interpolate(image_BCHW.double(), (size_px, size_px), mode="bilinear", antialias=True)
    mean, std = (
        torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    tokens_BLD: Tensor = dino_model().double()((((small + 1) / 2).clamp(0, 1) - mean) / std).last_hidden_state
    return tokens_BLD[:, first:]


def formula(predicted_BCHW: Tensor, true_BCHW: Tensor, size_px: int = SIZE_PX, first: int = 1 + REGISTERS) -> Tensor:
    a, b = (normalize(patch_tokens(image, size_px, first), dim=-1) for image in (predicted_BCHW, true_BCHW))
    return 1 - (a * b).sum(-1).mean(1)


@pytest.mark.parametrize(("data_px", "size_px"), [(16, 28), (64, 28), (32, 56)])
def test_is_one_minus_the_mean_cosine_of_the_patches(data_px: int, size_px: int) -> None:
    image, predicted = sample_images(0, size_px=data_px), Pixels().encode(sample_images(1, size_px=data_px))
    loss_B = ready_term(write_dino(), size_px).loss(view_of(predicted, image))
    with torch.no_grad():
        wanted_B = formula(predicted, Pixels().encode(image), size_px)
    torch.testing.assert_close(loss_B.double(), wanted_B, atol=1e-5, rtol=1e-4)
    assert float(wanted_B.min()) > 1e-3


def test_the_network_sees_no_brighter_or_darker_pixels_than_images_have() -> None:
    """Clamped after the resize, as PRX does; what lies outside has no gradient."""
    term, image = ready_term(write_dino()), sample_images(0, size_px=SIZE_PX)
    outside = Pixels().encode(sample_images(1, size_px=SIZE_PX)) * 3
    outside[outside.abs() < 1.1] = 0.5
    loss_B = term.loss(view_of(outside.requires_grad_(), image))
    torch.testing.assert_close(loss_B, term.loss(view_of(outside.detach().clamp(-1, 1), image)))
    (slope_BCHW,) = torch.autograd.grad(loss_B.sum(), outside)
    assert not slope_BCHW[outside.abs() > 1].any() and slope_BCHW[outside.abs() < 1].all()


def test_class_and_register_tokens_are_left_out() -> None:
    image, predicted = sample_images(0), Pixels().encode(sample_images(1))
    loss_B = ready_term(write_dino()).loss(view_of(predicted, image)).double()
    with torch.no_grad():
        others = [formula(predicted, Pixels().encode(image), first=first) for first in range(1 + REGISTERS)]
    assert all(float((loss_B - other_B).abs().max()) > 1e-3 for other_B in others)


def test_a_network_without_registers_will_do(tmp_path: Path) -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 2}
    config = transformers.Dinov2Config(**size, image_size=SIZE_PX, patch_size=PATCH)
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    image = sample_images(0)
    assert float(ready_term(tmp_path).loss(view_of(Pixels().encode(image), image)).abs().max()) < rounding_bound(
        16, 1.0
    )


def test_gradient_is_that_of_the_formula_in_float64() -> None:
    image, predicted = sample_images(0), Pixels().encode(sample_images(1))
    true = image.double() / 127.5 - 1
    fine = predicted.double().requires_grad_()
    (wanted,) = torch.autograd.grad(formula(fine, true).sum(), fine)
    coarse = predicted.requires_grad_()
    (found,) = torch.autograd.grad(ready_term(write_dino()).loss(view_of(coarse, image)).sum(), coarse)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4 * float(wanted.abs().max()), rtol=1e-3)

    way = torch.randn(fine.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ahead, behind = (formula(fine + sign * 1e-6 * way, true).sum() for sign in (1, -1))
    assert float((found.double() * way).sum()) == pytest.approx(float(ahead - behind) / 2e-6, rel=1e-3)


@pytest.mark.parametrize("size_px", [30, 13])
def test_a_size_that_is_no_multiple_of_the_patch_is_refused_with_both_numbers(size_px: int) -> None:
    settings = PerceptualDinoSettings(source=str(write_dino()), size_px=size_px)
    with pytest.raises(UserError, match=rf"perceptual-dino: .*patches of 14 px; size_px \({size_px}\) must be a multi"):
        settings.fetch((4, 4))
    with pytest.raises(UserError, match="multiple"):
        PerceptualTerm(settings, CPU).ready()


def test_the_revision_is_asked_for() -> None:
    with pytest.raises(UserError, match=f"{write_dino()} at v1 has patches"):
        PerceptualDinoSettings(source=str(write_dino()), revision="v1", size_px=30).fetch((4, 4))


def test_another_kind_of_network_is_refused(tmp_path: Path) -> None:
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="is a model of the type 'vit', but this encoder needs dinov2"):
        PerceptualDinoSettings(source=str(tmp_path)).fetch((4, 4))


def test_the_defaults_are_prxs() -> None:
    (loss,) = tiny_plan(techniques=["x-prediction", "perceptual-dino"]).losses
    assert isinstance(loss, PerceptualDinoSettings)
    assert (loss.weight, loss.threshold, loss.size_px) == (0.01, 1.0, 224)
    assert loss.source == "facebook/dinov2-with-registers-base"
