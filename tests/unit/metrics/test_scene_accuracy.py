"""The score of what images show, on readings made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tintype.data.scenes.captions import CaptionKind
from tintype.data.scenes.scene import OBJECT_VOCABULARY, SCENE_VOCABULARY, Scene, SceneBatch, SceneObject
from tintype.metrics.scene_accuracy import BACKDROP_WEIGHT, Asked, ReadScenes, Scores, asked_of, scaled, score
from tintype.vision.scene_encoder import SceneReading

EVERYTHING = frozenset({"presence", "count", *OBJECT_VOCABULARY, *SCENE_VOCABULARY})
ALL = Asked("long", True, tuple(OBJECT_VOCABULARY), tuple(SCENE_VOCABULARY))
SHORT = Asked("short", True, (), ())
OBJECT, BACKDROP = 1 - BACKDROP_WEIGHT, BACKDROP_WEIGHT
BALL = SceneObject(shape="ball", colour="red", size="small", texture="plain", position="top left")
STAR = SceneObject(shape="star", colour="blue", size="large", texture="dotted", position="top right")
RING = SceneObject(shape="ring", colour="green", size="large", texture="plain", position="bottom left")
ONE = Scene(objects=(BALL,), sky="cream", ground="slate", light="left", style="render")
TWO = replace(ONE, objects=(BALL, STAR))
THREE = replace(ONE, objects=(BALL, STAR, RING))


def scored(read: Sequence[Scene], stated: Sequence[Scene], asked: Asked = ALL) -> Scores:
    return score(SceneBatch.from_scenes(read), SceneBatch.from_scenes(stated), asked)


def asked(scenes: Sequence[Scene], captions: CaptionKind = "long", visible: frozenset[str] = EVERYTHING) -> Asked:
    return asked_of(SceneBatch.from_scenes(scenes), captions, visible)


def test_a_perfect_reading_is_right_throughout() -> None:
    found = scored([ONE, THREE], [ONE, THREE])
    assert set(found.by_attribute) == EVERYTHING and set(found.by_attribute.values()) == {1.0}
    assert found.accuracy_B.tolist() == pytest.approx([1, 1]) and found.objects_right_B.tolist() == [1, 1]
    short = scored([ONE, THREE], [ONE, THREE], SHORT)
    assert short.by_attribute == {"object": 1.0, "count": 1.0} and short.accuracy_B.tolist() == [1, 1]


def test_one_wrong_colour_costs_a_quarter_of_its_object() -> None:
    found = scored([replace(TWO, objects=(replace(BALL, colour="black"), STAR))], [TWO])
    assert found.accuracy_B.tolist() == pytest.approx([1 - OBJECT / 4 / 2])
    assert found.objects_right_B.tolist() == [1 / 2]
    assert {name: value for name, value in found.by_attribute.items() if value < 1} == {"colour": 1 / 2}


def test_an_object_that_is_not_at_its_place_counts_for_nothing() -> None:
    for read in (ONE, replace(TWO, objects=(BALL, replace(STAR, position="bottom left")))):
        found = scored([read], [TWO])
        assert found.accuracy_B.tolist() == pytest.approx([BACKDROP + OBJECT / 2])
        assert found.objects_right_B.tolist() == [1 / 2]
        assert all(found.by_attribute[name] == 1 / 2 for name in ("presence", *OBJECT_VOCABULARY))


def test_an_object_too_many_costs_as_much_as_one_too_few() -> None:
    found = scored([TWO], [ONE])
    assert found.accuracy_B.tolist() == pytest.approx([BACKDROP + OBJECT / 2])
    assert found.objects_right_B.tolist() == [1 / 2]


def test_a_wrong_light_costs_its_share_of_the_backdrop() -> None:
    found = scored([replace(ONE, light="right"), THREE], [ONE, THREE])
    assert found.by_attribute["light"] == 1 / 2
    assert found.accuracy_B.tolist() == pytest.approx([1 - BACKDROP / len(SCENE_VOCABULARY), 1])


def test_short_captions_find_an_object_anywhere_whatever_its_size() -> None:
    moved = replace(ONE, objects=(replace(BALL, size="large", position="bottom right"),), light="above")
    found = scored([moved], [ONE], SHORT)
    assert found.by_attribute == {"object": 1.0} and found.accuracy_B.tolist() == [1]


def test_short_captions_need_colour_and_shape_on_one_object() -> None:
    swapped = replace(TWO, objects=(replace(BALL, colour="blue"), replace(STAR, colour="red")))
    assert scored([swapped], [TWO], SHORT).accuracy_B.tolist() == [0]


def test_short_captions_ask_for_as_many_objects_as_they_mention() -> None:
    assert scored([TWO], [THREE], SHORT).accuracy_B.tolist() == pytest.approx([2 / 3])
    assert scored([TWO], [THREE], SHORT).by_attribute == {"object": 1.0, "count": 0.0}
    assert scored([THREE], [TWO], SHORT).accuracy_B.tolist() == pytest.approx([2 / 3])


def test_what_cannot_be_seen_is_not_asked() -> None:
    assert "texture" not in asked([TWO, THREE], visible=EVERYTHING - {"texture"}).of_objects
    read = [replace(ONE, objects=(replace(BALL, texture="striped"),)), TWO]
    blind = replace(ALL, of_objects=tuple(name for name in OBJECT_VOCABULARY if name != "texture"))
    assert scored(read, [ONE, TWO], blind).accuracy_B.tolist() == pytest.approx([1, 1])
    with pytest.raises(ValueError, match="no attribute can be scored"):
        asked([ONE, TWO], "short", EVERYTHING - {"shape"})


def test_what_all_prompts_have_in_common_is_not_asked() -> None:
    other = replace(ONE, objects=(replace(BALL, colour="blue"),), light="right")
    found = asked([ONE, other])
    assert found == Asked("long", True, ("colour",), ("light",))
    assert "count" not in scored([ONE, other], [ONE, other], found).by_attribute
    with pytest.raises(ValueError, match="no attribute can be scored"):
        asked([ONE, ONE])


def test_a_score_is_a_share_of_the_way_from_shuffled_prompts_to_real_images() -> None:
    own_B, shuffled_B, real_B = (torch.tensor(row).double() for row in ([0.2, 0.8], [0.1, 0.3], [1.0, 0.8]))
    assert float(scaled(own_B, shuffled_B, real_B).mean()) == pytest.approx((0.5 - 0.2) / (0.9 - 0.2))
    with pytest.raises(ValueError, match="no attribute can be scored"):
        scaled(own_B, real_B, real_B)


def test_the_numbers_of_images_have_the_error_of_the_ratio() -> None:
    """The jackknife of the ratio itself, without each image in turn, gives the same error to first order."""
    own_B, half_B = torch.rand(2, 200, generator=torch.Generator().manual_seed(0)).double()
    shuffled_B = half_B / 2
    real_B = torch.ones(200).double()
    keep = [torch.arange(200) != row for row in range(200)]
    left_out = torch.stack([scaled(own_B[k], shuffled_B[k], real_B[k]).mean() for k in keep])
    jackknife = ((left_out - left_out.mean()).square().sum() * 199 / 200).sqrt()
    assert float(scaled(own_B, shuffled_B, real_B).std() / 200**0.5) == pytest.approx(float(jackknife), rel=0.02)


def test_every_image_needs_its_scene() -> None:
    reading = SceneReading(torch.zeros(1, 1), {})
    with pytest.raises(ValueError, match="1 images were read but 2 scenes"):
        _ = ReadScenes(reading, reading, [ONE, TWO], "long", 64).stated
