from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_plan
from tintype.config.strict import parse, read_yaml
from tintype.data.scenes.source import SceneSource, ScenesSettings
from tintype.errors import UserError
from tintype.evaluation.protocol import ImageProtocol, Protocol, definitions
from tintype.evaluation.run import evaluate
from tintype.metrics.memorisation import CHANCE, METRIC, Seen, nearest2
from tintype.metrics.metric import Measured
from tintype.metrics.pair import FeaturePair, Reference
from tintype.runtime.interrupt import Interrupt
from tintype.train.loop import train
from tintype.vision.scene_encoder import scene_features

CPU = torch.device("cpu")
TRAIN, HELD_OUT = 400, 400


def features(image_BCHW: Tensor) -> Tensor:
    return scene_features(CPU).read(image_BCHW).feature_BF


def scenes(split: str, count: int) -> Tensor:
    source = SceneSource(ScenesSettings(size_px=16, count=count, max_objects=2), split, CPU)  # type: ignore[arg-type]
    return source.images(range(count))


@cache
def sets() -> tuple[Tensor, Tensor, Tensor]:
    """Features of training images, of the reference, and of held-out images that are not in it."""
    held_out = features(scenes("eval", HELD_OUT + 200))
    return features(scenes("train", TRAIN)), held_out[:HELD_OUT], held_out[HELD_OUT:]


def measure(fake_NF: Tensor, trained_on: int = TRAIN) -> Measured:
    train_MF, held_out_HF, _ = sets()
    return METRIC.measure(Seen(FeaturePair(fake_NF, held_out_HF), Reference(train_MF), trained_on))


@pytest.mark.slow
def test_a_model_that_returns_training_images_gets_one() -> None:
    assert measure(sets()[0][:200]).value == 1.0
    nearly = scenes("train", 200)
    changed = (nearly.int() + torch.randint(-1, 2, nearly.shape, generator=torch.Generator().manual_seed(0))).clamp(
        0, 255
    )
    assert measure(features(changed.byte())).value > 0.9, "a level of brightness is no new image"


def test_real_images_that_were_never_seen_get_the_level_of_chance() -> None:
    """Two hundred others: three standard errors about 5%."""
    found = measure(sets()[2])
    assert abs(found.value - CHANCE) < 3 * math.sqrt(CHANCE * (1 - CHANCE) * (1 / 200 + 1 / HELD_OUT))
    own = measure(sets()[1])
    assert own.value == pytest.approx(CHANCE, abs=1.5 / HELD_OUT)


def test_noise_gets_zero() -> None:
    noise = torch.randint(0, 256, (200, 3, 16, 16), generator=torch.Generator().manual_seed(0)).byte()
    assert measure(features(noise)).value == 0.0


def test_half_copies_get_half() -> None:
    train_MF, _, other = sets()
    found = measure(torch.cat([train_MF[:100], 1e3 + other[:100]]))
    assert found.value == 0.5 and found.error == pytest.approx(math.sqrt(0.25 / 199))


def test_distances_are_those_to_the_nearest_training_image() -> None:
    generator = torch.Generator().manual_seed(2)
    fake, train_MF = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (7, 9))
    expected = [min(float((one - other).square().sum()) for other in train_MF) for one in fake]
    assert nearest2(fake, Reference(train_MF)).tolist() == pytest.approx(expected, rel=1e-9)


def test_warnings_name_what_the_value_cannot_say() -> None:
    train_MF, held_out_HF, _ = sets()
    assert not measure(held_out_HF).warnings
    assert "400 of 5,000 training images" in measure(held_out_HF, trained_on=5000).warnings[0]
    few = METRIC.measure(Seen(FeaturePair(train_MF[:9], train_MF[:20]), Reference(train_MF), TRAIN))
    assert "are training images to the encoder" in few.warnings[0] and "20 held-out images" in few.warnings[1]


PROTOCOL = """
count: 24
reference_count: 32
validation_count: 4
metrics: [fd, memorised]
training_count: 16
sampler: {steps: 1, batch: 24}
also: []
"""


def test_a_run_is_scored_with_it(tmp_path: Path) -> None:
    train(tiny_plan("train.steps=1"), tmp_path, Interrupt())
    protocol = parse(Protocol, read_yaml(PROTOCOL, "protocol"))
    result = evaluate(tmp_path, protocol)
    assert set(result.metrics) == set(definitions(protocol))
    assert 0 <= result.metrics["memorised_scenes"] <= 1
    assert any("16 of 24 training images" in text for text in result.warnings)


def test_protocols_without_it_keep_their_hash() -> None:
    assert Protocol(training_count=5).hash == Protocol().hash
    with_it = [Protocol(metrics=("fd", "memorised"), training_count=count).hash for count in (5, 6)]
    assert len({*with_it, Protocol(metrics=("fd",)).hash}) == 3


def test_two_sets_of_images_have_no_training_images() -> None:
    with pytest.raises(UserError, match="unknown metric 'memorised'"):
        parse(ImageProtocol, read_yaml("metrics: [memorised]", "protocol"))
