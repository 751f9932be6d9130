"""Scene accuracy and objects right: whether images show what their captions say, as read by the scene encoder.

Both metrics are scaled. The score 0 means as good as the same images with other images' prompts. The score 1 means as
good as real images of the prompts. So a model that ignores its prompts gets 0, however good its images are. An
attribute counts only if the caption states it, the encoder can read it at the image's size, and it differs between
prompts.

B: images. P: positions. R: positions that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from tintype.data.scenes.captions import SHORT_NAMES_OBJECTS, CaptionKind
from tintype.data.scenes.scene import OBJECT_VOCABULARY, SCENE_VOCABULARY, SHAPES, Scene, SceneBatch
from tintype.metrics.metric import Measured, Metric
from tintype.metrics.resample import mean_with_error
from tintype.vision.scene_encoder import SceneReading, visible_attributes

BACKDROP_WEIGHT = 0.2
"""Weight of background and light in an image's score. Images with only these right score less than this weight."""
SHIFTS = 64
"""Number of other prompts with which each image is compared. If there are fewer other prompts, all are used."""
UNSCALED, SHUFFLED = "share right", "share right, shuffled prompts"
"""Names of two unscaled scores in the breakdown of both metrics, with the own prompts and with shuffled prompts."""


@dataclass(frozen=True)
class Asked:
    """The attributes that count for each image: those stated, readable, and different between scenes."""

    captions: CaptionKind
    objects: bool
    of_objects: tuple[str, ...]
    of_scene: tuple[str, ...]


@dataclass(frozen=True)
class Scores:
    accuracy_B: Tensor
    objects_right_B: Tensor
    by_attribute: dict[str, float]
    """Share of right readings for each attribute. An object not at its position is wrong in all attributes."""


@dataclass(frozen=True)
class ReadScenes:
    """The scene encoder's readings of generated images and of real images, for the same scenes."""

    reading: SceneReading
    real_reading: SceneReading
    scenes: Sequence[Scene]
    captions: CaptionKind
    size_px: int

    @cached_property
    def stated(self) -> SceneBatch:
        for reading in (self.reading, self.real_reading):
            if len(reading.feature_BF) != len(self.scenes):
                raise ValueError(f"{len(reading.feature_BF)} images were read but {len(self.scenes)} scenes are given")
        return SceneBatch.from_scenes(self.scenes)

    @cached_property
    def asked(self) -> Asked:
        return asked_of(self.stated, self.captions, visible_attributes(self.size_px))

    @cached_property
    def own(self) -> Scores:
        return score(in_indices(self.reading), self.stated, self.asked)

    @cached_property
    def real(self) -> Scores:
        return score(in_indices(self.real_reading), self.stated, self.asked)

    @cached_property
    def shuffled(self) -> Scores:
        """Return the scores of the generated images for scenes of other prompts, averaged over the shuffles."""
        return score_shuffled(in_indices(self.reading), self.stated, self.asked)


def in_indices(reading: SceneReading) -> SceneBatch:
    objects = {f"{name}_BP": reading.logits[name].argmax(dim=-1) for name in OBJECT_VOCABULARY}
    scene = {f"{name}_B": reading.logits[name].argmax(dim=-1) for name in SCENE_VOCABULARY}
    return SceneBatch(present_BP=reading.logits["presence"] > 0, **objects, **scene)


def asked_of(stated: SceneBatch, captions: CaptionKind, visible: frozenset[str]) -> Asked:
    """Return the attributes that captions of this kind state, if they are in `visible`."""
    present_BP = stated.present_BP
    differs = {name: _differs(vars(stated)[f"{name}_BP"][present_BP]) for name in OBJECT_VOCABULARY}
    differs |= {name: _differs(vars(stated)[f"{name}_B"]) for name in SCENE_VOCABULARY}
    differs["presence"] = bool((present_BP != present_BP[:1]).any())
    if captions == "short":
        readable = {"presence", "colour", "shape"} <= visible
        asked = Asked(captions, readable and (differs["colour"] or differs["shape"]), (), ())
    else:
        of_objects = tuple(name for name in OBJECT_VOCABULARY if name in visible and differs[name])
        of_scene = tuple(name for name in SCENE_VOCABULARY if name in visible and differs[name])
        objects = "presence" in visible and (differs["presence"] or bool(of_objects))
        asked = Asked(captions, objects, of_objects, of_scene)
    if not asked.objects and not asked.of_scene:
        raise ValueError(
            "no attribute can be scored: the captions state none that is visible and varies between scenes"
        )
    return asked


def _differs(values: Tensor) -> bool:
    return bool((values != values[:1]).any())


def score(read: SceneBatch, stated: SceneBatch, asked: Asked) -> Scores:
    if asked.captions == "short":
        return _score_short(read, stated)
    at_place_BP = read.present_BP & stated.present_BP
    right = {n: at_place_BP & (vars(read)[f"{n}_BP"] == vars(stated)[f"{n}_BP"]) for n in asked.of_objects}
    of_scene = {n: vars(read)[f"{n}_B"] == vars(stated)[f"{n}_B"] for n in asked.of_scene}
    answers = list(right.values()) or [at_place_BP]
    counted_B, stated_B = read.present_BP.sum(1), stated.present_BP.sum(1)
    most_B = counted_B.maximum(stated_B).double()
    objects_B = torch.stack(answers).double().mean(0).sum(1) / most_B
    whole_B = torch.stack(answers).all(0).sum(1) / most_B
    by_attribute = {}
    if asked.objects:
        total = int(stated_B.sum())
        by_attribute = {n: int(one_BP.sum()) / total for n, one_BP in {"presence": at_place_BP, **right}.items()}
        if _differs(stated_B):
            by_attribute["count"] = _mean(counted_B == stated_B)
    by_attribute |= {name: _mean(right_B) for name, right_B in of_scene.items()}
    if not of_scene:
        return Scores(objects_B, whole_B, by_attribute)
    backdrop_B = torch.stack(list(of_scene.values())).double().mean(0)
    weight = BACKDROP_WEIGHT if asked.objects else 1.0
    return Scores(weight * backdrop_B + (1 - weight) * objects_B, whole_B, by_attribute)


def _score_short(read: SceneBatch, stated: SceneBatch) -> Scores:
    """Score short captions: named objects by colour and shape at any position, and other objects by their number."""
    named_BP = stated.present_BP & (stated.present_BP.cumsum(1) <= SHORT_NAMES_OBJECTS)
    same_BPR = _pair(stated)[:, :, None] == _pair(read)[:, None, :]
    found_B = (named_BP & (same_BPR & read.present_BP[:, None, :]).any(2)).sum(1)
    counted_B, stated_B, named_B = read.present_BP.sum(1), stated.present_BP.sum(1), named_BP.sum(1)
    others_B = (stated_B - named_B).minimum(counted_B - found_B)
    most_B = counted_B.maximum(stated_B).double()
    by_attribute = {"object": int(found_B.sum()) / int(named_B.sum())}
    if bool((counts_B := stated_B > named_B).any()):
        by_attribute["count"] = _mean((counted_B == stated_B)[counts_B])
    return Scores((found_B + others_B) / most_B, found_B / most_B, by_attribute)


def _pair(scenes: SceneBatch) -> Tensor:
    return scenes.colour_BP * len(SHAPES) + scenes.shape_BP


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def score_shuffled(read: SceneBatch, stated: SceneBatch, asked: Asked) -> Scores:
    """Score each image on the scenes of other prompts, and return the average score.

    The scenes are shifted, and each shift pairs every scene with one other image. So a model that makes the same image
    for all prompts gets the same score as on its own prompts.
    """
    shifts = range(1, min(SHIFTS, len(stated) - 1) + 1)
    found = [score(read, _shifted(stated, shift), asked) for shift in shifts]
    return Scores(
        torch.stack([one.accuracy_B for one in found]).mean(0),
        torch.stack([one.objects_right_B for one in found]).mean(0),
        {name: sum(one.by_attribute[name] for one in found) / len(found) for name in found[0].by_attribute},
    )


def _shifted(scenes: SceneBatch, shift: int) -> SceneBatch:
    return SceneBatch(*(getattr(scenes, field.name).roll(-shift, 0) for field in fields(scenes)))


def scaled(own_B: Tensor, shuffled_B: Tensor, real_B: Tensor) -> Tensor:
    """Return a number for each image.

    The mean of these numbers is (own - shuffled) / (real - shuffled), where each term is a mean over all images. The
    numbers are the first-order expansion of this ratio in each image's scores. So the standard error of their mean is
    the standard error of the ratio.
    """
    floor, top = shuffled_B.mean(), real_B.mean()
    if not top > floor:
        raise ValueError("no attribute can be scored: real images match their own prompts no better than other prompts")
    value = (own_B.mean() - floor) / (top - floor)
    return value + ((own_B - own_B.mean()) - (1 - value) * (shuffled_B - floor)) / (top - floor)


def _measured(read: ReadScenes, number: Callable[[Scores], Tensor], by_attribute: dict[str, float]) -> Measured:
    own_B, shuffled_B, real_B = map(number, (read.own, read.shuffled, read.real))
    parts = {**by_attribute, UNSCALED: _mean(own_B), SHUFFLED: _mean(shuffled_B)}
    return replace(mean_with_error(scaled(own_B, shuffled_B, real_B)), parts=parts)


_SCALE = (
    "The scale: 0 is what the same images score on the prompts of other images (up to "
    f"{SHIFTS} shuffles), 1 what real images of the prompts score"
)
_ASKED = (
    "What all prompts have in common is not asked, nor what the encoder cannot read at this size in real images (below "
    "95%)"
)
ACCURACY = Metric[ReadScenes](
    name="scene_accuracy",
    label="scene accuracy",
    direction="higher",
    definition="second definition. Prompts are {captions} captions of held-out scenes; the scene encoder reads the "
    f"generated image. Of a long caption, objects are {1 - BACKDROP_WEIGHT:.0%} of an image's score and backdrop "
    "colours, light and style the rest. An object at its place counts with the share of shape, colour, size and "
    "texture that is right, elsewhere not at all; the sum is divided by the number of objects, stated or drawn, "
    "whichever is more. Of a short caption, each object that it names counts if one of its colour and shape is drawn "
    f"anywhere, and each other one that it mentions if as many are drawn. {_SCALE}. {_ASKED}",
    measure=lambda read: _measured(read, lambda scores: scores.accuracy_B, read.own.by_attribute),
    is_primary=True,
    revision=2,
    scale="logit",
    corrected_for_chance=True,
)
OBJECTS_RIGHT = Metric[ReadScenes](
    name="objects_right",
    label="objects right",
    direction="higher",
    definition="objects of the {captions} caption that are entirely right (at their place, with shape, colour, size "
    "and texture as stated), divided by the number of objects, stated or drawn, whichever is more; as the scene "
    f"encoder reads the generated image. {_SCALE}. {_ASKED}",
    measure=lambda read: _measured(read, lambda scores: scores.objects_right_B, {}),
    scale="logit",
    corrected_for_chance=True,
)
