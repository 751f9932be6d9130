"""The scene encoder's shapes, its training, its record, and, last, the packaged weights themselves."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tintype.data.scenes.render import render
from tintype.data.scenes.scene import (
    OBJECT_VOCABULARY,
    POSITIONS,
    SCENE_VOCABULARY,
    STYLES,
    Style,
    draw_batch,
)
from tintype.evaluation.train_scene_encoder import (
    MEASURED_SIZES_PX,
    SceneEncoderTraining,
    TrainedEncoder,
    reading_loss,
    train,
)
from tintype.metrics.scene_accuracy import ReadScenes
from tintype.runtime.files import read_lines
from tintype.runtime.interrupt import Interrupt
from tintype.vision import scene_encoder
from tintype.vision.scene_encoder import (
    FEATURES,
    RECORD_PATH,
    WEIGHTS_PATH,
    SceneEncoder,
    load_scene_encoder,
    scene_encoder_record,
    visible_attributes,
)


@pytest.mark.parametrize("size_px", [16, 64, 100])
def test_a_reading_has_a_place_for_everything(size_px: int) -> None:
    reading = SceneEncoder().eval()(render(draw_batch(0, torch.arange(3)), size_px, 0, range(3)))
    assert reading.feature_BF.shape == (3, FEATURES)
    assert reading.logits["presence"].shape == (3, len(POSITIONS))
    for name, words in OBJECT_VOCABULARY.items():
        assert reading.logits[name].shape == (3, len(POSITIONS), len(words))
    for name, words in SCENE_VOCABULARY.items():
        assert reading.logits[name].shape == (3, len(words))


def test_only_bytes_are_read() -> None:
    with pytest.raises(TypeError, match="must be uint8"):
        SceneEncoder()(torch.zeros(1, 3, 64, 64))


def test_the_loss_ignores_what_does_not_stand_there() -> None:
    scenes = draw_batch(0, torch.arange(8))
    reading = SceneEncoder().eval()(render(scenes, 32, 0, range(8)))
    before = reading_loss(reading, scenes)
    reading.logits["colour"][~scenes.present_BP] += 100.0 * torch.arange(8)
    assert torch.equal(before, reading_loss(reading, scenes))


def trained(out: Path, seed: int = 0, steps: int = 2, batch: int = 4, **more: int) -> TrainedEncoder:
    settings = SceneEncoderTraining(seed=seed, steps=steps, batch=batch, measured_scenes=1, **more)
    record = train(settings, out, "cpu", Interrupt()).record
    assert record is not None
    return record


def test_training_learns_and_its_record_fits_its_weights(tmp_path: Path) -> None:
    record = trained(tmp_path, steps=14, batch=16, log_every_steps=1)
    losses = [line["loss"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert sum(losses[-3:]) < sum(losses[:3])
    weights, written = tmp_path / WEIGHTS_PATH.name, tmp_path / RECORD_PATH.name
    assert weights.stat().st_size <= 2_000_000
    assert json.loads(written.read_text()) == asdict(record)
    assert set(record.accuracy) == {str(size_px) for size_px in MEASURED_SIZES_PX}
    loaded = scene_encoder._load(weights, written)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_training_is_a_function_of_its_seed(tmp_path: Path) -> None:
    first, again, other = (trained(tmp_path / str(index), seed).sha256 for index, seed in enumerate((0, 0, 1)))
    assert first == again != other


def test_weights_that_are_not_the_recorded_ones_are_refused(tmp_path: Path) -> None:
    trained(tmp_path, steps=1, batch=2)
    weights = tmp_path / WEIGHTS_PATH.name
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(RuntimeError, match="does not match its record"):
        scene_encoder._load(weights, tmp_path / RECORD_PATH.name)


def test_visibility_is_judged_at_the_nearest_size_not_above_in_the_worse_style() -> None:
    accuracy = {
        "16": {"render": {"sky": 1.0, "shape": 0.5, "overall": 0.9}, "photo": {"sky": 1.0, "shape": 0.4, "overall": 1}},
        "32": {
            "render": {"sky": 1.0, "shape": 0.99, "overall": 1},
            "photo": {"sky": 0.94, "shape": 0.95, "overall": 1},
        },
    }
    assert scene_encoder._visible(accuracy, 15) == frozenset()
    assert scene_encoder._visible(accuracy, 31) == {"sky"}
    assert scene_encoder._visible(accuracy, 999) == {"shape"}


def test_packaged_weights_are_the_recorded_ones_and_small() -> None:
    assert hashlib.sha256(WEIGHTS_PATH.read_bytes()).hexdigest() == scene_encoder_record()["sha256"]
    assert WEIGHTS_PATH.stat().st_size <= 2_000_000


def test_packaged_weights_read_64_px_well_by_their_record() -> None:
    measured = scene_encoder_record()["accuracy"]["64"]
    assert all(measured[style]["overall"] >= 0.98 for style in STYLES)
    assert visible_attributes(64) == {"presence", "count", *OBJECT_VOCABULARY, *SCENE_VOCABULARY}


@pytest.mark.parametrize("style", STYLES)
def test_packaged_weights_read_fresh_scenes(style: Style) -> None:
    scenes = draw_batch(12345, range(64), "eval", style).to_scenes()
    reading = load_scene_encoder()(render(scenes, 64, 12345, range(64)))
    assert ReadScenes(reading, reading, scenes, "long", 64).own.accuracy_B.mean() > 0.97
    assert ReadScenes(reading, reading, scenes, "short", 64).own.accuracy_B.mean() > 0.95
