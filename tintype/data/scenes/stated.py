"""Find the words of a caption that name an attribute of its scene."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tintype.data.scenes.captions import (
    LIGHT_PHRASES,
    NUMBERS,
    SHORT_NAMES_OBJECTS,
    CaptionKind,
    description,
    object_name,
)
from tintype.data.scenes.scene import OBJECT_VOCABULARY, Scene, SceneObject

OBJECT = "object"
"""Attribute name for colour and shape together, which are an object's name."""
COUNT = "count"


@dataclass(frozen=True)
class Stated:
    """A span of a caption that names one attribute."""

    start: int
    end: int
    attribute: str
    """The attribute, which is a key of the vocabularies, `OBJECT` or `COUNT`."""
    position: str = ""
    """Position of the object; empty for an attribute of the whole scene."""


def stated_words(scene: Scene, caption: str, kind: CaptionKind) -> list[Stated]:
    """Return the spans of a scene's caption that name an attribute, in the order of the text."""
    found = _in_short(scene, caption) if kind == "short" else _in_long(scene, caption)
    return sorted(found, key=lambda one: (one.start, one.end))


def _in_long(scene: Scene, caption: str) -> Iterator[Stated]:
    for thing in scene.objects:
        yield from _of_object(thing, caption)
    for attribute in ("sky", "ground", "style"):
        for match in re.finditer(rf"\b{getattr(scene, attribute)}\b", caption):
            yield Stated(*match.span(), attribute)
    yield from _phrase(caption, LIGHT_PHRASES[scene.light], "light")
    if len(scene.objects) > 1:
        yield from _phrase(caption, f"{NUMBERS[len(scene.objects)]} objects", COUNT)


def _of_object(thing: SceneObject, caption: str) -> Iterator[Stated]:
    """Yield the words of an object's description, and its name. Each object of a scene has a different name."""
    words = description(thing)
    start = caption.find(words)
    if start < 0:
        return
    for attribute in OBJECT_VOCABULARY:
        word = getattr(thing, attribute)
        at = start + re.search(rf"\b{word}\b", words).start()  # type: ignore[union-attr]
        yield Stated(at, at + len(word), attribute, thing.position)
    at = start + words.index(object_name(thing))
    yield Stated(at, at + len(object_name(thing)), OBJECT, thing.position)


def _in_short(scene: Scene, caption: str) -> Iterator[Stated]:
    for thing in scene.objects[:SHORT_NAMES_OBJECTS]:
        yield from _phrase(caption, object_name(thing), OBJECT, thing.position)
    others = len(scene.objects) - SHORT_NAMES_OBJECTS
    if others > 0 and (match := re.search(rf"\b{NUMBERS[others]} (other|more) things?\b", caption)):
        yield Stated(*match.span(), COUNT)


def _phrase(caption: str, words: str, attribute: str, position: str = "") -> Iterator[Stated]:
    if match := re.search(rf"\b{words}\b", caption):
        yield Stated(*match.span(), attribute, position)
