"""Scene accuracy: whether images show what their captions say, as the scene encoder reads them.

Only what the caption states is checked, and only what the encoder can read at the image's size.

B: images. P: positions. K: classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from tintype.data.scenes.captions import CaptionKind, asked_attributes
from tintype.data.scenes.scene import OBJECT_VOCABULARY, POSITIONS, SCENE_VOCABULARY, Scene, SceneObject
from tintype.metrics.metric import SHARE, Measured, Metric
from tintype.metrics.resample import mean_with_error
from tintype.vision.scene_encoder import SceneReading, visible_attributes


@dataclass(frozen=True)
class _ReadScene:
    """An image's reading in words: the attributes of each object by its position, and those of the scene."""

    objects: dict[str, dict[str, str]]
    attributes: dict[str, str]


@dataclass(frozen=True)
class Scores:
    """Shares of right answers."""

    by_attribute: dict[str, float]
    """The share of right answers for each attribute checked."""
    per_image: list[float]
    """The share of right answers for each image with anything to check."""

    @property
    def overall(self) -> float:
        return fmean(self.per_image)


@dataclass(frozen=True)
class ReadScenes:
    """A reading of images by the scene encoder, and the scenes whose captions they were made for."""

    reading: SceneReading
    scenes: Sequence[Scene]
    captions: CaptionKind
    size_px: int

    @property
    def scores(self) -> Scores:
        return score_visible(self.reading, self.scenes, self.captions, visible_attributes(self.size_px))


def _measure(read: ReadScenes) -> Measured:
    scores = read.scores
    return replace(mean_with_error(torch.tensor(scores.per_image, dtype=torch.float64)), parts=scores.by_attribute)


METRIC = Metric(
    name="scene_accuracy",
    label="scene accuracy",
    direction="higher",
    definition="prompts are {captions} captions of held-out scenes; the scene encoder reads the generated image, and "
    "the score is the mean over images of the share of stated attributes that are right. A long caption states every "
    "object's presence, shape, colour, size and texture at its place, the number of objects, both backdrop colours, "
    "the light and the style; a short one the colour and shape of each object that it names, wherever it stands. "
    "Attributes that the encoder cannot read at this size in real images (below 95%) are left out",
    measure=_measure,
    range=SHARE,
    is_primary=True,
)


def score_visible(reading: SceneReading, scenes: Sequence[Scene], kind: CaptionKind, visible: frozenset[str]) -> Scores:
    """Score what captions of this kind state of the `visible` attributes."""
    if len(reading.feature_BF) != len(scenes):
        raise ValueError(f"{len(reading.feature_BF)} images were read but {len(scenes)} scenes are given")
    right: dict[str, list[bool]] = {}
    shares: list[float] = []
    for read, scene in zip(_in_words(reading), scenes, strict=True):
        answers = list(_answers(read, scene, kind, visible))
        for attribute, is_right in answers:
            right.setdefault(attribute, []).append(is_right)
        if answers:
            shares.append(fmean(is_right for _, is_right in answers))
    if not shares:
        raise ValueError("there is nothing to score: no caption states anything that can be seen")
    return Scores({name: fmean(answers) for name, answers in right.items()}, shares)


def _in_words(reading: SceneReading) -> Iterator[_ReadScene]:
    present = (reading.logits["presence"] > 0).tolist()
    index = {name: reading.logits[name].argmax(dim=-1).tolist() for name in (*OBJECT_VOCABULARY, *SCENE_VOCABULARY)}
    for row, standing in enumerate(present):
        objects = {
            position: {name: words[index[name][row][slot]] for name, words in OBJECT_VOCABULARY.items()}
            for slot, position in enumerate(POSITIONS)
            if standing[slot]
        }
        yield _ReadScene(objects, {name: words[index[name][row]] for name, words in SCENE_VOCABULARY.items()})


def _answers(read: _ReadScene, scene: Scene, kind: CaptionKind, visible: frozenset[str]) -> Iterator[tuple[str, bool]]:
    """Yield (attribute, whether it is right) for everything that is stated and visible."""
    for slot, attribute in asked_attributes(scene, kind):
        needed = {"shape", "colour", "presence"} if attribute == "object" else {attribute}
        if not needed <= visible:
            continue
        if slot is None:
            yield attribute, _scene_is_right(read, scene, attribute)
        else:
            yield attribute, _object_is_right(read, scene.objects[slot], attribute)


def _scene_is_right(read: _ReadScene, scene: Scene, attribute: str) -> bool:
    if attribute == "count":
        return len(read.objects) == len(scene.objects)
    return read.attributes[attribute] == str(vars(scene)[attribute])


def _object_is_right(read: _ReadScene, stated: SceneObject, attribute: str) -> bool:
    if attribute == "object":
        return any((seen["colour"], seen["shape"]) == (stated.colour, stated.shape) for seen in read.objects.values())
    seen = read.objects.get(stated.position)
    return seen is not None and (attribute == "presence" or seen[attribute] == str(vars(stated)[attribute]))
