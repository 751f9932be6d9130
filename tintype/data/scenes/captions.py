"""Captions that are exactly true of a scene.

A long caption states every attribute of every object, the backdrop, the light and the style. With two or more objects
it also states a spatial relation of two of them. A short caption names the colour and shape of at most two objects, and
the number of the others.
"""

from __future__ import annotations

import re
from itertools import chain, combinations
from typing import Literal

from tintype.data.scenes.scene import POSITIONS, VOCABULARY, Scene, SceneObject

CaptionKind = Literal["long", "short"]
SHORT_NAMES_OBJECTS = 2

NUMBERS = ("no", "one", "two", "three", "four")
LIGHT_PHRASES = {"left": "from the left", "right": "from the right", "above": "from above", "below": "from below"}
_LONG_ONE = (
    "A {style} of {objects}. The backdrop is {sky} above and {ground} below, and the light comes {light}.",
    "This {style} shows {objects}. The light comes {light}, and the backdrop goes from {sky} at the top to {ground} "
    "at the bottom.",
    "There is {objects} in this {style}. It is lit {light}, with {sky} above and {ground} below.",
    "A {style} with a {sky} and {ground} backdrop, {sky} at the top, lit {light}. There is {objects}.",
)
_LONG_MANY = (
    "A {style} of {count} objects: {objects}. The backdrop is {sky} above and {ground} below, and the light comes "
    "{light}. The {first} is {relation} the {second}.",
    "This {style} shows {objects}. The {first} is {relation} the {second}. The light comes {light}, and the backdrop "
    "goes from {sky} at the top to {ground} at the bottom.",
    "There are {count} objects in this {style}: {objects}. It is lit {light}, with {sky} above and {ground} below. "
    "The {first} is {relation} the {second}.",
    "A {style} with a {sky} and {ground} backdrop, {sky} at the top, lit {light}. There are {count} objects, the "
    "{first} {relation} the {second}: {objects}.",
)
_SHORT = ("{named}", "a picture of {named}", "{named} in a picture", "an image of {named}")
_OTHERS = ("{number} other {things}", "{number} more {things}")


def _with_article(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _joined(phrases: list[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def object_name(thing: SceneObject) -> str:
    """Return the colour and shape, which differ between the objects of a scene."""
    return f"{thing.colour} {thing.shape}"


def description(thing: SceneObject) -> str:
    place = "in the centre" if thing.position == "centre" else f"at the {thing.position}"
    return f"{_with_article(f'{thing.size} {thing.texture} {object_name(thing)}')} {place}"


def relations(first: SceneObject, second: SceneObject) -> tuple[str, ...]:
    """Return every true spatial relation of the first object to the second, whatever the random jitter of positions."""
    first_row, first_column = first.position.split()
    second_row, second_column = second.position.split()
    true = []
    if first_row != second_row:
        true.append("above" if first_row == "top" else "below")
    if first_column != second_column:
        true.append("to the left of" if first_column == "left" else "to the right of")
    return tuple(true)


def _true_statements(scene: Scene) -> list[tuple[str, str, str]]:
    """Return (first, relation, second) for every ordered pair of objects."""
    pairs = chain.from_iterable(((a, b), (b, a)) for a, b in combinations(scene.objects, 2))
    return [(object_name(a), relation, object_name(b)) for a, b in pairs for relation in relations(a, b)]


def long_caption(scene: Scene, variant: int) -> str:
    """Return a long caption. `variant`, 0 or more, chooses the phrasing and the related pair of objects."""
    words = {
        "style": scene.style,
        "objects": _joined([description(thing) for thing in scene.objects]),
        "sky": scene.sky,
        "ground": scene.ground,
        "light": LIGHT_PHRASES[scene.light],
        "count": NUMBERS[len(scene.objects)],
    }
    if len(scene.objects) == 1:
        return _LONG_ONE[variant % len(_LONG_ONE)].format(**words)
    statements = _true_statements(scene)
    first, relation, second = statements[variant // len(_LONG_MANY) % len(statements)]
    phrasing = _LONG_MANY[variant % len(_LONG_MANY)]
    return phrasing.format(**words, first=first, relation=relation, second=second)


def short_caption(scene: Scene, variant: int) -> str:
    """Return the colour and shape of the first two objects, and the number of the others."""
    named = [_with_article(object_name(thing)) for thing in scene.objects[:SHORT_NAMES_OBJECTS]]
    others = len(scene.objects) - len(named)
    if others:
        phrase = _OTHERS[variant // len(_SHORT) % len(_OTHERS)]
        named.append(phrase.format(number=NUMBERS[others], things="thing" if others == 1 else "things"))
    return _SHORT[variant % len(_SHORT)].format(named=_joined(named))


def vocabulary() -> frozenset[str]:
    """Return every lower-case word that a caption can contain."""
    attributes = (*VOCABULARY.values(), POSITIONS, NUMBERS[1:])
    phrasings = (_LONG_ONE, _LONG_MANY, _SHORT, _OTHERS, LIGHT_PHRASES.values())
    fixed = [re.sub(r"\{.*?\}", " ", phrase) for phrase in chain(*phrasings)]
    built = ["a an and at in the thing things", "above below to the left of to the right of"]
    return frozenset(re.findall(r"[a-z]+", " ".join(chain(*attributes, fixed, built)).lower()))
