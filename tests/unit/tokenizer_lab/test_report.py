from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.tiny_perceptual import sample_images
from tintype.config.strict import Document, parse
from tintype.errors import UserError
from tintype.metrics.pair import FeaturePair
from tintype.metrics.reconstruction import psnr, ssim
from tintype.metrics.table import FEATURE_METRICS
from tintype.seams import Draws
from tintype.tokenizer_lab import report
from tintype.tokenizer_lab.images import measured_images
from tintype.tokenizer_lab.report import (
    ReportSettings,
    read_tokenizer,
    report_tokenizers,
    round_trip,
    tokenizer_names,
)
from tintype.tokenizers.pixels import Pixels, PixelsSettings
from tintype.tokenizers.small_vae import SmallVae, SmallVaeSettings, SmallVaeShape, Vae, read_vae, write_vae
from tintype.vision.features import feature_matrix
from tintype.vision.scene_encoder import scene_features

CPU = torch.device("cpu")
SETTINGS = {"size_px": 16, "count": 6, "batch": 4, "shown": 2, "encoders": ["scenes"]}


def settings(**changes: object) -> ReportSettings:
    return parse(ReportSettings, Document("report", {**SETTINGS, **changes}))


def vae_folder(path: Path, **trained: object) -> Path:
    path.mkdir()
    torch.manual_seed(0)
    write_vae(path, Vae(SmallVaeShape(channels=2, stride_px=4, width=8, blocks=1)), dict(trained))
    return path


@pytest.fixture(autouse=True)
def no_large_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "at_hand", lambda known: False)


def test_the_numbers_are_those_of_the_functions(tmp_path: Path) -> None:
    folder = vae_folder(tmp_path / "vae")
    result = report_tokenizers(["pixels", str(folder)], settings(), tmp_path / "out", CPU)
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == asdict(result)
    images, _ = measured_images("scenes", 16, 6, CPU)
    tokenizer = SmallVae(read_vae(folder))
    z = torch.cat([tokenizer.encode(part) for part in images.split(4)])
    seen = torch.cat([tokenizer.decode(part) for part in z.split(4)])
    exact, row = result.tokenizers
    assert row["name"] == "vae"
    assert row["metrics"]["psnr_db"] == pytest.approx(psnr(images, seen).mean().item(), rel=1e-9)
    assert row["metrics"]["ssim"] == pytest.approx(ssim(images, seen).mean().item(), rel=1e-9)
    encoder = scene_features(CPU)
    pair = FeaturePair(feature_matrix(encoder, [seen]), feature_matrix(encoder, [images]))
    assert row["metrics"]["fd_scenes"] == pytest.approx(FEATURE_METRICS["fd"].measure(pair).value, rel=1e-6)
    assert row["latent_shape"] == [2, 4, 4]
    assert (row["numbers_in"], row["numbers_out"], row["compression"]) == (768, 32, 24)
    wide = z.double().transpose(0, 1).flatten(1)
    assert row["latent_mean"] == pytest.approx(wide.mean(dim=1).tolist(), rel=1e-6, abs=1e-9)
    assert row["latent_std"] == pytest.approx(wide.std(dim=1, correction=0).tolist(), rel=1e-6)
    assert row["encode_images_per_s"] > 0
    assert row["decode_images_per_s"] > 0
    assert exact["exact"]
    assert exact["metrics"]["psnr_db"] is None
    assert exact["metrics"]["ssim"] == pytest.approx(1)
    assert exact["compression"] == 1
    assert exact["notes"] == ["every pair is exact"]


def test_copies_of_an_image_are_counted_and_do_not_shrink_the_errors() -> None:
    images, _ = measured_images("scenes", 16, 6, CPU)
    seen = images // 2
    seen[0] = images[0]  # exact: left out of the mean PSNR
    errors = []
    for times in (1, 2):
        judge = report.Comparison(images.repeat(times, 1, 1, 1), settings(), CPU)
        found = judge.measure(seen.repeat(times, 1, 1, 1))
        errors.append([found[name].error for name in ("psnr_db", "ssim")])
    assert errors[1] == pytest.approx(errors[0], rel=1e-9)
    assert judge.notes[0].startswith("6 of 12 images are exact copies of another: 6 are different")


def test_what_is_not_at_hand_is_left_out_by_name(tmp_path: Path) -> None:
    result = report_tokenizers(["pixels"], settings(encoders=None), tmp_path, CPU)
    assert set(result.left_out) == {"lpips", "fd_inception"}
    assert "pip install" in result.left_out["lpips"]
    assert set(result.tokenizers[0]["metrics"]) == {"psnr_db", "ssim", "fd_scenes"}
    assert "Left out: LPIPS" in (tmp_path / "report.html").read_text()


def test_the_page_stands_alone_and_escapes_names(tmp_path: Path) -> None:
    folder = vae_folder(tmp_path / "a<b>&c")
    report_tokenizers([str(folder)], settings(), tmp_path / "out", CPU)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "a<b>" not in page
    assert "a&lt;b&gt;&amp;c" in page
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert "<script" not in page
    assert page.count("data:image/png;base64,") == 2 * 2  # two pictures, each with its original


class Halver:
    """Keeps half of each pixel's value, exactly."""

    channels, stride_px, identity = 3, 1, "halves"
    moment_channels, arithmetic = 3, "fp32"

    def diffusers_form(self) -> None:
        return None

    def decode_float(self, z_BCHW: Tensor) -> Tensor:
        raise AssertionError("only bytes are compared")

    def check_latents(self, mean_C: Tensor, std_C: Tensor) -> str | None:
        return None

    def encode(self, image_BCHW: Tensor, draws: Draws) -> Tensor:
        return self.moments(image_BCHW)

    def moments(self, image_BCHW: Tensor) -> Tensor:
        return 2.0 + image_BCHW.float()

    def drawn(self, moment_BCHW: Tensor, draws: Draws) -> Tensor:
        return moment_BCHW

    def decode(self, z_BCHW: Tensor) -> Tensor:
        return ((z_BCHW - 2) // 2).to(torch.uint8)


def test_a_round_trip_keeps_the_order_and_measures_latents() -> None:
    images = sample_images(0, 5, 16)
    trip = round_trip(Halver(), images, 2, CPU)
    assert torch.equal(trip.image_NCHW, images // 2)
    assert trip.latent_shape == (3, 16, 16)
    expected = 2 + images.double().mean(dim=(0, 2, 3))
    assert trip.latent_mean_C.tolist() == pytest.approx(expected.tolist(), rel=1e-9)
    assert len(list(report._latent_notes(read_tokenizer("taef2"), trip))) == 1


def test_tokenizers_by_kind_options_and_folder(tmp_path: Path) -> None:
    assert isinstance(read_tokenizer("pixels").build(CPU), Pixels)
    folder = vae_folder(tmp_path / "vae")
    named = read_tokenizer(str(folder))
    assert isinstance(named, SmallVaeSettings) and named.folder == str(folder)
    assert named == read_tokenizer(f"small-vae:folder={folder}")
    assert read_tokenizer("pixels") == PixelsSettings()
    with pytest.raises(UserError, match=r"unknown tokenizer 'pixel'.*did you mean 'pixels'"):
        read_tokenizer("pixel")
    with pytest.raises(UserError, match="unknown key"):
        read_tokenizer("pixels:folder=x")
    with pytest.raises(UserError, match="has no trained small-vae"):
        read_tokenizer(str(tmp_path)).build(CPU)


def test_names_are_short_where_they_can_be() -> None:
    assert tokenizer_names(["pixels", "a/x", "b/x", "c/y"]) == ["pixels", "a/x", "b/x", "y"]
    assert tokenizer_names(["taef2:weights=/a/b", "taef1:scale=2", "pixels"]) == ["taef2", "taef1", "pixels"]
    twice = ["taef2:scale=1", "taef2:scale=2"]
    assert tokenizer_names(twice) == twice
    with pytest.raises(UserError, match="given twice"):
        tokenizer_names(["pixels", "pixels"])


def test_a_size_that_does_not_divide_is_refused_before_any_work(tmp_path: Path) -> None:
    folder = vae_folder(tmp_path / "vae")
    with pytest.raises(UserError, match="size_px is 18, but 'vae' needs a multiple of 4 px; use --set size_px=16"):
        report_tokenizers([str(folder)], settings(size_px=18), tmp_path / "out", CPU)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("count", "limit", "noted"), [(4, None, False), (5, None, True), (4, 10, True)])
def test_pictures_seen_in_training_are_said(tmp_path: Path, count: int, limit: int | None, noted: bool) -> None:
    trained = {"held_out": 4, "settings": {"data": str(tmp_path), "limit": limit}}
    part = SmallVaeSettings(folder=str(vae_folder(tmp_path / "vae", **trained)))
    notes = list(report._seen_in_training(part, settings(data=str(tmp_path), count=count), 20))
    assert bool(notes) == noted
    assert not list(report._seen_in_training(part, settings(data="scenes", count=count), 20))
