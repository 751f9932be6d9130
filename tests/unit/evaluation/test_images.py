"""Two sets of images against each other, with the real encoders."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageFilter

from tests.shared import shared
from tintype.data.image_sets import SHEET, open_images
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import draw_batch
from tintype.errors import UserError
from tintype.evaluation import images as images_module
from tintype.evaluation.images import evaluate_images, image_definitions
from tintype.evaluation.protocol import ImageProtocol
from tintype.metrics.pair import FeaturePair
from tintype.metrics.table import FEATURE_METRICS
from tintype.sampling.sample import contact_sheet, save_png
from tintype.vision.inception import InceptionSettings
from tintype.vision.scene_encoder import SceneEncoderSettings

CPU = torch.device("cpu")
SCENES = ImageProtocol(encoders=(SceneEncoderSettings(),))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes, other scenes, and the first ones blurred."""
    folder = tmp_path_factory.mktemp("sets")
    for name, first in (("a", 0), ("b", 100)):
        (folder / name).mkdir()
        ids = range(first, first + 40)
        for index, image in enumerate(render(draw_batch(0, ids, "eval"), 32, 0, ids)):
            save_png(image, folder / name / f"{index:03d}.png")
    (folder / "blurred").mkdir()
    for file in (folder / "a").iterdir():
        Image.open(file).filter(ImageFilter.GaussianBlur(1.5)).save(folder / "blurred" / file.name)
    return folder


def test_every_metric_of_two_folders(sets: Path) -> None:
    near = evaluate_images(sets / "a", sets / "b", SCENES, CPU)
    far = evaluate_images(sets / "blurred", sets / "b", SCENES, CPU)
    assert set(near.metrics) == set(image_definitions(SCENES)) == {f"{kind}_scenes" for kind in FEATURE_METRICS}
    for name, meaning in image_definitions(SCENES).items():
        worse = far.metrics[name] > near.metrics[name]
        assert worse == (meaning.direction == "lower"), name
    assert near.images.count == near.reference.count == 40
    assert any("no full covariance" in text for text in near.warnings)


def test_colours_turned_round_are_seen(sets: Path, tmp_path: Path) -> None:
    """Bytes multiplied by 255 in bytes are 256 - x: negatives. In both sets at once they must not pass for the same."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for file in (sets / name).iterdir():
            image = next(iter(open_images(file.parent)))
            assert torch.equal((image * 255), (256 - image.int()).remainder(256).byte())
            break
        for index, image in enumerate(open_images(sets / name)):
            save_png(image * 255, tmp_path / name / f"{index:03d}.png")
    right = evaluate_images(sets / "a", sets / "b", SCENES, CPU).metrics["fd_scenes"]
    both = evaluate_images(tmp_path / "a", tmp_path / "b", SCENES, CPU).metrics["fd_scenes"]
    one = evaluate_images(tmp_path / "a", sets / "b", SCENES, CPU).metrics["fd_scenes"]
    assert both != pytest.approx(right, rel=0.01) and one > 2 * right


def test_a_saved_reference_gives_the_same_and_another_encoder_refuses_it(sets: Path, tmp_path: Path) -> None:
    file = tmp_path / "reference.safetensors"
    first = evaluate_images(sets / "a", sets / "b", SCENES, CPU, save_reference=file)
    again = evaluate_images(sets / "a", file, SCENES, CPU)
    assert again.metrics == first.metrics
    assert again.reference.fingerprint == first.reference.fingerprint
    with pytest.raises(UserError, match=r"encoder 'scenes' .* than that of 'inception' .*make the reference again"):
        evaluate_images(sets / "a", file, ImageProtocol(encoders=(InceptionSettings(),)), CPU)


@pytest.mark.slow
def test_fids_of_the_two_resizes_are_different_metrics(sets: Path, tmp_path: Path) -> None:
    file = tmp_path / "reference.safetensors"
    clean = ImageProtocol(encoders=(InceptionSettings(),), metrics=("fd",), limit=3)
    evaluate_images(sets / "a", sets / "b", clean, CPU, save_reference=file)
    tf = ImageProtocol(encoders=(InceptionSettings(resize="tf"),), metrics=("fd",))
    with pytest.raises(UserError, match="make the reference again with this encoder"):
        evaluate_images(sets / "a", file, tf, CPU)


def test_reconstructions_are_scored_pair_by_pair(sets: Path) -> None:
    protocol = ImageProtocol(encoders=(SceneEncoderSettings(),), metrics=("fd",), paired=True, limit=6)
    blurred = evaluate_images(sets / "blurred", sets / "a", protocol, CPU).metrics
    same = evaluate_images(sets / "a", sets / "a", protocol, CPU).metrics
    assert 10 < blurred["psnr"] < 40 and 0.3 < blurred["ssim"] < 0.99 and blurred["lpips"] > 0.02
    assert same["ssim"] == pytest.approx(1) and same["lpips"] == pytest.approx(0, abs=1e-6)  # squares


def test_pairs_of_different_numbers_or_sizes_are_refused(sets: Path, tmp_path: Path) -> None:
    protocol = ImageProtocol(encoders=(SceneEncoderSettings(),), metrics=("fd",), paired=True)
    few, same = tmp_path / "few", tmp_path / "same"
    for folder in (few, same):
        folder.mkdir()
        for file in sorted((sets / "a").iterdir())[:10]:
            (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="contain different numbers of images"):
        evaluate_images(few, sets / "a", protocol, CPU)
    Image.new("RGB", (40, 32)).save(few / "000.png")
    with pytest.raises(UserError, match="pair 0: 40 × 32 against 32 × 32 pixels"):
        evaluate_images(few, same, protocol, CPU)
    (few / "000.png").rename(few / "0.png")
    with pytest.raises(UserError, match=r"pair 0 is .*0\.png and .*000\.png: .* two names differ"):
        evaluate_images(few, same, protocol, CPU)


def test_pairs_below_the_networks_size_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(8):
            Image.new("RGB", (12, 12), (index * 9, 3, 5)).save(tmp_path / name / f"{index}.png")
    protocol = ImageProtocol(encoders=(SceneEncoderSettings(),), metrics=("mmd",), paired=True)
    with pytest.raises(UserError, match=r"12 × 12 .* at least 16 pixels"):
        evaluate_images(tmp_path / "a", tmp_path / "b", protocol, CPU)


def test_exact_pairs_are_counted_and_left_out_of_the_psnr(sets: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for index, file in enumerate(sorted((sets / "a").iterdir())[:8]):
        source = file if index < 2 else sets / "blurred" / file.name
        (mixed / file.name).write_bytes(source.read_bytes())
    protocol = ImageProtocol(encoders=(SceneEncoderSettings(),), metrics=("fd",), paired=True, limit=8)
    result = evaluate_images(mixed, sets / "a", protocol, CPU)
    assert 10 < result.metrics["psnr"] < 40
    assert any("2 of 8 pairs are identical" in text for text in result.warnings)


@pytest.mark.parametrize(
    ("settings", "reference", "saved", "message"),
    [
        ({"encoders": ["scenes", "inception"]}, "b", "x.safetensors", "one encoder at a time"),
        ({"paired": True}, "x.safetensors", None, "a reference file contains only their features"),
        ({"limit": 8}, "x.safetensors", None, "a reference file can only be used whole"),
        ({}, "b", "x.bin", "with the ending .safetensors"),
        ({}, "b", "nowhere/x.safetensors", "the folder .*nowhere does not exist"),
    ],
)
def test_conflicts_are_refused_before_reading(
    sets: Path, settings: dict[str, Any], reference: str, saved: str | None, message: str
) -> None:
    protocol = ImageProtocol.model_validate_json(json.dumps({"encoders": ["scenes"], **settings}))
    with pytest.raises(UserError, match=message):
        evaluate_images(sets / "a", sets / reference, protocol, CPU, sets / saved if saved else None)


FD = ImageProtocol(encoders=(SceneEncoderSettings(),), metrics=("fd", "precision", "coverage"))
SAME = "both sets are the same images: distances of zero say nothing about a model"


def notes(images: Path, reference: Path, protocol: ImageProtocol = FD) -> list[str]:
    """Return the warnings about copies alone: the others begin with the metrics that they are about."""
    labels = tuple(meaning.label for meaning in image_definitions(protocol).values())
    return [text for text in evaluate_images(images, reference, protocol, CPU).warnings if not text.startswith(labels)]


def copied(files: Sequence[Path], folder: Path, suffix: str = ".png") -> Path:
    """The images in this order, encoded anew."""
    folder.mkdir()
    for index, file in enumerate(files):
        Image.open(file).save(folder / f"{index:03d}{suffix}")
    return folder


def test_a_set_against_itself_comes_with_a_note_whatever_its_order_and_format(sets: Path, tmp_path: Path) -> None:
    turned = copied(sorted((sets / "a").iterdir(), reverse=True), tmp_path / "turned", ".bmp")
    assert notes(sets / "a", sets / "a") == notes(turned, sets / "a") == [SAME]
    assert notes(sets / "a", sets / "b") == []
    saved = tmp_path / "reference.safetensors"
    evaluate_images(sets / "b", sets / "a", FD, CPU, save_reference=saved)
    assert notes(turned, saved) == [SAME]


def test_images_that_are_in_both_sets_are_counted(sets: Path, tmp_path: Path) -> None:
    first, second = sorted((sets / "a").iterdir()), sorted((sets / "b").iterdir())
    mixed = copied([*second[:30], *first[:12]], tmp_path / "mixed")
    (note,) = notes(mixed, sets / "a")
    assert note.startswith("12 of 42 images are in the reference too")
    (note,) = notes(copied(first[:20], tmp_path / "part"), sets / "a")
    assert note.startswith("20 of 20 images are in the reference too"), "not the same: the reference has more"


def test_copies_within_a_set_are_counted_and_do_not_shrink_its_errors(sets: Path, tmp_path: Path) -> None:
    files = sorted((sets / "a").iterdir())[:24]
    once, twice = copied(files, tmp_path / "once"), copied(files + files, tmp_path / "twice")
    alone, doubled = (evaluate_images(path, sets / "b", FD, CPU) for path in (once, twice))
    (note,) = [text for text in doubled.warnings if "copies" in text]
    assert note.startswith("24 of 48 images are exact copies of another: 24 are different")
    for name in ("precision_scenes", "coverage_scenes"):
        assert doubled.metrics[name] == alone.metrics[name]
        assert doubled.errors[name] == pytest.approx(alone.errors[name], rel=1e-6)  # of counts, in float64
    assert doubled.errors["fd_scenes"] == pytest.approx(alone.errors["fd_scenes"], rel=0.1)
    copies, shared = notes(once, twice)
    assert copies.startswith("24 of the reference's 48 images are exact copies of another")
    assert shared.startswith("24 of 24 images are in the reference too")


def test_a_set_of_one_image_is_scored_with_a_note_and_without_errors(sets: Path, tmp_path: Path) -> None:
    one = copied(sorted((sets / "a").iterdir())[:1] * 12, tmp_path / "one")
    result = evaluate_images(one, sets / "b", SCENES, CPU)
    assert any(text.startswith("11 of 12 images are exact copies") for text in result.warnings)
    assert result.errors == {}


def test_copied_pairs_do_not_shrink_the_errors_of_a_reconstruction(sets: Path, tmp_path: Path) -> None:
    protocol = ImageProtocol(encoders=(SceneEncoderSettings(),), metrics=("kid",), paired=True)
    errors = []
    for name, times in (("once", 1), ("twice", 2)):
        (tmp_path / name).mkdir()
        for kind in ("a", "blurred"):
            copied(sorted((sets / kind).iterdir())[:4] * times, tmp_path / name / kind)
        found = evaluate_images(tmp_path / name / "blurred", tmp_path / name / "a", protocol, CPU)
        errors.append([found.errors[metric] for metric in ("psnr", "ssim", "lpips")])
    assert errors[1] == pytest.approx(errors[0], rel=1e-3), "LPIPS is rounded by batch; copies would make it 0.7 times"


@pytest.mark.slow
def test_fid_of_photographs(tmp_path: Path) -> None:
    """Real images of many sizes through the real network: halves of one set are near, blurred ones are far."""
    photos = shared("data/photos.parquet")
    protocol = ImageProtocol(encoders=(InceptionSettings(),), metrics=("fd", "kid", "precision"), limit=24)
    (tmp_path / "blurred").mkdir()
    for index, image in enumerate(open_images(photos, 24)):
        blurred_image = Image.fromarray(image.permute(1, 2, 0).numpy()).filter(ImageFilter.GaussianBlur(4))
        blurred_image.save(tmp_path / "blurred" / f"{index:03d}.png")
    blurred = evaluate_images(tmp_path / "blurred", photos, protocol, CPU).metrics
    same = evaluate_images(photos, photos, protocol, CPU).metrics
    # in float64, with roots of eigenvalues of about eps
    assert same["fd_inception"] == pytest.approx(0, abs=1e-6) and same["precision_inception"] == 1
    assert blurred["fd_inception"] > 100 and blurred["kid_inception"] > 0.05


def test_contact_sheets_are_left_out_and_named(sets: Path, tmp_path: Path) -> None:
    """Only those that `tintype sample` marks: another image may have the name."""
    folder = Path(shutil.copytree(sets / "a", tmp_path / "samples"))
    sheet = contact_sheet(torch.stack(list(open_images(folder))))
    save_png(sheet, folder / "contact-sheet.png", {SHEET: "40 images"})
    (folder / "contact-sheet-of-mine.png").write_bytes((sets / "b" / "000.png").read_bytes())
    found = evaluate_images(folder, sets / "b", ImageProtocol(encoders=SCENES.encoders, metrics=("fd",)), CPU)
    assert found.images.count == 41 and found.reference.count == 40
    assert f"{folder / 'contact-sheet.png'} is left out: it is a contact sheet of other images" in found.warnings


def few_images(folder: Path, count: int) -> Path:
    folder.mkdir()
    for index, image in enumerate(render(draw_batch(0, range(count), "eval"), 32, 0, range(count))):
        save_png(image, folder / f"{index}.png")
    return folder


def test_too_few_images_and_unequal_pairs_are_refused_before_anything_is_encoded(sets: Path, tmp_path: Path) -> None:
    doing: list[str] = []

    def score(images: Path, reference: Path, **settings: Any) -> None:
        protocol = ImageProtocol(encoders=SCENES.encoders, **settings)
        evaluate_images(images, reference, protocol, CPU, on_progress=lambda now: doing.append(now.doing))

    one, five = few_images(tmp_path / "one", 1), few_images(tmp_path / "five", 5)
    with pytest.raises(UserError, match=r"one has 1 image, too few: fd needs 2, .*; give more images$"):
        score(one, sets / "b")
    with pytest.raises(UserError, match=r'five has 5 images, too few: fd_inf needs 8, .*--set "metrics=\[fd,'):
        score(five, sets / "b")
    assert not any(words == f"reading {sets / 'b'}" for words in doing), "the reference may be large"
    with pytest.raises(UserError, match="five has 5 images, too few: fd_inf needs 8"):
        score(sets / "b", five)
    with pytest.raises(UserError, match="contain different numbers of images"):
        score(sets / "b", five, metrics=("fd",), paired=True)
    assert not any("encoding" in words for words in doing)


def test_a_metric_measures_as_few_images_as_it_says() -> None:
    """One image fewer, of the generated ones, is refused by the metric itself."""
    rows = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    for name in FEATURE_METRICS.built_in:
        metric = FEATURE_METRICS[name]
        assert metric.measure(FeaturePair(rows[: metric.fewest], rows[32:])).value is not None
        with pytest.raises(UserError, match="needs"):
            metric.measure(FeaturePair(rows[: metric.fewest - 1], rows[32:]))


def test_the_reference_is_encoded_after_the_images_once_and_its_time_is_noted(
    sets: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(images_module, "_WORTH_A_NOTE_S", 0.0)
    protocol, doing = ImageProtocol(encoders=SCENES.encoders, metrics=("fd",)), list[str]()

    def score() -> list[str]:
        doing.clear()
        caplog.clear()
        evaluate_images(sets / "a", sets / "b", protocol, CPU, on_progress=lambda now: doing.append(now.doing))
        return list(dict.fromkeys(doing))

    parts, encoded = score(), [f"encoding {sets / 'a'} with scenes", f"encoding the reference {sets / 'b'} with scenes"]
    assert [words for words in parts if words.startswith("encoding")] == encoded
    assert f"{sets / 'b'}: the features of its 40 images by scenes are not cached yet" in caplog.text
    assert re.search(r"takes about [\d.]+ \w+ once; later calls read the features from", caplog.text)
    parts = score()
    assert [words for words in parts if words.startswith("encoding")] == encoded[:1] and caplog.text == ""
    assert f"reading the cached features of {sets / 'b'}" in parts
