"""REG: the class token's path and loss, its way through the denoiser, and its denoising beside the image."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import tiny_plan
from tests.tiny_dino import dino_model, write_dino
from tests.tiny_perceptual import sample_images
from tintype.data.captions import NULL_CAPTION
from tintype.errors import UserError
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.flow.path import sampling_times
from tintype.losses.class_token import ClassTokens, class_noise, noised_class_tokens
from tintype.metrics.validation import TIMES, batch_errors
from tintype.model import Transformer
from tintype.model.fused import why_plain
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings, sample_latents
from tintype.schedule import Schedule
from tintype.seams import Draws, TextTokens
from tintype.settings import ModelSettings
from tintype.study.contrasts import another_space
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import Model, build_model
from tintype.train.session import build_session
from tintype.train.update import micro_batch_losses
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.scene_encoder import SceneTeacherSettings

CPU = torch.device("cpu")
REG = "reg:teacher=scenes,hidden=32"
WIDTH = SceneTeacherSettings().width()


def reg_plan(*assignments: str) -> Plan:
    return tiny_plan(*assignments, techniques=[REG])


def scrambled(model: Model) -> Model:
    """The model with weights that all matter."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.modules.parameters():
        nn.init.normal_(parameter, std=0.15, generator=generator)
    return model


def test_the_class_token_is_noised_at_the_images_t() -> None:
    draws, t_B = Draws(3, torch.arange(2)), torch.tensor([0.25, 0.9], dtype=torch.float64)
    clean_BT = torch.arange(8, dtype=torch.float64).view(2, 4)
    found = noised_class_tokens(4, {"class-token": clean_BT}, draws, t_B)
    noise_BT = class_noise(draws, 4)
    for row in range(2):
        for column in range(4):
            t, c, n = float(t_B[row]), float(clean_BT[row, column]), float(noise_BT[row, column])
            assert found is not None and float(found[row, column]) == pytest.approx((1 - t) * c + t * n, rel=1e-12)
    assert noised_class_tokens(0, {}, draws, t_B) is None
    with pytest.raises(UserError, match=r"model\.class_token is 4, but the teacher gives one of 3 numbers"):
        noised_class_tokens(4, {"class-token": torch.zeros(2, 3)}, draws, t_B)


def test_the_loss_is_the_error_of_its_velocity_and_counts_by_its_weight() -> None:
    """mean (predicted - (n - c))², with zeros predicted at the start; 0.03 of it is added."""
    parts = build_session(reg_plan())
    parts.ready()
    found = micro_batch_losses(parts, 0, 4, 0, Clock(CPU)).parts
    images = parts.source.images(parts.order.ids(0, 4))
    clean_BT = ClassTokens(SceneTeacherSettings(), CPU)(images, (4, 4)).double()
    target_BT = class_noise(Draws(0, torch.arange(4)), WIDTH).double() - clean_BT
    wanted = [sum(x * x for x in row) / WIDTH for row in target_BT.tolist()]
    assert found["class-token"].item() == pytest.approx(sum(wanted) / 4, rel=1e-5)
    total = found["flow"] + 0.5 * found["repa"] + 0.03 * found["class-token"]
    assert found["loss"].item() == pytest.approx(total.item(), rel=1e-6)


@pytest.mark.parametrize("teacher", ["scenes", "dinov2"])
def test_class_tokens_have_mean_0_and_deviation_1(teacher: str) -> None:
    image = sample_images(1, 3, 28)
    if teacher == "scenes":
        found = ClassTokens(SceneTeacherSettings(), CPU)(image, (2, 2))
        raw = SceneTeacherSettings().build((2, 2), CPU).tokens(image).mean(1)
    else:
        settings = Dinov2TeacherSettings(source=str(write_dino()))
        found = ClassTokens(settings, CPU)(image, (2, 2))
        with torch.no_grad():
            prepared = settings.build((2, 2), CPU).prepare(image)
            raw = dino_model()(pixel_values=prepared).last_hidden_state[:, 0]
    raw = raw.double()
    wanted = (raw - raw.mean(1, keepdim=True)) / (raw.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3)


def test_it_is_one_more_token_without_a_place() -> None:
    """A register of the same content gives the same image; and the class token itself sees the image."""
    settings = ModelSettings(depth=2, width=16, heads=2, patch=4, class_token=6)
    with_class, with_register = (
        Transformer(one, 3, 8).eval()
        for one in (settings, settings.model_copy(update={"class_token": 0, "registers": 1}))
    )
    generator = torch.Generator().manual_seed(1)
    for parameter in with_class.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    own = {name: value for name, value in with_class.state_dict().items() if not name.startswith("class_token.")}
    class_1T = torch.randn(1, 6, generator=generator)
    assert with_class.class_token is not None
    register = with_class.class_token.token(class_1T).detach().flatten()
    with_register.load_state_dict({**own, "registers": register})
    x, tokens = torch.randn(2, 3, 8, 8, generator=generator), torch.randn(2, 3, 8, generator=generator)
    text, t_B = TextTokens(tokens, torch.ones(2, 3, dtype=torch.bool)), torch.tensor([0.2, 0.7])
    with torch.no_grad():
        found = with_class(x, t_B, text, class_BT=class_1T.expand(2, -1))
        wanted = with_register(x, t_B, text)
        other = with_class(x + 1, t_B, text, class_BT=class_1T.expand(2, -1))
    torch.testing.assert_close(found.prediction_BCHW, wanted.prediction_BCHW, rtol=1e-4, atol=1e-5)
    assert found.class_BT.shape == (2, 6) and not torch.allclose(found.class_BT, other.class_BT)
    with pytest.raises(TypeError, match=r"is needed if model\.class_token is set"):
        with_class(x, t_B, text)
    with pytest.raises(TypeError, match=r"is needed if model\.class_token is set"):
        with_register(x, t_B, text, class_BT=class_1T)


@torch.no_grad()
def test_sampling_denoises_it_beside_the_image() -> None:
    """Euler's steps of both, guided with one scale, written out."""
    parts, captions, scale = scrambled(build_model(reg_plan())), ["a red ball", "a blue ring"], 2.5
    draws = Draws(5, torch.arange(2))
    settings = SamplerSettings(steps=3, guidance=ClassifierFreeSettings(scale=scale))
    found = sample_latents(parts, captions, settings, draws, 16)
    x, c = draws.normal("sample", (3, 16, 16)), draws.normal("class-token", (WIDTH,))
    caption, null = parts.text.encode(captions), parts.text.encode([NULL_CAPTION] * 2)
    for now, then in pairwise(sampling_times(3, 1.0)):
        t_B = torch.full((2,), now)
        strong, weak = (parts.denoiser(x, t_B, text, class_BT=c) for text in (caption, null))
        v = weak.prediction_BCHW + scale * (strong.prediction_BCHW - weak.prediction_BCHW)
        w = weak.class_BT + scale * (strong.class_BT - weak.class_BT)
        x, c = x + (then - now) * v, c + (then - now) * w
    torch.testing.assert_close(found, x, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_validation_gives_the_denoiser_the_images_own_class_token() -> None:
    parts = scrambled(build_model(reg_plan()))
    ids, found = [0, 1], batch_errors(parts, parts.source, [0, 1], 7)
    draws, image = Draws(7, torch.tensor(ids)), parts.source.images(ids)
    x, noise = image.float() / 127.5 - 1, draws.normal("validation", (3, 16, 16))
    clean = ClassTokens(SceneTeacherSettings(), CPU)(image, (4, 4))
    text = parts.text.encode([record.captions["long"] for record in parts.source.records(ids)])
    t = TIMES[2]
    class_BT = (1 - t) * clean + t * class_noise(draws, WIDTH)
    predicted = parts.denoiser((1 - t) * x + t * noise, torch.full((2,), t), text, class_BT=class_BT).prediction_BCHW
    wanted: Tensor = (predicted - (noise - x)).square().flatten(1).mean(1)
    torch.testing.assert_close(found[2].float(), wanted, rtol=1e-3, atol=1e-4)


def test_a_trained_run_is_sampled_without_its_teacher(tmp_path: Path) -> None:
    train(reg_plan("train.steps=2"), tmp_path / "run", Interrupt())
    parts, _ = load_run(tmp_path / "run")
    assert "class_tokens" not in vars(parts)
    sample_latents(parts, ["a red ball"], SamplerSettings(steps=2), Draws(0, torch.arange(1)), 16)
    assert "class_tokens" not in vars(parts), "the teacher is for validation alone"
    assert "class-token" in json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])


def test_plans_that_cannot_have_it_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.class_token is 8, but no loss gives the denoiser a class token"):
        tiny_plan("model.class_token=8")
    with pytest.raises(UserError, match=r"set model\.class_token to the width"):
        tiny_plan("losses=[{kind: class-token, teacher: scenes}]")
    plan = reg_plan()
    repa, denoised = plan.losses
    stopping = denoised.model_copy(update={"schedule": Schedule(kind="until", end=3)})
    with pytest.raises(ValueError, match="the schedule of this loss must be constant"):
        Plan(**{**dict(plan), "losses": (repa, stopping)})


def test_with_it_blocks_run_plain_and_validation_losses_are_not_compared() -> None:
    plan, baseline = reg_plan(), tiny_plan()
    assert "model.class_token" in str(why_plain(plan.model, plan.precision, torch.device("cuda")))
    repa, denoised = plan.losses
    other = plan.model_copy(update={"losses": (repa, denoised.model_copy(update={"teacher": Dinov2TeacherSettings()}))})
    for one in (baseline, other):
        assert "do not read the same class token" in another_space(plan, one)
    assert not another_space(plan, plan)
    assert tiny_plan("model.class_token=0").hash == baseline.hash
