from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.bounds import distance, network_bound, rounding_bound
from tests.tiny import tiny_plan
from tests.tiny_perceptual import sample_images
from tintype.data.sources import open_source
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt
from tintype.seams import Draws
from tintype.tokenizer_lab.train_small_vae import latent_statistics
from tintype.tokenizers.part import Posterior
from tintype.tokenizers.small_vae import SmallVae, SmallVaeSettings, SmallVaeShape, Vae, read_vae, write_vae
from tintype.train.loop import train

TINY = SmallVaeShape(channels=3, stride_px=4, width=8, blocks=1)


def network(shape: SmallVaeShape = TINY) -> Vae:
    """With random numbers throughout, the norms' and the statistics' too."""
    found = Vae(shape)
    generator = torch.Generator().manual_seed(0)
    for tensor in found.state_dict().values():
        tensor.copy_(0.2 * torch.rand(tensor.shape, generator=generator) + 0.1 * (tensor.ndim < 3))
    return found


def folder_of(path: Path) -> Path:
    path.mkdir()
    write_vae(path, network(), {"psnr_db": 20.0})
    return path


@pytest.mark.parametrize("stride", [4, 8])
def test_it_is_a_tokenizer_of_its_shape(stride: int) -> None:
    tokenizer = SmallVae(Vae(TINY.model_copy(update={"stride_px": stride})))
    image = sample_images(0, count=2, size_px=32)[..., :16]
    z = tokenizer.encode(image)
    assert (tokenizer.channels, tokenizer.stride_px) == (3, stride)
    assert z.shape == (2, 3, 32 // stride, 16 // stride)
    assert z.dtype == torch.float32
    back = tokenizer.decode(z)
    assert back.shape == image.shape
    assert back.dtype == torch.uint8


def test_latents_are_normalised_on_the_way_in_and_out() -> None:
    vae = network()
    image = sample_images(1, count=2)
    raw = vae.posterior(image.float() / 127.5 - 1).mean_BCHW.detach()
    expected = (raw - vae.latent_mean) / vae.latent_std
    z = SmallVae(vae).encode(image)
    assert distance(z, expected) < network_bound(vae, expected)
    pixels = ((vae.decode_raw(raw) + 1) * 127.5).round().clamp(0, 255)
    assert (SmallVae(vae).decode(z).float() - pixels).abs().max() <= 1  # rounding of the way there and back


def draws(count: int, first: int = 0, seed: int = 3) -> Draws:
    return Draws(seed, torch.arange(first, first + count))


def test_a_sampled_posterior_is_a_function_of_the_position_whatever_the_batch() -> None:
    tokenizer, image = SmallVae(network(), sampled=True), sample_images(1, count=6)
    whole = tokenizer.encode(image, draws(6))
    cut = torch.cat([tokenizer.encode(image[a:b], draws(b - a, first=a)) for a, b in ((0, 1), (1, 4), (4, 6))])
    assert distance(whole, cut) < network_bound(network(), whole)
    assert float((whole - tokenizer.encode(image, draws(6, seed=4))).abs().max()) > 0.1
    assert float((whole - tokenizer.encode(image, draws(6, first=6))).abs().max()) > 0.1
    with pytest.raises(TypeError, match="needs draws"):
        tokenizer.encode(image)


@torch.no_grad()
def test_a_sampled_posterior_has_the_mean_and_deviation_of_the_encoder() -> None:
    vae, image, count = network(), sample_images(1, count=1, size_px=16), 4000
    found = vae.posterior(image.float() / 127.5 - 1)
    mean, std = (
        ((found.mean_BCHW - vae.latent_mean) / vae.latent_std)[0],
        ((0.5 * found.logvar_BCHW).exp() / vae.latent_std)[0],
    )
    z = SmallVae(vae, sampled=True).encode(image.expand(count, -1, -1, -1), draws(count))
    assert float(((z.mean(0) - mean) / (std / count**0.5)).abs().max()) < 5
    assert torch.allclose(z.std(0), std, rtol=0.06)


def test_the_mean_is_the_same_for_all_draws() -> None:
    tokenizer, image = SmallVae(network()), sample_images(1, count=2)
    assert torch.equal(tokenizer.encode(image, draws(2)), tokenizer.encode(image))


def test_the_posterior_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "vae")
    image, sampled = sample_images(1, count=2), SmallVaeSettings(folder="vae", posterior="sample").build()
    assert torch.equal(sampled.encode(image, draws(2)), SmallVae(network(), sampled=True).encode(image, draws(2)))
    plan = tiny_plan("tokenizer={kind: small-vae, folder: vae}", "model.patch=2")
    assert tiny_plan("tokenizer={kind: small-vae, folder: vae, posterior: sample}", "model.patch=2").hash != plan.hash


def test_no_gradient_and_no_autocast_reach_it() -> None:
    tokenizer, image = SmallVae(network()), sample_images(2, count=1)
    plain = tokenizer.encode(image)
    with torch.autocast("cpu", torch.bfloat16):
        inside = tokenizer.encode(image)
    assert torch.equal(plain, inside)
    assert not plain.requires_grad


def test_the_four_pixels_of_one_begin_alike() -> None:
    """Init of the last layer: without its own start a fresh decoder draws a grid."""
    vae = Vae(TINY)
    seen = vae.decode_raw(torch.randn(1, 3, 4, 4))
    folded = torch.nn.functional.pixel_unshuffle(seen, 2).view(1, 3, 4, 8, 8)
    assert distance(folded, folded[:, :, :1]) < network_bound(vae, seen)


def test_the_divergence_is_that_of_two_gaussians() -> None:
    mean, logvar = torch.tensor([0.5, -1.0, 0.0]), torch.tensor([-2.0, 0.3, 0.0])
    posterior = Posterior(mean.view(1, 3, 1, 1), logvar.view(1, 3, 1, 1))
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, (logvar / 2).exp()), torch.distributions.Normal(0.0, 1.0)
    )
    terms = 5 * len(mean)  # four numbers for each latent, and their mean
    assert abs(posterior.kl().item() - exact.mean().item()) < rounding_bound(terms, exact.max())
    assert posterior.sample(torch.ones(1, 3, 1, 1)).flatten().tolist() == pytest.approx(
        [0.5 + math.exp(-1), -1 + math.exp(0.15), 1.0]
    )


def test_what_it_cannot_take_is_refused() -> None:
    tokenizer = SmallVae(Vae(TINY))
    with pytest.raises(UserError, match=r"18 × 16 px cannot be encoded: .* multiples of 4"):
        tokenizer.encode(torch.zeros(1, 3, 16, 18, dtype=torch.uint8))
    with pytest.raises(TypeError, match="uint8"):
        tokenizer.encode(torch.zeros(1, 3, 16, 16))


def test_a_folder_gives_back_what_was_written(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "vae")
    settings = SmallVaeSettings(folder=str(folder)).resolved()
    assert (settings.compression.channels, settings.compression.stride_px) == (
        network().shape.channels,
        int(network().shape.stride_px),
    )
    image = sample_images(3)
    assert torch.equal(settings.build().encode(image), SmallVae(network()).encode(image))
    sha256 = json.loads((folder / "vae.json").read_text())["sha256"]
    SmallVaeSettings(folder=str(folder), sha256=sha256).build()
    with pytest.raises(UserError, match=r"tokenizer\.sha256 records .*000.*give the right folder"):
        SmallVaeSettings(folder=str(folder), sha256="0" * 64).build()


def _flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / "vae.safetensors").read_bytes())
    content[-3] ^= 1
    (folder / "vae.safetensors").write_bytes(content)


def _set(key: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        record = json.loads((folder / "vae.json").read_text())
        (folder / "vae.json").write_text(json.dumps({**record, key: value}))

    return change


def _other_weights(folder: Path) -> None:
    """Whole, and vouched for, but of another network."""
    tensors = load_file(folder / "vae.safetensors")
    tensors.pop("latent_std")
    _rewrite(folder, tensors)


def _rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "vae.safetensors")
    _set("sha256", hashlib.sha256((folder / "vae.safetensors").read_bytes()).hexdigest())(folder)


def _rounded_weights(folder: Path) -> None:
    _rewrite(folder, {name: tensor.half() for name, tensor in load_file(folder / "vae.safetensors").items()})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_flip_a_byte, "another SHA-256 of .*put the file back"),
        (_other_weights, "does not contain the network .* 1 missing: latent_std"),
        (_rounded_weights, r"does not contain the network .* latent_mean is fp16 \[\S+ \S+ \S+ \S+ and not fp32 \["),
        (lambda folder: (folder / "vae.safetensors").unlink(), "is missing"),
        (lambda folder: (folder / "vae.json").unlink(), "has no trained small-vae"),
        (lambda folder: (folder / "vae.json").write_text("{"), "invalid JSON"),
        (lambda folder: (folder / "vae.json").write_text("[]"), "not the record of a small-vae"),
        (_set("format", 2), "reads .*: format: must be 1"),
        (_set("kind", "flux1"), "not the record of a small-vae .*: kind"),
        (_set("shape", {"channels": 3, "stride_px": 5}), r"shape\.stride_px"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    folder = folder_of(tmp_path / "vae")
    damage(folder)
    with pytest.raises(UserError, match=words):
        read_vae(folder)


def test_a_folder_that_is_not_there_is_said() -> None:
    with pytest.raises(UserError, match="/nowhere has no trained small-vae"):
        SmallVaeSettings(folder="/nowhere").build()


def test_a_plan_trains_on_its_latents(tmp_path: Path) -> None:
    vae, images = network(), open_source(tiny_plan().data, "train", torch.device("cpu")).images(range(24))
    mean_C, std_C = latent_statistics(vae, [images])
    vae.latent_mean.copy_(mean_C.view(1, -1, 1, 1))
    vae.latent_std.copy_(std_C.view(1, -1, 1, 1))
    (tmp_path / "vae").mkdir()
    write_vae(tmp_path / "vae", vae, {})
    plan = tiny_plan(f"tokenizer={{kind: small-vae, folder: {tmp_path / 'vae'}}}", "model.patch=2")
    assert plan.token_grid == (2, 2)
    assert train(plan, tmp_path / "run", Interrupt()).finished
    assert json.loads((tmp_path / "run" / "loaded.json").read_text())["tokenizer"] == SmallVae(vae).identity


def test_latents_of_other_data_are_told() -> None:
    tokenizer = SmallVae(network())
    channels = tokenizer.channels
    assert tokenizer.check_latents(torch.zeros(channels), torch.ones(channels)) is None
    assert "train a tokenizer on it" in str(tokenizer.check_latents(torch.full((channels,), 5.0), torch.ones(channels)))
