"""The words of a prompt that an image got wrong, on scenes made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tintype.data.scenes.captions import CaptionKind, long_caption, short_caption
from tintype.data.scenes.scene import OBJECT_VOCABULARY, SCENE_VOCABULARY, Scene, SceneObject, draw_batch
from tintype.data.scenes.stated import COUNT, OBJECT, stated_words
from tintype.metrics.misread import misread
from tintype.metrics.scene_accuracy import Asked

LONG = Asked("long", True, tuple(OBJECT_VOCABULARY), tuple(SCENE_VOCABULARY))
SHORT = Asked("short", True, (), ())
BALL = SceneObject(shape="ball", colour="red", size="small", texture="plain", position="top left")
STAR = SceneObject(shape="star", colour="blue", size="large", texture="dotted", position="top right")
RING = SceneObject(shape="ring", colour="green", size="large", texture="plain", position="bottom left")
TWO = Scene(objects=(BALL, STAR), sky="cream", ground="slate", light="left", style="render")
THREE = replace(TWO, objects=(BALL, STAR, RING))


def wrong(scene: Scene, seen: Scene, asked: Asked = LONG, variant: int = 0) -> dict[str, str]:
    """Return the wrong words of a caption, and what is said of each."""
    prompt = (long_caption if asked.captions == "long" else short_caption)(scene, variant)
    return {prompt[one.start : one.end]: one.words for one in misread(scene, seen, prompt, asked)}


@pytest.mark.parametrize("kind", ["long", "short"])
def test_every_attribute_is_found_in_every_phrasing(kind: CaptionKind) -> None:
    for index, scene in enumerate(draw_batch(3, range(200)).to_scenes()):
        caption = (long_caption if kind == "long" else short_caption)(scene, index)
        found = stated_words(scene, caption, kind)
        things = {thing.position: thing for thing in scene.objects}
        for one in found:
            words = caption[one.start : one.end]
            if one.attribute in OBJECT_VOCABULARY:
                assert words == getattr(things[one.position], one.attribute)
            elif one.attribute == OBJECT:
                assert words == f"{things[one.position].colour} {things[one.position].shape}"
            elif one.attribute not in (COUNT, "light"):
                assert words == getattr(scene, one.attribute)
        of_objects = [(one.attribute, one.position) for one in found if one.position]
        wanted = {OBJECT, *OBJECT_VOCABULARY} if kind == "long" else {OBJECT}
        named = [thing.position for thing in scene.objects][: None if kind == "long" else 2]
        assert sorted(of_objects) == sorted((attribute, position) for attribute in wanted for position in named)
        if kind == "long":
            assert {one.attribute for one in found if not one.position} >= set(SCENE_VOCABULARY)
        else:
            assert any(one.attribute == COUNT for one in found) == (len(scene.objects) > 2)


def test_an_image_as_asked_has_no_wrong_word() -> None:
    assert wrong(THREE, THREE) == {} and wrong(THREE, THREE, SHORT) == {}


def test_a_wrong_attribute_is_named_with_what_was_drawn() -> None:
    seen = replace(TWO, objects=(replace(BALL, colour="black"), STAR), light="above", sky="mint")
    assert wrong(TWO, seen) == {
        "red": "drawn black, asked red",
        "from the left": "light drawn above, asked left",
        "cream": "sky drawn mint, asked cream",
    }


def test_an_object_that_is_not_at_its_place_is_not_drawn() -> None:
    moved = replace(TWO, objects=(BALL, replace(STAR, position="bottom left")))
    assert wrong(TWO, moved) == {"blue star": "not drawn"}
    assert wrong(TWO, moved, SHORT) == {}
    assert wrong(TWO, replace(TWO, objects=(BALL,))) == {"blue star": "not drawn", "two objects": "drawn 1, asked 2"}


def test_short_prompts_name_two_objects_and_count_the_others() -> None:
    assert wrong(THREE, TWO, SHORT) == {"one other thing": "drawn 2 objects in all, asked 3"}
    assert wrong(THREE, replace(THREE, objects=(STAR, RING)), SHORT)["red ball"] == "not drawn"


def test_what_scene_accuracy_does_not_ask_is_not_wrong() -> None:
    seen = replace(TWO, objects=(replace(BALL, texture="striped", colour="black"), STAR), style="photo")
    assert wrong(TWO, seen, Asked("long", True, ("colour",), ())) == {"red": "drawn black, asked red"}
    assert wrong(TWO, replace(TWO, objects=()), Asked("long", False, (), ("sky",))) == {}
