"""The score of what images show, on readings made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from tintype.data.scenes.scene import OBJECT_VOCABULARY, SCENE_VOCABULARY, Scene, SceneBatch, SceneObject
from tintype.metrics.scene_accuracy import Scores, score_visible
from tintype.vision.scene_encoder import SceneReading

EVERYTHING = frozenset({"presence", "count", *OBJECT_VOCABULARY, *SCENE_VOCABULARY})
BALL = SceneObject(shape="ball", colour="red", size="small", texture="plain", position="top left")
STAR = SceneObject(shape="star", colour="blue", size="large", texture="dotted", position="top right")
RING = SceneObject(shape="ring", colour="green", size="large", texture="plain", position="bottom left")
ONE = Scene(objects=(BALL,), sky="cream", ground="slate", light="left", style="render")
TWO = replace(ONE, objects=(BALL, STAR))
THREE = replace(ONE, objects=(BALL, STAR, RING))


def reading_of(scenes: Sequence[Scene]) -> SceneReading:
    """The reading of an encoder that is sure and right about these scenes."""
    batch = SceneBatch.from_scenes(scenes)
    logits = {"presence": batch.present_BP.float() * 2 - 1}
    for name, words in OBJECT_VOCABULARY.items():
        logits[name] = one_hot(vars(batch)[f"{name}_BP"], len(words)).float()
    for name, words in SCENE_VOCABULARY.items():
        logits[name] = one_hot(vars(batch)[f"{name}_B"], len(words)).float()
    return SceneReading(feature_BF=torch.zeros(len(scenes), 1), logits=logits)


def flat(scores: Scores) -> dict[str, float]:
    return {**scores.by_attribute, "overall": scores.overall}


def test_a_perfect_reading_is_right_throughout() -> None:
    scores = flat(score_visible(reading_of([ONE, THREE]), [ONE, THREE], "long", EVERYTHING))
    assert set(scores) == EVERYTHING | {"overall"}
    assert set(scores.values()) == {1.0}
    assert flat(score_visible(reading_of([ONE, THREE]), [ONE, THREE], "short", EVERYTHING)) == {
        "object": 1.0,
        "count": 1.0,
        "overall": 1.0,
    }


def test_one_wrong_colour_costs_its_share() -> None:
    read = replace(TWO, objects=(replace(BALL, colour="black"), STAR))
    scores = flat(score_visible(reading_of([read]), [TWO], "long", EVERYTHING))
    stated = 2 * 5 + 5
    assert scores["colour"] == 1 / 2
    assert scores["overall"] == pytest.approx((stated - 1) / stated)
    assert {name for name, value in scores.items() if value < 1} == {"colour", "overall"}


def test_an_object_that_is_not_there_is_wrong_in_everything() -> None:
    scores = flat(score_visible(reading_of([ONE]), [TWO], "long", EVERYTHING))
    assert all(scores[name] == 1 / 2 for name in ("presence", "shape", "colour", "size", "texture"))
    assert scores["count"] == 0
    assert scores["overall"] == pytest.approx((15 - 6) / 15)


def test_an_object_too_many_counts_against_the_count_alone() -> None:
    scores = flat(score_visible(reading_of([TWO]), [ONE], "long", EVERYTHING))
    assert {name for name, value in scores.items() if value < 1} == {"count", "overall"}


def test_overall_weighs_images_alike() -> None:
    wrong_light = replace(ONE, light="right")
    scores = flat(score_visible(reading_of([wrong_light, THREE]), [ONE, THREE], "long", EVERYTHING))
    assert scores["light"] == 1 / 2
    assert scores["overall"] == pytest.approx((9 / 10 + 1) / 2)


def test_short_captions_find_an_object_anywhere_whatever_its_size() -> None:
    moved = replace(ONE, objects=(replace(BALL, size="large", position="bottom right"),), light="above")
    assert flat(score_visible(reading_of([moved]), [ONE], "short", EVERYTHING)) == {"object": 1.0, "overall": 1.0}


def test_short_captions_need_colour_and_shape_on_one_object() -> None:
    swapped = replace(TWO, objects=(replace(BALL, colour="blue"), replace(STAR, colour="red")))
    assert flat(score_visible(reading_of([swapped]), [TWO], "short", EVERYTHING))["object"] == 0


def test_short_captions_ask_the_count_only_where_they_state_it() -> None:
    assert "count" not in flat(score_visible(reading_of([THREE]), [TWO], "short", EVERYTHING))
    assert flat(score_visible(reading_of([TWO]), [THREE], "short", EVERYTHING))["count"] == 0


def test_invisible_attributes_are_not_checked() -> None:
    read = replace(ONE, objects=(replace(BALL, texture="striped"),))
    scores = flat(score_visible(reading_of([read]), [ONE], "long", EVERYTHING - {"texture"}))
    assert "texture" not in scores
    assert scores["overall"] == 1
    with pytest.raises(ValueError, match="nothing to score"):
        flat(score_visible(reading_of([ONE]), [ONE], "short", EVERYTHING - {"shape"}))


def test_every_image_needs_its_scene() -> None:
    with pytest.raises(ValueError, match="1 images were read but 2 scenes"):
        flat(score_visible(reading_of([ONE]), [ONE, TWO], "long", EVERYTHING))
