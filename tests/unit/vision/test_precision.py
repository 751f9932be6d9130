"""Frozen networks in bf16 and compiled, against the same network in fp32: tiny random models of the real classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from tests.tiny import tiny_plan
from tests.tiny_clip import write
from tests.tiny_dino import write_dino
from tests.tiny_perceptual import sample_images, view_of, write_alexnet
from tests.unit.vision.test_teachers import PROCESSOR, dinov2, dinov3, vit
from tintype.evaluation.protocol import Protocol
from tintype.losses.lpips import LpipsLossSettings
from tintype.losses.perceptual import PerceptualPart, PerceptualTerm
from tintype.losses.perceptual_dino import PerceptualDinoSettings
from tintype.tokenizers.pixels import Pixels
from tintype.vision.dino import Dinov2Settings, Dinov2TeacherSettings, Dinov3TeacherSettings
from tintype.vision.transformers_teacher import HubTeacherPart, TransformersTeacherSettings

transformers = pytest.importorskip("transformers")

CPU, GPU = torch.device("cpu"), torch.device("cuda")
GRID = (3, 2)
CLOSE = 0.999
"""Cosine of features in bf16 with those in fp32: a mantissa of 8 bits errs by 2^-9 at each of some ten roundings."""


def plain_scale(model: Any) -> Any:
    """Give a random network weights of a trained one's size, which keep its activations near one."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "norm" in name or "lambda" in name:
            continue
        nn.init.normal_(parameter, std=0.25 if parameter.ndim > 1 else 0.02, generator=generator)
    return model


TEACHERS: list[tuple[Callable[..., HubTeacherPart], Callable[[], Any]]] = [
    (Dinov2TeacherSettings, dinov2),
    (Dinov3TeacherSettings, dinov3),
    (TransformersTeacherSettings, vit),
]


@pytest.mark.parametrize(("kind", "make"), TEACHERS)
def test_tokens_in_bf16_point_as_those_in_fp32(
    kind: Callable[..., HubTeacherPart], make: Callable[[], Any], tmp_path: Path
) -> None:
    part = partial(kind, source=str(write(tmp_path, plain_scale(make()), PROCESSOR)))
    exact, narrow = (part(arithmetic=how).build(GRID, CPU) for how in ("fp32", "bf16"))
    image = sample_images(0)
    cosine_BL = cosine_similarity(exact.tokens(image), narrow.tokens(image), dim=-1)
    assert float(cosine_BL.min()) > CLOSE
    assert narrow.tokens(image).dtype == torch.float32 and not torch.equal(exact.tokens(image), narrow.tokens(image))
    assert exact.identity != narrow.identity and narrow.definition.endswith("bf16")
    wide = narrow.at_grid((2, 4))
    assert float(cosine_similarity(exact.at_grid((2, 4)).tokens(image), wide.tokens(image), dim=-1).min()) > CLOSE


def test_a_teacher_is_bf16_on_a_gpu_and_fp32_on_the_cpu_unless_it_is_said() -> None:
    usual = Dinov2TeacherSettings()
    assert (usual.arithmetic, usual.arithmetic_on(CPU), usual.arithmetic_on(GPU)) == ("auto", "fp32", "bf16")
    for how in ("fp32", "tf32", "bf16"):
        part = Dinov2TeacherSettings(arithmetic=how)
        assert part.arithmetic_on(CPU) == part.arithmetic_on(GPU) == how
    source = str(write_dino())
    auto, fp32 = (Dinov2TeacherSettings(source=source, arithmetic=how).build(GRID, CPU) for how in ("auto", "fp32"))
    assert auto.identity == fp32.identity


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Compile without the compiler's own passes, which take long on a CPU; note what is compiled."""
    done: list[nn.Module] = []
    compile_module = nn.Module.compile

    def noted(self: nn.Module, **how: Any) -> None:
        assert how == {"dynamic": False}
        done.append(self)
        compile_module(self, backend="eager", **how)

    monkeypatch.setattr(nn.Module, "compile", noted)
    return done


def test_a_compiled_teacher_gives_the_same_tokens_on_every_grid(compiled: list[nn.Module]) -> None:
    source = str(write_dino())
    plain, fast = (Dinov2TeacherSettings(source=source, compile=on).build(GRID, CPU) for on in (False, True))
    for grid in (GRID, (2, 4)):
        assert torch.equal(plain.at_grid(grid).tokens(sample_images(0)), fast.at_grid(grid).tokens(sample_images(0)))
    assert len(compiled) == 1, "all grids share one network"
    assert fast.identity != plain.identity and fast.definition.endswith("fp32, compiled")


def test_an_encoder_of_metrics_runs_in_bf16_and_compiled_where_it_is_said(compiled: list[nn.Module]) -> None:
    part = partial(Dinov2Settings, source=str(write_dino()), size_px=28)
    exact = part().build(CPU)
    narrow, fast = part(arithmetic="bf16").build(CPU), part(compile=True).build(CPU)
    image = sample_images(0)
    features = [one.encode(one.prepare(image)) for one in (exact, narrow, fast)]
    assert float(cosine_similarity(features[0], features[1]).min()) > CLOSE
    assert torch.equal(features[0], features[2]) and len(compiled) == 1
    assert len({one.identity for one in (exact, narrow, fast)}) == 3


def perceptual(kind: str, **more: Any) -> PerceptualPart:
    if kind == "lpips":
        return LpipsLossSettings(net="alexnet", weights=str(write_alexnet()), **more)
    return PerceptualDinoSettings(source=str(write_dino()), size_px=28, **more)


def losses_of(part: PerceptualPart) -> tuple[str | None, Tensor, Tensor]:
    """Return identity, loss of each sample, and its gradient."""
    term = PerceptualTerm(part, CPU)
    identity = term.ready()
    predicted = Pixels().encode(sample_images(1)).requires_grad_()
    loss_B = term.loss(view_of(predicted, sample_images(0)))
    (gradient,) = torch.autograd.grad(loss_B.sum(), predicted)
    return identity, loss_B.detach(), gradient


@pytest.mark.parametrize("kind", ["lpips", "perceptual-dino"])
def test_a_perceptual_loss_in_bf16_has_about_the_loss_and_the_gradient_of_fp32(kind: str) -> None:
    name, exact_B, exact = losses_of(perceptual(kind))
    other, loss_B, gradient = losses_of(perceptual(kind, compute="bf16"))
    assert loss_B.dtype == gradient.dtype == torch.float32 and not torch.equal(loss_B, exact_B)
    torch.testing.assert_close(loss_B, exact_B, rtol=0.05, atol=1e-3)
    assert float(cosine_similarity(gradient.flatten(), exact.flatten(), dim=0)) > 0.95
    assert other == f"{name} bf16"


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it
@pytest.mark.parametrize("kind", ["lpips", "perceptual-dino"])
def test_a_compiled_perceptual_loss_is_the_same(kind: str, compiled: list[nn.Module]) -> None:
    name, exact_B, exact = losses_of(perceptual(kind))
    other, loss_B, gradient = losses_of(perceptual(kind, compile=True))
    assert torch.equal(loss_B, exact_B) and torch.equal(gradient, exact) and len(compiled) == 1
    assert other == f"{name} compiled"


def test_every_choice_has_a_hash_of_its_own() -> None:
    hashes = {
        tiny_plan("data.size_px=64", techniques=["x-prediction", f"lpips:{option}"]).hash
        for option in ("weight=0.1", "compute=bf16", "compile=true")
    }
    teachers = {
        tiny_plan(techniques=[f"repa:teacher={{kind: dinov2, compile: {on}}}"]).hash for on in ("true", "false")
    }
    protocols = {Protocol(encoders=(Dinov2Settings(compile=on),)).hash for on in (True, False)}
    assert (len(hashes), len(teachers), len(protocols)) == (3, 2, 2)
