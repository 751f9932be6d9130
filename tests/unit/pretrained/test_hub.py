"""Encoders through transformers, with tiny random models of the real classes, against transformers itself."""

from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from tests.bounds import rounding_bound
from tests.tiny_clip import PATCH, PROCESSOR, SIZE_PX, TOWER, VISION, text_tower, write, write_clip, write_tokenizer
from tintype.errors import UserError
from tintype.pretrained import hub
from tintype.pretrained.hub import Checkpoint
from tintype.pretrained.preprocess import IMAGENET_MEAN, IMAGENET_STD
from tintype.vision.clip import ClipSettings, SiglipSettings
from tintype.vision.dino import Dinov2Settings, Dinov3Settings
from tintype.vision.features import feature_matrix

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

CPU = torch.device("cpu")
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
TEXTS = ["a red ball", "blue grass", "a ball on grass on grass on grass on grass on grass"]


def sample_images(height: int = 30, width: int = 44, count: int = 3) -> Tensor:
    return torch.randint(0, 256, (count, 3, height, width), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = transformers.SiglipModel(transformers.SiglipConfig(text_config=text_tower(), vision_config=VISION))
    size = {"height": SIZE_PX, "width": SIZE_PX}
    said = {"size": size, "resample": 3, "rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    folder = write(tmp_path_factory.mktemp("siglip"), model, said)
    write_tokenizer(folder)
    return folder


def dinov2_model(registers: bool) -> Any:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2}
    common = {**size, "image_size": SIZE_PX, "patch_size": PATCH}
    if registers:
        config = transformers.Dinov2WithRegistersConfig(**common, num_register_tokens=4)
        return transformers.Dinov2WithRegistersModel(config).eval()
    return transformers.Dinov2Model(transformers.Dinov2Config(**common)).eval()


def changed_copy(folder: Path, to: Path, **files: str | None) -> Path:
    """A copy with other contents of some .json files, or without them."""
    shutil.copytree(folder, to)
    for name, content in files.items():
        if content is None:
            (to / f"{name}.json").unlink()
        else:
            (to / f"{name}.json").write_text(content)
    return to


def other_tokenizer(folder: Path, vocabulary: dict[str, int], **parts: Any) -> str:
    """The folder's tokenizer.json with other words, and with other `parts` besides."""
    said = json.loads((folder / "tokenizer.json").read_text())
    said["model"]["vocab"] = vocabulary
    return json.dumps({**said, **parts})


def standardised(
    image_BCHW: Tensor, mean: list[float] | tuple[float, ...], std: list[float] | tuple[float, ...]
) -> Tensor:
    return (image_BCHW / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def squashed(image_BCHW: Tensor, size_px: int) -> Tensor:
    resized = [
        np.asarray(Image.fromarray(i.permute(1, 2, 0).numpy()).resize((size_px, size_px), Image.Resampling.BICUBIC))
        for i in image_BCHW
    ]
    return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float()


@torch.no_grad()
def test_clip_is_transformers_clip(clip: Path) -> None:
    encoder: Any = ClipSettings(source=str(clip)).build(CPU)
    model = transformers.CLIPModel.from_pretrained(clip).eval()
    image = sample_images()  # lying: Pillow resizes its columns first, whatever its version
    processor = transformers.CLIPImageProcessorPil.from_pretrained(clip)
    wanted_input = processor(images=[i.permute(1, 2, 0).numpy() for i in image], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(encoder.prepare(image), wanted_input, atol=rounding_bound(3, wanted_input), rtol=0)

    tokenizer = transformers.AutoTokenizer.from_pretrained(clip)
    text = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=7, return_tensors="pt")
    output = model(input_ids=text["input_ids"], attention_mask=text["attention_mask"], pixel_values=wanted_input)
    unit = torch.nn.functional.normalize
    torch.testing.assert_close(unit(feature_matrix(encoder, [image])), output.image_embeds)
    torch.testing.assert_close(unit(encoder.encode_text(TEXTS)), output.text_embeds)
    assert encoder.encode(encoder.prepare(image)).shape == encoder.encode_text(TEXTS).shape == (3, 12)


@torch.no_grad()
@pytest.mark.parametrize(("height", "width"), [(30, 45), (53, 30)])
def test_clip_in_cmmds_form_cuts_before_it_resizes(clip: Path, height: int, width: int) -> None:
    """As cmmd/io_util.py does it with Pillow; of an odd rest the far side loses one more."""
    encoder: Any = ClipSettings(source=str(clip), form="cmmd").build(CPU)
    image = sample_images(height, width)
    top, left = (height - 30) // 2, (width - 30) // 2
    cut = [Image.fromarray(i.permute(1, 2, 0).numpy()).crop((left, top, left + 30, top + 30)) for i in image]
    resized = np.stack([np.asarray(i.resize((SIZE_PX, SIZE_PX), Image.Resampling.BICUBIC)) for i in cut])
    wanted = standardised(torch.from_numpy(resized).permute(0, 3, 1, 2).float(), MEAN, STD)
    torch.testing.assert_close(encoder.prepare(image), wanted, atol=rounding_bound(3, wanted), rtol=0)
    processor: Any = ClipSettings(source=str(clip)).build(CPU)
    assert not torch.equal(processor.prepare(image), encoder.prepare(image))
    assert torch.equal(processor.prepare(sample_images(40, 40)), encoder.prepare(sample_images(40, 40)))
    assert processor.identity != encoder.identity


def test_cmmds_form_resizes_with_its_own_filter(clip: Path, tmp_path: Path) -> None:
    said = json.dumps({**PROCESSOR, "resample": 2, "rescale_factor": 1 / 127.5})
    bilinear = changed_copy(clip, tmp_path / "bilinear", preprocessor_config=said)
    encoder, other = (ClipSettings(source=str(folder), form="cmmd").build(CPU) for folder in (clip, bilinear))
    assert torch.equal(encoder.prepare(sample_images()), other.prepare(sample_images()))


@torch.no_grad()
def test_siglip_is_transformers_siglip(siglip: Path) -> None:
    encoder: Any = SiglipSettings(source=str(siglip)).build(CPU)
    model = transformers.SiglipModel.from_pretrained(siglip).eval()
    image = sample_images()
    inputs = (squashed(image, SIZE_PX) / 255 - 0.5) / 0.5
    torch.testing.assert_close(encoder.prepare(image), inputs, atol=rounding_bound(3, inputs), rtol=0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(siglip)
    ids = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=7, return_tensors="pt")["input_ids"]
    output = model(input_ids=ids, pixel_values=inputs)
    unit = torch.nn.functional.normalize
    torch.testing.assert_close(unit(encoder.encode(inputs)), output.image_embeds)
    torch.testing.assert_close(unit(encoder.encode_text(TEXTS)), output.text_embeds)


def test_many_texts_are_encoded_in_parts_and_in_order(clip: Path) -> None:
    encoder: Any = ClipSettings(source=str(clip)).build(CPU)
    rows = encoder.encode_text(TEXTS * 30)
    torch.testing.assert_close(rows, encoder.encode_text(TEXTS).repeat(30, 1))


@torch.no_grad()
def test_dinov2_is_that_of_fd_dinov2(tmp_path: Path) -> None:
    model = dinov2_model(registers=False)
    encoder: Any = Dinov2Settings(source=str(write(tmp_path, model)), size_px=42).build(CPU)
    image = sample_images()
    inputs = standardised(squashed(image, 42), IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(encoder.prepare(image), inputs, atol=rounding_bound(3, inputs), rtol=0)
    wanted = model(pixel_values=inputs).last_hidden_state
    torch.testing.assert_close(encoder.encode(inputs), wanted[:, 0])


@torch.no_grad()
def test_dinov2_in_prxs_form_has_registers_and_no_antialiasing(tmp_path: Path) -> None:
    model = dinov2_model(registers=True)
    encoder: Any = Dinov2Settings(source=str(write(tmp_path, model)), form="prx", size_px=SIZE_PX).build(CPU)
    image = sample_images(90, 70)
    resized = interpolate(image.double(), (SIZE_PX, SIZE_PX), mode="bicubic").float()
    inputs = standardised(resized, IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(encoder.prepare(image), inputs, atol=2e-6, rtol=0)
    wanted = model(pixel_values=inputs).last_hidden_state
    torch.testing.assert_close(encoder.encode(inputs), wanted[:, 0])


@torch.no_grad()
def test_dinov3_is_transformers_dinov3(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.DINOv3ViTConfig(**TOWER, patch_size=16, image_size=32, num_register_tokens=4)
    model = transformers.DINOv3ViTModel(config).eval()
    said = {"size": {"height": 32, "width": 32}, "resample": 2, "image_mean": MEAN, "image_std": STD}
    encoder: Any = Dinov3Settings(source=str(write(tmp_path, model, said)), size_px=48).build(CPU)
    image = sample_images(100, 60)
    resized = interpolate(image.double(), (48, 48), mode="bilinear", antialias=True).float()
    inputs = standardised(resized, MEAN, STD)
    torch.testing.assert_close(encoder.prepare(image), inputs, atol=2e-6, rtol=0)
    wanted = model(pixel_values=inputs).last_hidden_state
    torch.testing.assert_close(encoder.encode(inputs), wanted[:, 0])


def test_identity_follows_weights_and_preprocessing_but_not_the_place(tmp_path: Path) -> None:
    model = dinov2_model(registers=False)
    first, copy = (str(write(tmp_path / name, model)) for name in ("first", "copy"))
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    changed = str(write(tmp_path / "changed", model))
    settings = [
        Dinov2Settings(source=first, size_px=28),
        Dinov2Settings(source=copy, size_px=28),
        Dinov2Settings(source=changed, size_px=28),
        Dinov2Settings(source=first, size_px=42),
        Dinov2Settings(source=first, size_px=28, form="prx"),
    ]
    identities = [one.build(CPU).identity for one in settings]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4


def test_text_identity_is_the_tokenizers(clip: Path, tmp_path: Path) -> None:
    vocabulary = json.loads((clip / "tokenizer.json").read_text())["model"]["vocab"]
    swapped = {**vocabulary, "red": vocabulary["blue"], "blue": vocabulary["red"]}
    lowered = other_tokenizer(clip, vocabulary, normalizer={"type": "Lowercase"})
    folders = [
        clip,
        changed_copy(clip, tmp_path / "copy"),
        changed_copy(clip, tmp_path / "swapped", tokenizer=other_tokenizer(clip, swapped)),
        changed_copy(clip, tmp_path / "lowered", tokenizer=lowered),
    ]
    encoders: list[Any] = [ClipSettings(source=str(folder)).build(CPU) for folder in folders]
    assert len({encoder.identity for encoder in encoders}) == 1, "which the tokenizer does not touch"
    found = [encoder.text_identity for encoder in encoders]
    assert all(len(one) == 64 for one in found)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_text_identity_follows_the_length_at_which_texts_are_cut(clip: Path, tmp_path: Path) -> None:
    longer = {**text_tower(), "max_position_embeddings": 9}
    config = transformers.CLIPConfig(text_config=longer, vision_config=VISION, projection_dim=12)
    write(tmp_path, transformers.CLIPModel(config), PROCESSOR)
    write_tokenizer(tmp_path)
    first, second = (ClipSettings(source=str(folder)).build(CPU) for folder in (clip, tmp_path))
    assert first.text_identity != second.text_identity  # type: ignore[attr-defined]


def test_images_need_no_tokenizer_but_texts_do(clip: Path, tmp_path: Path) -> None:
    """transformers would build a tokenizer of two tokens, and all texts would be the same."""
    bare = changed_copy(clip, tmp_path / "bare", tokenizer=None, tokenizer_config=None)
    encoder: Any = ClipSettings(source=str(bare)).build(CPU)
    whole: Any = ClipSettings(source=str(clip)).build(CPU)
    assert torch.equal(feature_matrix(encoder, [sample_images()]), feature_matrix(whole, [sample_images()]))
    advice = (
        r"has no text tokenizer \(one of the files tokenizer\.json, vocab\.json with merges\.txt, .*save_pretrained"
    )
    with pytest.raises(UserError, match=advice):
        encoder.encode_text(TEXTS)
    with pytest.raises(UserError, match=advice):
        _ = encoder.text_identity
    (bare / "vocab.json").write_text("{}")
    with pytest.raises(UserError, match=advice):
        encoder.encode_text(TEXTS)


@pytest.mark.parametrize(("words", "highest"), [(4, 8), (10, 9)])
def test_a_tokenizer_of_another_vocabulary_is_refused(clip: Path, tmp_path: Path, words: int, highest: int) -> None:
    """The network has a table of nine. What comes from the hub is compared in the same way."""
    few = {"[PAD]": 0, "[UNK]": 1, "a": 2, "[EOS]": 8}
    many = {**json.loads((clip / "tokenizer.json").read_text())["model"]["vocab"], "more": 9}
    content = other_tokenizer(clip, few if words == 4 else many, added_tokens=[])
    other = changed_copy(clip, tmp_path / "other", tokenizer=content)
    encoder: Any = ClipSettings(source=str(other)).build(CPU)
    message = f"the tokenizer has {words} tokens with ids up to {highest}, but the text network has 9.*own tokenizer"
    with pytest.raises(UserError, match=message):
        encoder.encode_text(TEXTS)


def cached_as(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a cache of the hub in a folder has the files of a repository."""
    place = folder / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return place / "snapshots" / ("0" * 40)


def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no address be found, and no request be made."""

    def no_address(host: str, *args: object, **options: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it tries again"))


def test_without_a_network_the_answer_comes_at_once_and_names_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    there = (
        r"there is no connection to the hub \(huggingface.co: Name or service not known\), and the cache .* lacks it"
    )
    asked = r"`hf download some/model --revision v1 --include 'vae/\*'` fills the cache.* path of a local copy"
    with pytest.raises(UserError, match=rf"cannot load some/model/vae at v1: {there}\n.*{asked}"):
        Checkpoint("some/model", "v1", subfolder="vae").config()


def test_without_a_network_the_cache_is_enough(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed_copy(clip, cached_as("some/cached", tmp_path, monkeypatch))
    cut_off(monkeypatch)
    encoder: Any = ClipSettings(source="some/cached").build(CPU)
    assert encoder.encode_text(TEXTS).isfinite().all()


def test_behind_a_proxy_no_address_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(monkeypatch)
    assert hub.why_unreachable()
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy:8080"})
    assert not hub.why_unreachable()


def test_a_tokenizer_that_the_hub_lacks_is_not_made_up(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of the hub without the tokenizer's files, which is what a download of such a repository leaves."""
    changed_copy(clip, cached_as("some/clip", tmp_path, monkeypatch), tokenizer=None, tokenizer_config=None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    encoder: Any = ClipSettings(source="some/clip").build(CPU)
    with pytest.raises(UserError, match=r"some/clip: the tokenizer has 2 tokens .* has 9 embeddings"):
        encoder.encode_text(TEXTS)


@pytest.mark.parametrize("source", ["/no/such/folder", "./nor/this", "neither"])
def test_a_missing_folder_is_named(source: str) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*; give the folder"):
        ClipSettings(source=source).build(CPU)


def test_a_wrong_architecture_is_named(clip: Path) -> None:
    with pytest.raises(
        UserError, match="is a model of the type 'clip', but this encoder needs dinov2 or dinov2_with_registers"
    ):
        Dinov2Settings(source=str(clip)).build(CPU)


def test_a_size_that_is_no_multiple_of_the_patch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="patches of 14 px; size_px"):
        Dinov2Settings(source=str(write(tmp_path, dinov2_model(False))), size_px=30).build(CPU)


def test_weights_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    write(tmp_path, dinov2_model(False))
    torch.save({}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no \.safetensors file; tintype reads no other format"):
        Dinov2Settings(source=str(tmp_path), size_px=28).build(CPU)


def test_weights_that_are_damaged_or_not_whole_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write(tmp_path, dinov2_model(False))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors.pop("layernorm.weight")
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match="lacks some weights of its network, which would stay random: layernorm"):
        Dinov2Settings(source=str(tmp_path), size_px=28).build(CPU)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match="cannot load"):
        Dinov2Settings(source=str(tmp_path), size_px=42).build(CPU)


def test_a_checkpoint_without_preprocessor_is_refused(clip: Path, tmp_path: Path) -> None:
    model = transformers.CLIPModel.from_pretrained(clip)
    with pytest.raises(UserError, match=r"has no preprocessor_config\.json"):
        ClipSettings(source=str(write(tmp_path, model))).build(CPU)


@pytest.mark.parametrize("name", ["config", "preprocessor_config", "tokenizer", "tokenizer_config"])
@pytest.mark.parametrize(("content", "message"), [("{no", "cannot be read as JSON"), ("[1]", "not a JSON object")])
def test_a_file_that_is_no_json_object_is_named(
    clip: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    broken = changed_copy(clip, tmp_path / "broken", **{name: content})
    with pytest.raises(UserError, match=rf"/broken/{name}\.json: .*{message}"):
        ClipSettings(source=str(broken)).build(CPU).encode_text(TEXTS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"image_processor": [1]}, r"preprocessor_config\.json: image_processor"),
        ({**PROCESSOR, "size": [SIZE_PX]}, r"gives images of .*\[28\]"),
        ({**PROCESSOR, "crop_size": {"height": [SIZE_PX]}}, r"gives images of .*\[28\]"),
        ({**PROCESSOR, "resample": [3]}, r"resample=\[3\]"),
        ({**PROCESSOR, "rescale_factor": "x"}, "rescale_factor"),
        ({**PROCESSOR, "image_mean": ["a", "b", "c"]}, "image_mean"),
    ],
)
def test_settings_of_a_preprocessor_that_make_no_sense_are_named(
    clip: Path, tmp_path: Path, said: dict[str, Any], message: str
) -> None:
    broken = changed_copy(clip, tmp_path / "broken", preprocessor_config=json.dumps(said))
    with pytest.raises(UserError, match=message):
        ClipSettings(source=str(broken)).build(CPU)


@pytest.mark.parametrize("content", ['{"model_type": [1]}', '{"model_type": "clip", "text_config": [1]}'])
def test_a_config_that_transformers_chokes_on_is_named(clip: Path, tmp_path: Path, content: str) -> None:
    broken = changed_copy(clip, tmp_path / "broken", config=content)
    with pytest.raises(UserError, match=r"cannot load .*/broken: .*\n.*whole"):
        ClipSettings(source=str(broken)).build(CPU)


@pytest.mark.parametrize(
    "other", [{"size": {"shortest_edge": 32}}, {"crop_size": {"height": 42, "width": 28}}, {"crop_size": 42}]
)
def test_a_preprocessor_for_another_size_than_the_networks_is_refused(
    clip: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    folder = changed_copy(clip, tmp_path / "other", preprocessor_config=json.dumps({**PROCESSOR, **other}))
    with pytest.raises(UserError, match=r"the preprocessor gives images of \[.*\] px, but the network needs 28 px"):
        ClipSettings(source=str(folder)).build(CPU)


def test_a_preprocessor_that_is_out_of_reach_is_not_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"cannot load nobody/nothing-at-all: .*\n.*path of a local copy"):
        Checkpoint("nobody/nothing-at-all").image_processor()


def test_a_hub_that_has_no_such_model_or_is_out_of_reach_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """`local_files_only` is what HF_HUB_OFFLINE sets: the library's own way to be without a hub."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"cannot load nobody/nothing-at-all at v1: .*\n.*path of a local copy"):
        ClipSettings(source="nobody/nothing-at-all", revision="v1").build(CPU)


def test_a_name_of_the_hub_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Checkpoint("openai/clip").folder is None
    (tmp_path / "openai" / "clip").mkdir(parents=True)
    assert Checkpoint("openai/clip").folder == Path("openai/clip")
