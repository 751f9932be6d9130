from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import tiny_plan
from tests.tiny_dino import write_dino
from tests.tiny_perceptual import sample_images
from tintype.data.sources import open_source
from tintype.errors import UserError
from tintype.flow.path import shift_time
from tintype.rng import seeded
from tintype.runtime.interrupt import Interrupt
from tintype.settings import shift_factor
from tintype.tokenizers.part import channel_statistics
from tintype.tokenizers.rae import Rae, RaeDecoder, RaeEncoder, RaeSettings, RaeShape, positions, write_rae
from tintype.train.loop import train
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.part import TeacherPart
from tintype.vision.scene_encoder import SceneTeacherSettings

CPU = torch.device("cpu")
SHAPE = RaeShape(stride_px=4, width=8, depth=2, heads=2)
SCENES = SceneTeacherSettings()


def decoder(channels: int, shape: RaeShape = SHAPE) -> RaeDecoder:
    with seeded(0, "rae"):
        network = RaeDecoder(shape, channels)
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.3)
    return network.requires_grad_(False)


def folder_of(folder: Path, teacher: TeacherPart = SCENES) -> Path:
    """A rae with random weights whose latents have mean 0 and deviation 1 on the images of the tiny plan."""
    folder.mkdir()
    encoder = RaeEncoder(teacher, SHAPE.stride_px, CPU)
    network = decoder(encoder.channels)
    images = open_source(tiny_plan().data, "train", CPU).images(range(24))
    mean_C, std_C = channel_statistics([encoder(images)])
    network.latent_mean.copy_(mean_C.view(1, -1, 1, 1))
    network.latent_std.copy_(std_C.clamp_min(1e-6).view(1, -1, 1, 1))
    write_rae(folder, network, teacher, encoder.digest, {"psnr_db": 9.0})
    return folder


def dino() -> Dinov2TeacherSettings:
    return Dinov2TeacherSettings(source=str(write_dino()))


@pytest.mark.parametrize("teacher", [SCENES, None], ids=["scenes", "dinov2"])
def test_latents_are_the_teachers_tokens_each_of_mean_0_and_deviation_1(teacher: TeacherPart | None) -> None:
    teacher = teacher or dino()
    image = sample_images(1, 2, 16)[:, :, :12]
    found = RaeEncoder(teacher, 4, CPU)(image)
    token_BLC = teacher.build((3, 4), CPU).tokens(image).double()
    centred = token_BLC - token_BLC.mean(2, keepdim=True)
    wanted = centred / (centred.square().mean(2, keepdim=True) + 1e-6).sqrt()
    assert found.shape == (2, teacher.width(), 3, 4)
    for row in range(3):
        for column in range(4):
            torch.testing.assert_close(
                found[:, :, row, column].double(), wanted[:, 4 * row + column], rtol=1e-4, atol=1e-4
            )


def written_out(network: RaeDecoder, raw_BCHW: Tensor) -> Tensor:
    """The decoder image by image, head by head, pixel by pixel, in float64."""
    w: dict[str, Tensor] = {name: value.double() for name, value in network.state_dict().items()}
    shape, side = network.shape, network.shape.width // network.shape.heads
    images = []

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        even: Tensor = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        return even * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    for raw_CHW in raw_BCHW.double():
        rows, columns = raw_CHW.shape[1:]
        x = linear(raw_CHW.flatten(1).T, "embed") + positions(rows, columns, shape.width, CPU).double()
        for index in range(shape.depth):
            block = f"blocks.{index}"
            qkv = linear(norm(x, f"{block}.attention_norm"), f"{block}.qkv")
            heads = []
            for head in range(shape.heads):
                q, k, v = (
                    qkv[:, part * shape.width + head * side : part * shape.width + (head + 1) * side]
                    for part in (0, 1, 2)
                )
                heads.append((q @ k.T / math.sqrt(side)).softmax(1) @ v)
            x = x + linear(torch.cat(heads, 1), f"{block}.out")
            inner = linear(norm(x, f"{block}.mlp_norm"), f"{block}.up")
            x = x + linear(inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2))), f"{block}.down")
        pixel_LP = linear(norm(x, "norm"), "pixels")
        patch = shape.stride_px
        image = torch.zeros(3, rows * patch, columns * patch, dtype=torch.float64)
        for place, pixel_P in enumerate(pixel_LP):
            row, column = divmod(place, columns)
            block_CHW = pixel_P.view(3, patch, patch)
            image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = block_CHW
        images.append(image)
    return torch.stack(images)


def test_the_decoder_is_a_vision_transformer_written_out() -> None:
    network = decoder(5)
    raw_BCHW = torch.randn(2, 5, 2, 3, generator=torch.Generator().manual_seed(0))
    wanted = written_out(network, raw_BCHW)
    torch.testing.assert_close(network.decode_raw(raw_BCHW).double(), wanted, rtol=1e-4, atol=1e-4)


def test_positions_are_sines_and_cosines_of_row_and_column() -> None:
    found = positions(2, 3, 8, CPU)
    for row in range(2):
        for column in range(3):
            wanted = [
                wave(place * 10_000.0 ** (-index / 2))
                for place in (row, column)
                for wave in (math.sin, math.cos)
                for index in (0, 1)
            ]
            assert found[3 * row + column].tolist() == pytest.approx(wanted, abs=1e-6)


def test_the_shift_by_dimension_is_the_papers() -> None:
    """sqrt(m / n) with n = 4096: DINOv2-B's 16 × 16 tokens of 768 numbers."""
    assert (
        shift_factor("dimension", 256, 768)
        == pytest.approx(math.sqrt(196_608 / 4096))
        == pytest.approx(6.928, abs=1e-3)
    )
    assert shift_factor("dimension", 256, 16) == 1.0
    with pytest.raises(TypeError, match="needs the number of latent values per token"):
        shift_factor("dimension", 256)
    plan = tiny_plan("time.shift_by=dimension", "sampling.shift_by=dimension")  # 16 tokens of 4 × 4 × 3 numbers
    assert plan.token_numbers == 48 and plan.sampling.shift_at(16, 48) == pytest.approx(math.sqrt(16 * 48 / 4096))
    u = torch.tensor([0.2, 0.7], dtype=torch.float64)
    plain = tiny_plan().time.quantile(u, torch.ones_like(u))
    shifted = plan.time.at_tokens(16, 48).quantile(u, torch.ones_like(u))
    torch.testing.assert_close(shifted, shift_time(plain, math.sqrt(16 * 48 / 4096)), rtol=1e-3, atol=1e-3)


def test_a_folder_gives_back_what_was_written(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "rae")
    settings = RaeSettings(folder=str(folder)).resolved()
    assert (settings.channels, settings.stride_px) == (SCENES.width(), 4)
    assert settings.training_record() == {"psnr_db": 9.0}
    tokenizer, image = settings.build(), sample_images(0, 16, 16)
    z_BCHW = tokenizer.encode(image)
    assert z_BCHW.shape == (16, SCENES.width(), 4, 4) and z_BCHW.dtype == torch.float32
    assert tokenizer.encode(sample_images(0, 2, 16)[:, :, :8]).shape == (2, SCENES.width(), 2, 4)
    raw_BCHW = RaeEncoder(SCENES, 4, CPU)(image)
    torch.testing.assert_close(
        tokenizer.decode_float(z_BCHW), tokenizer.network.decode_raw(raw_BCHW), rtol=1e-3, atol=1e-3
    )
    assert torch.equal(tokenizer.encode(image[3:5]), z_BCHW[3:5])
    with pytest.raises(UserError, match=r"tokenizer\.sha256 records"):
        RaeSettings(folder=str(folder), sha256="0" * 64).build()
    with pytest.raises(UserError, match=r"but the rae in .* has 128 and 4"):
        RaeSettings(folder=str(folder), channels=16, stride_px=4).build()


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    file = folder_of(tmp_path / "rae") / "rae.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "encoder_digest": "0" * 64}))
    with pytest.raises(UserError, match="another weights of the encoder"):
        RaeSettings(folder=str(tmp_path / "rae")).build()
    with pytest.raises(UserError, match=r"has no trained rae .*--kind rae"):
        RaeSettings(folder=str(tmp_path)).build()


def test_identity_follows_decoder_and_encoder() -> None:
    first, second = RaeEncoder(SCENES, 4, CPU), RaeEncoder(SCENES, 4, CPU)
    network = decoder(first.channels)
    same = Rae(network, first).identity
    assert Rae(network, second).identity == same
    second.digest = "another"
    assert Rae(network, second).identity != same
    network.latent_mean.add_(1)
    assert Rae(network, first).identity != same


def test_a_plan_trains_on_its_latents_and_refuses_to_tune_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "rae")
    plan = tiny_plan(
        f"tokenizer={{kind: rae, folder: {folder}}}", "model.patch=1", "time.shift_by=dimension", "train.steps=2"
    )
    assert plan.token_grid == (4, 4) and plan.token_numbers == SCENES.width()
    tokenizer = plan.tokenizer.build(CPU)
    assert train(plan, tmp_path / "run", Interrupt()).finished
    assert json.loads((tmp_path / "run" / "loaded.json").read_text())["tokenizer"] == tokenizer.identity
    with pytest.raises(UserError, match="without a Gaussian"):
        tiny_plan(
            f"tokenizer={{kind: rae, folder: {folder}}}", "model.patch=1", techniques=["repa:teacher=scenes", "repa-e"]
        )
