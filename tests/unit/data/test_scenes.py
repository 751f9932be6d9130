"""The embedded data set: pure functions of (seed, index), true captions, disjoint splits, sound images."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from tintype.config.strict import Document, parse
from tintype.data.scenes.captions import long_caption, short_caption, vocabulary
from tintype.data.scenes.render import object_centres, render
from tintype.data.scenes.scene import (
    COLOURS,
    LIGHTS,
    MAX_OBJECTS,
    POSITIONS,
    SCENE_VOCABULARY,
    SHAPES,
    Scene,
    SceneBatch,
    SceneObject,
    Split,
    Style,
    draw_batch,
    is_held_out,
)
from tintype.data.scenes.source import ObjectWords, ScenesSettings
from tintype.errors import UserError

SCENES = draw_batch(0, range(300)).to_scenes()
VARIANTS = range(24)
CORNERS = ("top left", "top right", "bottom left", "bottom right")


def pairs(scene: Scene) -> set[tuple[str, str]]:
    return {(thing.colour, thing.shape) for thing in scene.objects}


def thing(colour: str, shape: str, position: str) -> SceneObject:
    return SceneObject(shape=shape, colour=colour, size="small", texture="plain", position=position)


def one_of(*things: SceneObject) -> Scene:
    return Scene(objects=things, sky="cream", ground="slate", light="left", style="render")


def test_a_scene_is_a_pure_function_of_seed_and_index() -> None:
    assert draw_batch(0, [7, 3]).to_scenes() == [*draw_batch(0, [7]).to_scenes(), *draw_batch(0, [3]).to_scenes()]
    assert draw_batch(0, [7]).to_scenes() != draw_batch(1, [7]).to_scenes()


def test_words_and_indices_say_the_same() -> None:
    assert SceneBatch.from_scenes(SCENES).to_scenes() == SCENES


@pytest.mark.parametrize("split", ["train", "eval", "any"])
def test_every_drawn_scene_is_possible(split: Split) -> None:
    for scene in draw_batch(5, range(2000), split).to_scenes():
        places = [POSITIONS.index(thing.position) for thing in scene.objects]
        assert 1 <= len(places) <= MAX_OBJECTS and sorted(set(places)) == places
        assert places == [0] or 0 not in places, "an object stands in the centre only when it is alone"
        assert len(pairs(scene)) == len(places), "no two have the same colour and shape"
        assert scene.sky != scene.ground


def test_splits_share_no_scene_and_train_knows_every_word() -> None:
    train = [pairs(scene) for scene in draw_batch(0, range(500), "train").to_scenes()]
    evaluation = [pairs(scene) for scene in draw_batch(0, range(500), "eval").to_scenes()]
    seen = set().union(*train)
    assert not any(is_held_out(*pair) for pair in seen)
    assert all(any(is_held_out(*pair) for pair in scene) for scene in evaluation)
    assert {colour for colour, _ in seen} == set(COLOURS)
    assert {shape for _, shape in seen} == set(SHAPES)


def test_object_counts_and_style_are_as_asked() -> None:
    some = draw_batch(0, range(99), min_objects=2, max_objects=3).to_scenes()
    assert {len(scene.objects) for scene in some} == {2, 3}
    assert {scene.style for scene in draw_batch(0, range(99), style="photo").to_scenes()} == {"photo"}
    with pytest.raises(UserError, match="min_objects"):
        parse(ScenesSettings, Document("x", {"min_objects": 3, "max_objects": 2}))


@pytest.mark.parametrize("size_px", [24, 64])
def test_an_image_does_not_depend_on_its_batch(size_px: int) -> None:
    indices = range(37)
    together = render(SCENES[:37], size_px, 0, indices)
    assert torch.equal(together, render(SCENES[:37], size_px, 0, indices))
    for index in (0, 5, 36):
        assert torch.equal(together[index : index + 1], render([SCENES[index]], size_px, 0, [index]))


@pytest.mark.parametrize("style", ["render", "photo"])
@pytest.mark.parametrize("size_px", [16, 33, 64, 256])
def test_images_have_sane_contrast(style: Style, size_px: int) -> None:
    image_BCHW = render(draw_batch(1, torch.arange(12), style=style), size_px, 1, range(12))
    assert image_BCHW.shape == (12, 3, size_px, size_px)
    assert image_BCHW.dtype == torch.uint8
    assert image_BCHW.float().std(dim=(1, 2, 3)).min() > 10
    assert 60 < image_BCHW.float().mean() < 200


@pytest.mark.parametrize("size_px", [8, 15, 1025])
def test_sizes_out_of_range_are_refused(size_px: int) -> None:
    with pytest.raises(UserError, match=r"size_px: must be at (least 16|most 1024)"):
        parse(ScenesSettings, Document("x", {"size_px": size_px}))


@pytest.mark.parametrize("style", ["render", "photo"])
def test_a_scene_is_the_same_image_at_every_size(style: Style) -> None:
    batch = draw_batch(2, torch.arange(32), style=style)
    fine, coarse = (render(batch, size_px, 2, range(32)).float() for size_px in (128, 64))
    assert (torch.nn.functional.avg_pool2d(fine, 2) - coarse).abs().mean() < 2.5


def test_every_object_leaves_a_mark_where_it_stands() -> None:
    scenes = draw_batch(3, range(8), style="render", min_objects=4).to_scenes()
    centres = object_centres(3, torch.arange(8))
    image_BCHW = render(scenes, 64, 3, range(8)).int()
    for row, scene in enumerate(scenes):
        for slot, item in enumerate(scene.objects):
            others = tuple(other for other in scene.objects if other != item)
            change_HW = (render([replace(scene, objects=others)], 64, 3, [row])[0].int() - image_BCHW[row]).abs().sum(0)
            weight_HW = (change_HW > 60).float()
            ticks = (torch.arange(64) + 0.5) / 64
            found = torch.stack([(weight_HW.sum(dim) * ticks).sum() / weight_HW.sum() for dim in (0, 1)])
            assert (found - centres[row, slot + 1]).abs().max() < 0.06


def test_light_changes_shading_and_shadow() -> None:
    scene = one_of(replace(thing("red", "ball", "centre"), size="large"))
    lit = {light: render([replace(scene, light=light)], 64, 0, [0])[0].float() for light in LIGHTS}
    x_px, y_px = (object_centres(0, torch.tensor([0]))[0, 0] * 64).round().int().tolist()
    left_side, right_side = (slice(x_px - 9, x_px - 3), slice(x_px + 3, x_px + 9))
    red = {light: image_CHW[0, y_px - 4 : y_px + 4] for light, image_CHW in lit.items()}
    assert red["left"][:, left_side].mean() > red["left"][:, right_side].mean() + 30
    assert red["right"][:, right_side].mean() > red["right"][:, left_side].mean() + 30
    above, below = (lit[light][0, y_px - 9 : y_px - 3, x_px - 4 : x_px + 4].mean() for light in ("above", "below"))
    assert above > below + 30
    shaded, open_ = (lit[light][:, y_px - 4 : y_px + 4, x_px + 13 : x_px + 15].mean() for light in ("left", "right"))
    assert open_ > shaded + 20


def test_long_captions_state_every_attribute() -> None:
    for scene in SCENES:
        for variant in VARIANTS:
            caption = long_caption(scene, variant)
            for item in scene.objects:
                assert f"{item.size} {item.texture} {item.colour} {item.shape}" in caption
                assert re.search(f"{item.colour} {item.shape} (at|in) the {item.position}", caption)
            assert all(getattr(scene, name) in caption.lower() for name in SCENE_VOCABULARY)
            assert len(caption.split()) <= 90


def test_relations_hold_between_the_rendered_centres() -> None:
    pattern = re.compile(
        r"the (\w+) (\w+) (?:is )?(above|below|to the left of|to the right of) the (\w+) (\w+)[.:]", re.I
    )
    centres = object_centres(0, torch.arange(len(SCENES))).tolist()
    order = ("centre", "top left", "top right", "bottom left", "bottom right")
    checked = set()
    for index, scene in enumerate(SCENES):
        at = {(item.colour, item.shape): centres[index][order.index(item.position)] for item in scene.objects}
        for variant in VARIANTS:
            found = pattern.findall(long_caption(scene, variant))
            assert len(found) == (len(scene.objects) > 1)
            for colour_a, shape_a, relation, colour_b, shape_b in found:
                (x_a, y_a), (x_b, y_b) = at[colour_a, shape_a], at[colour_b, shape_b]
                gap = {
                    "above": y_b - y_a,
                    "below": y_a - y_b,
                    "to the left of": x_b - x_a,
                    "to the right of": x_a - x_b,
                }
                assert gap[relation] > 0.3
                checked.add(relation)
    assert len(checked) == 4


def test_short_captions_name_what_is_there_and_no_more() -> None:
    numbers = {"one": 1, "two": 2}
    unsaid = {"plain", "striped", "dotted", "small", "large", "light", "backdrop", "left", "right", "top", "bottom"}
    for scene in SCENES:
        for variant in VARIANTS:
            caption = short_caption(scene, variant)
            named = set(re.findall(f"({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})", caption))
            assert named <= pairs(scene)
            others = re.search(r"(one|two) (?:other|more) things?", caption)
            assert len(named) + (numbers[others.group(1)] if others else 0) == len(scene.objects)
            assert not unsaid & set(caption.split())


def test_articles_fit() -> None:
    scene = one_of(thing("orange", "star", "top left"), thing("red", "ring", "top right"))
    assert short_caption(scene, 0) == "an orange star and a red ring"
    assert long_caption(scene, 0) == (
        "A render of two objects: a small plain orange star at the top left and a small plain red ring at the top "
        "right. The backdrop is cream above and slate below, and the light comes from the left. The orange star is to "
        "the left of the red ring."
    )


def test_the_vocabulary_holds_every_word_and_no_other() -> None:
    used = {
        word
        for scene in SCENES
        for variant in VARIANTS
        for caption in (long_caption(scene, variant), short_caption(scene, variant))
        for word in re.findall("[a-z]+", caption.lower())
    }
    assert used == vocabulary()
    assert len(vocabulary()) <= 120


def test_objects_are_drawn_from_the_words_given() -> None:
    few = ObjectWords(shape=("ball", "star"), colour=("red", "blue"), size=("large",), texture=("plain",))
    drawn = {split: draw_batch(0, range(200), split, words=dict(few)).to_scenes() for split in ("train", "eval")}
    alone = {split: [scene.objects[0] for scene in of if len(scene.objects) == 1] for split, of in drawn.items()}
    assert {(thing.colour, thing.shape) for thing in alone["train"]} == {("red", "star"), ("blue", "ball")}
    assert {(thing.colour, thing.shape) for thing in alone["eval"]} == {("red", "ball"), ("blue", "star")}
    assert {(thing.size, thing.texture) for of in alone.values() for thing in of} == {("large", "plain")}


def test_scenes_are_drawn_from_the_positions_backgrounds_and_lights_given() -> None:
    words = {"position": ("centre", "top left", "bottom right"), "background": ("cream", "teal"), "light": ("above",)}
    drawn = draw_batch(0, range(300), max_objects=2, words=words).to_scenes()
    assert {thing.position for scene in drawn for thing in scene.objects} == set(words["position"])
    assert {(scene.sky, scene.ground) for scene in drawn} == {("cream", "teal"), ("teal", "cream")}
    assert {scene.light for scene in drawn} == {"above"}
    alone = [scene.objects[0].position for scene in drawn if len(scene.objects) == 1]
    assert all(0.2 < alone.count(position) / len(alone) < 0.47 for position in words["position"])


def test_larger_objects_cover_more_and_are_not_cut() -> None:
    scenes = [one_of(SceneObject("ball", "red", "large", "plain", "centre"))]
    areas = {}
    for scale in (1.0, 1.2):
        image = render(scenes, 128, 0, [3], scale=scale)[0].int()
        areas[scale] = int(((image[0] - image[1]) > 60).sum())  # red, on backgrounds that are not
    assert areas[1.2] / areas[1.0] == pytest.approx(1.2**2, rel=0.03)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"backdrop": {"background": ["cream"]}}, "sky and ground differ, so name two or more"),
        ({"backdrop": {"light": ["left", "left"]}}, "light: .* each once"),
        ({"positions": ["centre"], "max_objects": 2}, "0 corners for max_objects"),
        ({"positions": ["middle"]}, "positions: .*name one or more of centre, top left"),
        ({"object_scale": 1.1}, "would overlap"),
    ],
)
def test_backdrops_positions_and_sizes_that_cannot_be_drawn_are_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(ScenesSettings, Document("data", data))


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({"colour": ["pink"]}, r"colour: \['pink'\]; name one or more of red, orange"),
        ({"shape": []}, "shape: "),
        ({"colour": ["red"], "shape": ["block", "star"]}, "0 held-out pairs, of which the evaluation needs one"),
        ({"colour": ["red"], "shape": ["ball", "star"]}, "1 others, of which training needs 4"),
    ],
)
def test_words_that_no_scene_can_be_drawn_from_are_refused(objects: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(ScenesSettings, Document("data", {"objects": objects}))
