"""Whether pictures show what their captions say, as the scene encoder reads them.

Only what the caption stated is asked, and only what the encoder can see at the picture's size.

B: pictures. P: positions. K: classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from tintype.data.scenes import (
    OBJECT_VOCABULARY,
    POSITIONS,
    SCENE_VOCABULARY,
    CaptionKind,
    Scene,
    SceneObject,
    asked_attributes,
)
from tintype.vision.scene_encoder import SceneReading, visible_attributes


@dataclass(frozen=True)
class _ReadScene:
    """A picture's reading in words: the attributes of each object by its position, and those of the scene."""

    objects: dict[str, dict[str, str]]
    attributes: dict[str, str]


def definition(kind: str) -> str:
    """What the overall score is, in words."""
    asked = {
        "long": "every object's presence, shape, colour, size and texture at its stated place, the number of objects, "
        "both backdrop colours, the light and the style",
        "short": "whether some object has the colour and shape of each one named",
    }
    return (
        f"prompts are {kind} captions of held-out scenes; the scene encoder reads the generated picture, and the score "
        f"is the mean over pictures of the share of stated attributes that are right: {asked[kind]}. Attributes that "
        "the encoder cannot read at this size in real pictures (below 95%) are not asked"
    )


@dataclass(frozen=True)
class Scores:
    """How far pictures show what was asked."""

    by_attribute: dict[str, float]
    """The share of right answers for each attribute asked."""
    per_image: list[float]
    """The share of right answers for each picture of which anything was asked."""

    @property
    def overall(self) -> float:
        return fmean(self.per_image)


def score(reading: SceneReading, scenes: Sequence[Scene], kind: CaptionKind, size_px: int) -> Scores:
    return score_visible(reading, scenes, kind, visible_attributes(size_px))


def score_visible(reading: SceneReading, scenes: Sequence[Scene], kind: CaptionKind, visible: frozenset[str]) -> Scores:
    """`score` with the attributes that can be seen given rather than looked up."""
    if len(reading.feature_BF) != len(scenes):
        raise ValueError(f"{len(reading.feature_BF)} pictures were read but {len(scenes)} scenes are given")
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
            position: {name: words[index[name][row][place]] for name, words in OBJECT_VOCABULARY.items()}
            for place, position in enumerate(POSITIONS)
            if standing[place]
        }
        yield _ReadScene(objects, {name: words[index[name][row]] for name, words in SCENE_VOCABULARY.items()})


def _answers(read: _ReadScene, scene: Scene, kind: CaptionKind, visible: frozenset[str]) -> Iterator[tuple[str, bool]]:
    """(attribute, whether it is right) for everything that was stated and can be seen."""
    for slot, attribute in asked_attributes(scene, kind):
        needed = {"shape", "colour", "presence"} if attribute == "object" else {attribute}
        if not needed <= visible:
            continue
        if slot is None:
            yield attribute, _scene_is_right(read, scene, attribute)
        else:
            yield attribute, _object_is_right(read, scene.objects[slot], attribute)


def _word(stated: Scene | SceneObject, attribute: str) -> str:
    word: str = vars(stated)[attribute]
    return word


def _scene_is_right(read: _ReadScene, scene: Scene, attribute: str) -> bool:
    if attribute == "count":
        return len(read.objects) == len(scene.objects)
    return read.attributes[attribute] == _word(scene, attribute)


def _object_is_right(read: _ReadScene, stated: SceneObject, attribute: str) -> bool:
    if attribute == "object":
        return any((seen["colour"], seen["shape"]) == (stated.colour, stated.shape) for seen in read.objects.values())
    seen = read.objects.get(stated.position)
    if seen is None or attribute == "presence":
        return seen is not None
    return seen[attribute] == _word(stated, attribute)
