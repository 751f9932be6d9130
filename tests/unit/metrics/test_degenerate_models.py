"""What models without merit score in scene accuracy and objects right: the table of docs/metrics.md.

Each model is a function from the scenes of the prompts to the scenes that it draws. Its images are read by the scene
encoder, or, with more prompts, by a reader that makes no mistakes. The bounds hold for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn.functional import one_hot

from tintype.data.scenes.render import render
from tintype.data.scenes.scene import OBJECT_VOCABULARY, SCENE_VOCABULARY, SceneBatch, draw_batch
from tintype.metrics.scene_accuracy import BACKDROP_WEIGHT, ReadScenes, asked_of, scaled, score
from tintype.vision.scene_encoder import SceneReading, scene_features, visible_attributes


@dataclass(frozen=True)
class Recipe:
    size_px: int
    most_objects: int

    def draw(self, count: int, seed: int = 0) -> SceneBatch:
        """Draw held-out scenes; another seed draws scenes that have nothing to do with those of the first."""
        return draw_batch(seed, torch.arange(count), "eval", "render", 1, self.most_objects)


DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
RECIPES = {"pocket": Recipe(16, 1), "mini": Recipe(64, 4)}
Model = Callable[[SceneBatch, Recipe], SceneBatch]
Reader = Callable[[SceneBatch, Recipe], SceneReading]
OBJECTS = ("present_BP", *(f"{name}_BP" for name in OBJECT_VOCABULARY))


def perfect(stated: SceneBatch, recipe: Recipe) -> SceneBatch:
    return stated


def ignores_the_prompt(stated: SceneBatch, recipe: Recipe) -> SceneBatch:
    return recipe.draw(len(stated), seed=1)


def best_fixed_image(stated: SceneBatch, recipe: Recipe) -> SceneBatch:
    """The image of 64 that scores best without a floor."""
    asked = asked_of(stated, "long", visible_attributes(recipe.size_px))
    tried = [repeated(stated, row) for row in range(min(64, len(stated)))]
    return max(tried, key=lambda fixed: float(score(fixed, stated, asked).accuracy_B.mean()))


def repeated(scenes: SceneBatch, row: int) -> SceneBatch:
    at = [getattr(scenes, field.name) for field in fields(scenes)]
    return SceneBatch(*(value[row : row + 1].expand_as(value) for value in at))


def backdrop_only(stated: SceneBatch, recipe: Recipe) -> SceneBatch:
    return replace(stated, present_BP=torch.zeros_like(stated.present_BP))


def objects_of_another(stated: SceneBatch, recipe: Recipe) -> SceneBatch:
    other = recipe.draw(len(stated), seed=1)
    return replace(stated, **{name: getattr(other, name) for name in OBJECTS})


def places_only(stated: SceneBatch, recipe: Recipe) -> SceneBatch:
    return replace(objects_of_another(stated, recipe), present_BP=stated.present_BP)


def colours_swapped(stated: SceneBatch, recipe: Recipe) -> SceneBatch:
    """Each object of a scene has the colour of the next one."""
    colour_BP = stated.colour_BP.clone()
    for colour_P, present_P in zip(colour_BP, stated.present_BP, strict=True):
        colour_P[present_P] = colour_P[present_P].roll(1)
    return replace(stated, colour_BP=colour_BP)


def extra_objects(stated: SceneBatch, recipe: Recipe) -> SceneBatch:
    """Right, and another object in each corner that is free."""
    other, present_BP = recipe.draw(len(stated), seed=1), stated.present_BP
    at = {name: torch.where(present_BP, getattr(stated, name), getattr(other, name)) for name in OBJECTS[1:]}
    everywhere_BP = present_BP.clone()
    everywhere_BP[:, 1:] = True
    return replace(stated, present_BP=everywhere_BP, **at)


def half_right(stated: SceneBatch, recipe: Recipe) -> SceneBatch:
    """Every second image is right and the others are of other prompts."""
    other, half = recipe.draw(len(stated), seed=1), torch.arange(len(stated)) % 2 == 0
    pairs = [(getattr(stated, field.name), getattr(other, field.name)) for field in fields(stated)]
    return SceneBatch(*(torch.where(half.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs))


def by_attributes(scenes: SceneBatch, recipe: Recipe) -> SceneReading:
    """The reading of a reader that is sure and right."""
    logits = {"presence": scenes.present_BP.float() * 2 - 1}
    logits |= {n: one_hot(vars(scenes)[f"{n}_BP"], len(words)).float() for n, words in OBJECT_VOCABULARY.items()}
    logits |= {n: one_hot(vars(scenes)[f"{n}_B"], len(words)).float() for n, words in SCENE_VOCABULARY.items()}
    return SceneReading(torch.zeros(len(scenes), 1), logits)


def by_the_encoder(scenes: SceneBatch, recipe: Recipe) -> SceneReading:
    images = render(scenes, recipe.size_px, 0, torch.arange(len(scenes)))
    return scene_features(torch.device("cpu")).read(images)


@cache
def scores(model: Model, recipe: str, reader: Reader = by_attributes, count: int = 2048) -> tuple[float, float]:
    """Return scene accuracy and objects right."""
    read, stated = found(model, recipe, reader, count), RECIPES[recipe].draw(count).to_scenes()
    both = ReadScenes(read, found(perfect, recipe, reader, count), stated, "long", RECIPES[recipe].size_px)
    own, shuffled, real = both.own, both.shuffled, both.real
    accuracy_B = scaled(own.accuracy_B, shuffled.accuracy_B, real.accuracy_B)
    right_B = scaled(own.objects_right_B, shuffled.objects_right_B, real.objects_right_B)
    return float(accuracy_B.mean()), float(right_B.mean())


@cache
def found(model: Model, recipe: str, reader: Reader, count: int) -> SceneReading:
    return reader(model(RECIPES[recipe].draw(count), RECIPES[recipe]), RECIPES[recipe])


ROWS: dict[str, Model] = {
    "perfect": perfect,
    "perfect, but the prompt is ignored": ignores_the_prompt,
    "the best fixed image": best_fixed_image,
    "right backdrop and light, no object": backdrop_only,
    "right backdrop, another scene's objects": objects_of_another,
    "right backdrop and places, random objects": places_only,
    "colours swapped between objects": colours_swapped,
    "right, and further objects in all corners": extra_objects,
    "every second image right, the others ignore the prompt": half_right,
}


def test_the_table_of_the_docs_is_what_is_measured() -> None:
    lines = DOCS.read_text().splitlines()
    rows = {cells[0]: cells[1:] for line in lines if (cells := line.strip("| ").split(" | "))[0] in ROWS}
    assert list(rows) == list(ROWS)
    for label, cells in rows.items():
        pairs = zip(*(scores(ROWS[label], recipe) for recipe in RECIPES), strict=True)
        for cell, value in zip(cells, (value for pair in pairs for value in pair), strict=True):
            stated = cell.split(" ")[0]
            assert stated == "–" or float(stated) == pytest.approx(value, abs=0.006), label


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", [ignores_the_prompt, best_fixed_image])
def test_what_no_prompt_decides_scores_nothing(model: Model, recipe: str) -> None:
    assert scores(model, recipe) == pytest.approx((0, 0), abs=0.02)


@pytest.mark.parametrize("recipe", RECIPES)
def test_perfect_images_score_one_and_half_of_them_half(recipe: str) -> None:
    assert scores(perfect, recipe) == pytest.approx((1, 1), abs=1e-9)
    assert scores(half_right, recipe) == pytest.approx((0.5, 0.5), abs=0.02)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_backdrop_scores_less_than_its_weight(recipe: str) -> None:
    accuracy, right = scores(backdrop_only, recipe)
    assert 0.1 < accuracy < BACKDROP_WEIGHT and right == pytest.approx(0, abs=0.02)
    assert scores(objects_of_another, recipe) == pytest.approx((accuracy, 0), abs=0.03)


@pytest.mark.parametrize("recipe", RECIPES)
def test_places_without_their_objects_score_little(recipe: str) -> None:
    accuracy, right = scores(places_only, recipe)
    assert scores(backdrop_only, recipe)[0] < accuracy < 0.4 and right == pytest.approx(0, abs=0.02)


def test_colours_on_the_wrong_objects_cost() -> None:
    """Three scenes in four have several objects: an attribute of four is wrong in most, and few objects are right."""
    accuracy, right = scores(colours_swapped, "mini")
    assert accuracy < 0.85 and right < 0.4


@pytest.mark.parametrize("recipe", RECIPES)
def test_objects_that_no_prompt_states_cost(recipe: str) -> None:
    accuracy, right = scores(extra_objects, recipe)
    assert accuracy < 0.75 and right < 0.65


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", [ignores_the_prompt, backdrop_only, places_only, extra_objects])
def test_images_that_the_encoder_reads_score_the_same(model: Model, recipe: str) -> None:
    """Of real images the encoder reads every attribute that is asked right in 95 of 100, so the scores are as near."""
    by_encoder = scores(model, recipe, by_the_encoder, 96)
    assert by_encoder == pytest.approx(scores(model, recipe, by_attributes, 96), abs=0.05)
