"""Against diffusers' own encode and decode, with its normalisation written out from its pipelines.

B: images, C: channels, H, W: rows and columns.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.bounds import distance, network_bound
from tests.tiny import tiny_plan
from tests.tiny_autoencoders import CHANNELS, CLASSES, RAW, STRIDE_PX, chosen, network, sample_images, write_autoencoder
from tintype.errors import UserError
from tintype.model.layers import patchify
from tintype.plan import Plan, plan_from_yaml
from tintype.seams import Draws, Tokenizer
from tintype.settings import plain
from tintype.tokenizers.dc_ae import DcAeSettings
from tintype.tokenizers.flux1 import E2eFluxSettings, Flux1Settings
from tintype.tokenizers.flux2 import Flux2Settings
from tintype.tokenizers.latent import LatentPart
from tintype.tokenizers.taef1 import Taef1Settings

CPU = torch.device("cpu")
KINDS = sorted(CLASSES)
KL = ["e2e-flux", "flux1", "flux2"]
SETTINGS: dict[str, type[LatentPart]] = {
    "flux1": Flux1Settings,
    "e2e-flux": E2eFluxSettings,
    "flux2": Flux2Settings,
    "dc-ae": DcAeSettings,
    "taef1": Taef1Settings,
}


def settings(kind: str, **others: Any) -> LatentPart:
    return SETTINGS[kind](**{**chosen(kind), **others})


def built(kind: str, **others: Any) -> Tokenizer:
    return settings(kind, **others).build(CPU)


def draws(count: int, first: int = 0, seed: int = 0) -> Draws:
    return Draws(seed, torch.arange(first, first + count))


def folded(latent_BCHW: Tensor) -> Tensor:
    """FLUX.2's pipeline: 2 × 2 latents become one of four times the channels."""
    b, c, h, w = latent_BCHW.shape
    return latent_BCHW.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, c * 4, h // 2, w // 2)


@torch.no_grad()
def diffusers_latents(kind: str, image_BCHW: Tensor) -> Tensor:
    net = network(kind)
    raw = RAW[CLASSES[kind][0]](net, image_BCHW.float() / 127.5 - 1)
    if kind == "flux2":
        mean, var = (x.view(1, -1, 1, 1) for x in (net.bn.running_mean, net.bn.running_var))
        normalised: Tensor = (folded(raw) - mean) / torch.sqrt(var + net.config.batch_norm_eps)
        return normalised
    shift, scale = 0.0 if kind == "dc-ae" else float(net.config.shift_factor), float(net.config.scaling_factor)
    return (raw - shift) * scale


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_latents_are_those_of_diffusers_and_its_normalisation(kind: str) -> None:
    image = sample_images(5)
    z = built(kind).encode(image, draws(5))
    assert z.dtype == torch.float32 and z.shape == (5, CHANNELS, 4, 4)
    expected = diffusers_latents(kind, image)
    assert distance(folded(z) if kind == "flux2" else z, expected) < network_bound(network(kind).encoder, expected)
    assert float(expected.std()) > 0.5


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_images_are_those_that_diffusers_decodes(kind: str) -> None:
    tokenizer, net = built(kind), network(kind)
    raw = RAW[CLASSES[kind][0]](net, sample_images(3).float() / 127.5 - 1)
    expected = net.decode(raw).sample
    image = tokenizer.decode(tokenizer.encode(sample_images(3), draws(3)))
    assert image.dtype == torch.uint8 and image.shape == (3, 3, 16, 16)
    assert int((image - ((expected + 1) * 127.5).clamp(0, 255)).abs().max()) <= 1
    assert image.float().std() > 1


@pytest.mark.usefixtures("other_rounding")
@torch.no_grad()
def test_a_patch_of_two_holds_the_channels_of_flux_2_in_their_order() -> None:
    image = sample_images(2)
    token_BLP = patchify(built("flux2").encode(image, draws(2)), 2)
    expected = diffusers_latents("flux2", image).flatten(2).transpose(1, 2)
    assert distance(token_BLP, expected) < network_bound(network("flux2").encoder, expected)


def test_the_statistics_of_flux_2_differ_by_the_place_in_a_patch() -> None:
    """Otherwise the tests above would pass with any order of folding."""
    mean = network("flux2").bn.running_mean.view(CHANNELS, 4)
    assert float((mean - mean.mean(1, keepdim=True)).abs().max()) > 0.01


def test_sizes_that_are_no_multiple_of_a_fold_keep_the_places_of_their_latents() -> None:
    tokenizer = built("flux2")
    z = torch.randn(1, CHANNELS, 3, 5)
    assert tokenizer.decode(z).shape == (1, 3, 3 * STRIDE_PX, 5 * STRIDE_PX)


@pytest.mark.usefixtures("other_rounding")
@pytest.mark.parametrize("kind", KL)
def test_a_sampled_posterior_is_a_function_of_the_position_whatever_the_batch(kind: str) -> None:
    tokenizer, image = built(kind, posterior="sample"), sample_images(6)
    whole = tokenizer.encode(image, draws(6))
    cut = torch.cat([tokenizer.encode(image[a:b], draws(b - a, first=a)) for a, b in ((0, 1), (1, 4), (4, 6))])
    assert distance(whole, cut) < network_bound(network(kind).encoder, whole)
    assert float((whole - tokenizer.encode(image, draws(6, seed=1))).abs().max()) > 0.1
    assert float((whole - tokenizer.encode(image, draws(6, first=6))).abs().max()) > 0.1


@pytest.mark.parametrize("kind", KL)
@torch.no_grad()
def test_a_sampled_posterior_has_the_mean_and_deviation_of_the_encoder(kind: str) -> None:
    count = 4000
    image = sample_images(1)
    tokenizer = built(kind, posterior="sample", shift=0.0, scale=1.0)
    z = tokenizer.drawn(tokenizer.moments(image).expand(count, -1, -1, -1), draws(count))
    found = network(kind).encode(image.float() / 127.5 - 1).latent_dist
    error = found.std / count**0.5
    assert float(((z.mean(0) - found.mean[0]) / error[0]).abs().max()) < 5
    assert torch.allclose(z.std(0), found.std[0], rtol=0.06)


def test_the_mean_needs_no_draws_and_is_the_same_for_all() -> None:
    tokenizer, image = built("flux1"), sample_images(2)
    assert torch.equal(tokenizer.encode(image, draws(2)), tokenizer.encode(image, draws(2, seed=9)))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_frozen_and_what_surrounds_it_changes_nothing(kind: str) -> None:
    tokenizer, image = built(kind), sample_images(2)
    plain_z = tokenizer.encode(image, draws(2))
    with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        z = tokenizer.encode(image, draws(2))
    assert torch.equal(z, plain_z) and not z.requires_grad and not tokenizer.decode(z).requires_grad


def test_bf16_is_a_rounding_and_the_normalisation_stays_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr("diffusers.models.modeling_utils.logger.warning", warned.append)
    image = sample_images(4)
    exact, rounded = (built("flux2", compute=compute).encode(image, draws(4)) for compute in ("fp32", "bf16"))
    assert rounded.dtype == torch.float32
    assert 0 < float((exact - rounded).abs().mean()) < 0.1
    assert not warned, "diffusers warns of modules to be kept in float32, and names none"


@pytest.mark.usefixtures("other_rounding")
def test_many_pixels_go_through_the_network_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, image = built("flux1", posterior="sample"), sample_images(5)
    whole = tokenizer.encode(image, draws(5))
    monkeypatch.setattr("tintype.tokenizers.latent._MOST_PX", 2 * 16 * 16)
    assert distance(tokenizer.encode(image, draws(5)), whole) < network_bound(network("flux1").encoder, whole)
    assert tokenizer.decode(whole).shape == (5, 3, 16, 16)


# what the checkpoint states


def changed_copy(kind: str, to: Path, change: Callable[[dict[str, Any]], None]) -> str:
    shutil.copytree(write_autoencoder(kind), to)
    config = json.loads((to / "config.json").read_text())
    change(config)
    (to / "config.json").write_text(json.dumps(config))
    return str(to)


def without(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        for key in keys:
            del config[key]

    return change


@pytest.mark.parametrize("kind", ["flux1", "dc-ae", "taef1"])
def test_a_scale_that_is_not_stated_is_not_taken_from_a_default_of_diffusers(kind: str, tmp_path: Path) -> None:
    folder = changed_copy(kind, tmp_path / "bare", without("scaling_factor"))
    with pytest.raises(UserError, match=r"no scaling_factor.*set tokenizer\.shift and tokenizer\.scale"):
        built(kind, weights=folder)
    given = built(kind, weights=folder, scale=2.0, shift=0.5).encode(sample_images(2), draws(2))
    with torch.no_grad():
        raw = RAW[CLASSES[kind][0]](network(kind), sample_images(2).float() / 127.5 - 1)
    expected = (raw - 0.5) * 2
    assert distance(given, expected) < network_bound(network(kind).encoder, expected)


def test_a_missing_shift_is_none_and_means_by_channel_go_before_both(tmp_path: Path) -> None:
    bare = changed_copy("flux1", tmp_path / "bare", without("shift_factor"))
    scale = network("flux1").config.scaling_factor
    with torch.no_grad():
        raw = RAW["AutoencoderKL"](network("flux1"), sample_images(2).float() / 127.5 - 1)
    found = built("flux1", weights=bare).encode(sample_images(2), draws(2))
    assert distance(found, raw * scale) < network_bound(network("flux1").encoder, raw * scale)
    mean, std = [0.1, -0.2, 0.3, 0.0], [0.5, 1.0, 2.0, 4.0]
    stated = changed_copy("e2e-flux", tmp_path / "e2e", lambda c: c.update(latents_mean=mean, latents_std=std))
    expected = (raw - torch.tensor(mean).view(1, 4, 1, 1)) / torch.tensor(std).view(1, 4, 1, 1)
    found = built("e2e-flux", weights=stated).encode(sample_images(2), draws(2))
    assert distance(found, expected) < network_bound(network("e2e-flux").encoder, expected)


def test_missing_statistics_of_flux_2_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(write_autoencoder("flux2"), folder)
    (file,) = folder.glob("*.safetensors")
    save_file({k: v for k, v in load_file(file).items() if not k.startswith("bn.")}, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks some weights.*bn\."):
        built("flux2", weights=str(folder))


def test_the_autoencoder_of_flux_2_is_refused_as_that_of_flux_1() -> None:
    with pytest.raises(UserError, match=r"is a 'AutoencoderKLFlux2', but .* needs AutoencoderKL$"):
        built("flux1", weights=str(write_autoencoder("flux2")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["channels", "stride_px"])
def test_other_channels_or_another_stride_than_the_settings_say_are_refused(kind: str, key: str) -> None:
    with pytest.raises(UserError, match=rf"tokenizer\.{key} is 8, but .* has 4; use --set tokenizer\.{key}=4"):
        built(kind, **{key: 8})


def test_a_folder_may_hold_the_autoencoder_in_its_subfolder_as_a_pipeline_does(tmp_path: Path) -> None:
    shutil.copytree(write_autoencoder("flux1"), tmp_path / "vae")
    nested, flat = built("flux1", weights=str(tmp_path)), built("flux1")
    assert nested.identity == flat.identity
    with pytest.raises(UserError, match=r"has no config\.json"):
        built("flux1", weights=str(tmp_path), subfolder="other")
    with pytest.raises(UserError, match="there is no folder"):
        built("flux1", weights=str(tmp_path / "nothing"))


def test_the_identity_follows_weights_and_normalisation() -> None:
    same, scaled, other = built("flux1"), built("flux1", scale=1.0), built("e2e-flux")
    assert same.identity == built("flux1").identity == other.identity  # one network, whatever the kind is called
    assert scaled.identity != same.identity
    assert built("flux1", sha256=str(same.identity)[:12]).identity == same.identity
    with pytest.raises(UserError, match=r"tokenizer\.sha256 records .*00000000 there, [0-9a-f]{12}… here"):
        built("flux1", sha256="00000000")


def test_a_default_repository_is_pinned_and_another_is_not() -> None:
    assert len(str(Flux1Settings().revision)) == 40
    assert Flux1Settings(weights="someone/else").revision is None
    assert Flux1Settings(weights="someone/else", revision="v1").revision == "v1"
    assert Flux1Settings(revision=None).revision is None
    for part in (Flux1Settings(), Flux2Settings(), DcAeSettings(), Flux1Settings(weights="/a/folder")):
        assert type(part)(**plain(part)) == part


def test_an_image_that_the_stride_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match=r"images of 18 × 16 px cannot be encoded.*multiples of 4"):
        built("taef1").encode(torch.zeros(1, 3, 16, 18, dtype=torch.uint8), draws(1))
    with pytest.raises(TypeError, match="uint8"):
        built("taef1").encode(torch.zeros(1, 3, 16, 16), draws(1))


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="scale has 2 numbers for 16 channels"):
        Flux1Settings(scale=(1.0, 2.0))
    with pytest.raises(ValueError, match="a scale of 0"):
        Flux1Settings(scale=0.0)


def test_a_plan_is_checked_without_any_weights() -> None:
    plan = Plan(tokenizer=Flux2Settings(weights="/there/is/nothing"))
    assert plan.token_grid == (2, 2) and plan.tokenizer.compression.channels == 32
    with pytest.raises(ValueError, match="must be a multiple of 64"):
        Plan(tokenizer=DcAeSettings())


def test_without_diffusers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"no {name}")

    monkeypatch.setattr("tintype.pretrained.packages.importlib.import_module", absent)
    with pytest.raises(UserError, match=r"needs diffusers .*pip install 'tintype\[diffusers\]'"):
        built("flux1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_latents_of_the_cpu(kind: str) -> None:
    image, device = sample_images(4), torch.device("cuda")
    expected = built(kind).encode(image, draws(4))
    for compute, most in (("fp32", 1e-4), ("tf32", 0.05), ("bf16", 0.3)):
        tokenizer = settings(kind, compute=compute).build(device)
        z = tokenizer.encode(image.to(device), Draws(0, torch.arange(4, device=device)))
        assert float((z.cpu() - expected).abs().max()) < most
        assert tokenizer.decode(z).device.type == "cuda"


def test_a_plan_has_a_scale_for_each_channel_and_is_read_again() -> None:
    given = chosen("flux1") | {"scale": [0.5, 1.0, 1.5, 2.0], "shift": [0.1, 0.2, 0.3, 0.4]}
    plan = tiny_plan(f"tokenizer={json.dumps(given)}", "model.patch=1")
    assert plan_from_yaml(plan.to_yaml(), "again") == plan
    assert plan.tokenizer.model_dump()["scale"] == (0.5, 1.0, 1.5, 2.0)
