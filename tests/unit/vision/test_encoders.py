"""Settings of encoders as a user writes them, and features of many images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.settings import Settings, plain
from tintype.vision.clip import ClipSettings, SiglipSettings
from tintype.vision.dino import Dinov2Settings, Dinov3Settings
from tintype.vision.encoders import EncoderChoice
from tintype.vision.features import feature_matrix
from tintype.vision.inception import InceptionSettings
from tintype.vision.part import EncoderPart
from tintype.vision.scene_encoder import SceneEncoderSettings, scene_features
from tintype.vision.vgg import VggSettings

CPU = torch.device("cpu")


class Holder(Settings):
    encoders: tuple[EncoderChoice, ...] = ()


def written(text: str) -> Holder:
    return parse(Holder, read_yaml(f"encoders: {text}", "plan.yaml"))


def sample_images(count: int, height: int = 40, width: int = 40) -> Tensor:
    shape = (count, 3, height, width)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(height)).to(torch.uint8)


class Broken:
    """Gives infinity for an image that begins with 7."""

    name, definition, identity = "broken", "", ""

    def prepare(self, image_BCHW: Tensor) -> Tensor:
        return image_BCHW.float()

    def encode(self, input_BCHW: Tensor) -> Tensor:
        return input_BCHW[:, :, 0, 0].masked_fill(input_BCHW[:, :, 0, 0] == 7, torch.inf)


def test_a_kind_alone_is_short_for_its_defaults() -> None:
    found = written("[scenes, inception, {kind: dinov2, form: prx, name: dino-mmd}]").encoders
    assert found == (SceneEncoderSettings(), InceptionSettings(), Dinov2Settings(form="prx", name="dino-mmd"))
    assert [encoder.title for encoder in found] == ["scenes", "inception", "dino-mmd"]
    again = Holder.model_validate_json(Holder(encoders=found).model_dump_json())
    assert again.encoders == found
    assert plain(again)["encoders"][0] == {"kind": "scenes", "name": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[scens]", "encoders.0: unknown kind 'scens'; did you mean 'scenes'"),
        ("[{kind: dinov2, forn: prx}]", "encoders.0.forn: unknown key; did you mean 'form'"),
        ("[{form: prx}]", "encoders.0: say which kind; valid: clip, dinov2"),
        ("[{kind: inception, resize: nearest}]", "encoders.0.resize"),
        ("[{kind: scenes, name: 'a b'}]", "encoders.0.name"),
        ("[{kind: vgg16, size_px: 100}]", "encoders.0.size_px"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UserError, match="plan.yaml, line 1: " + message):
        written(text)


FID = {"fd": "FID", "fd_inf": "FID∞", "kid": "KID"}
FD_DINOV2, DINO_MMD = {"fd": "FD-DINOv2"}, {"mmd_published": "DINO-MMD"}


@pytest.mark.parametrize(
    ("settings", "published"),
    [
        (InceptionSettings(resize="tf"), FID),
        (InceptionSettings(resize="clean"), {kind: f"{name} (clean)" for kind, name in FID.items()}),
        (ClipSettings(), {"mmd_published": "CMMD (processor's crop)"}),
        (ClipSettings(form="cmmd"), {"mmd_published": "CMMD"}),
        (ClipSettings(form="cmmd", source="models/clip-vit-large-patch14-336/"), {"mmd_published": "CMMD"}),
        (ClipSettings(form="cmmd", source="openai/clip-vit-large-patch14"), {}),
        (ClipSettings(form="cmmd", source="clip-vit-large-patch14-336/other"), {}),
        (Dinov2Settings(), FD_DINOV2),
        (Dinov2Settings(source="/models/dinov2-large", size_px=224), FD_DINOV2),
        (Dinov2Settings(source="facebook/dinov2-base"), {}),
        (Dinov2Settings(source="facebook/dinov2-with-registers-large"), {}),
        (Dinov2Settings(size_px=518), {}),
        (Dinov2Settings(form="prx"), DINO_MMD),
        (Dinov2Settings(form="prx", source="./dinov2-with-registers-large", size_px=518), DINO_MMD),
        (Dinov2Settings(form="prx", source="facebook/dinov2-large"), {}),
        (Dinov2Settings(form="prx", size_px=224), {}),
        (SceneEncoderSettings(), {}),
        (VggSettings(), {}),
        (SiglipSettings(), {}),
        (Dinov3Settings(), {}),
    ],
    ids=str,
)
def test_a_published_name_is_given_to_its_exact_definition_only(
    settings: EncoderPart, published: dict[str, str]
) -> None:
    assert settings.published == published


def test_building_twice_is_one_encoder() -> None:
    assert SceneEncoderSettings().build(CPU) is SceneEncoderSettings().build(CPU) is scene_features(CPU)
    other = SceneEncoderSettings(name="other").build(CPU)
    assert (other.name, other.identity) == ("other", scene_features(CPU).identity)


def test_scene_features_are_those_of_a_reading() -> None:
    images = sample_images(5)
    torch.testing.assert_close(
        feature_matrix(scene_features(CPU), [images]), scene_features(CPU).read(images).feature_BF
    )


def test_rows_depend_on_nothing_but_their_image() -> None:
    """Neither on `batch` (to the last bit) nor on how the images come; single ones of other sizes in between."""
    encoder = scene_features(CPU)
    parts = [
        sample_images(61),
        sample_images(1, 64, 50)[0],
        sample_images(3, 90, 33),
        sample_images(8)[:0],
        sample_images(6, 64, 64),
    ]
    found = [feature_matrix(encoder, parts, batch) for batch in (1, 7, 64)]
    singles = [image for part in parts for image in (part if part.ndim == 4 else part[None])]
    found.append(feature_matrix(encoder, singles))
    assert found[0].shape == (71, 128)
    assert found[0].dtype == torch.float32
    assert all(torch.equal(found[0], other) for other in found[1:])
    backwards = feature_matrix(encoder, singles[::-1]).flip(0)
    assert torch.equal(found[0], backwards)


def test_images_are_counted_as_they_are_done() -> None:
    counts: list[int] = []
    feature_matrix(scene_features(CPU), [sample_images(150)], on_images=counts.append)
    assert counts == [64, 64, 22]


def test_a_feature_that_is_no_number_is_named_with_its_image() -> None:
    images = sample_images(30).clamp(min=8)
    images[21, :, 0, 0] = 7
    with pytest.raises(UserError, match=r"'broken' .*not finite for image 21"):
        feature_matrix(Broken(), [images])


def test_no_images_is_an_error() -> None:
    with pytest.raises(UserError, match="there are no images for the encoder 'scenes'"):
        feature_matrix(scene_features(CPU), [])
    with pytest.raises(ValueError, match="at least one"):
        feature_matrix(scene_features(CPU), [sample_images(2)], batch=0)


@pytest.mark.parametrize("image", [torch.rand(2, 3, 8, 8), torch.zeros(2, 3, 8, 8, dtype=torch.int64)])
def test_only_bytes_are_taken(image: Tensor) -> None:
    with pytest.raises(TypeError, match="uint8"):
        feature_matrix(scene_features(CPU), [image])
