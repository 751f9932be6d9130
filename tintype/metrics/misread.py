"""Find the words of a prompt that an image got wrong. As in scene accuracy, the scene encoder reads the image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tintype.data.scenes.scene import SCENE_VOCABULARY, Scene, SceneObject
from tintype.data.scenes.stated import COUNT, OBJECT, Stated, stated_words
from tintype.metrics.scene_accuracy import Asked, ReadScenes, in_indices

ABSENT = "not drawn"


class Misread(NamedTuple):
    """A span of a prompt from `start` to `end` (exclusive), and the difference in the image."""

    start: int
    end: int
    words: str


def misread_words(read: ReadScenes, prompts: Sequence[str]) -> list[list[Misread]]:
    """Return the words of the first prompts that their images got wrong, only for attributes of scene accuracy."""
    drawn = in_indices(read.reading)[: len(prompts)].to("cpu").to_scenes()
    return [
        list(misread(scene, seen, prompt, read.asked))
        for scene, seen, prompt in zip(read.scenes, drawn, prompts, strict=False)
    ]


def misread(scene: Scene, seen: Scene, prompt: str, asked: Asked) -> Iterator[Misread]:
    """Yield the words of a scene's prompt that differ from the encoder's reading of the image."""
    stated_at = {thing.position: thing for thing in scene.objects}
    seen_at = {thing.position: thing for thing in seen.objects}
    short = asked.captions == "short"
    for one in stated_words(scene, prompt, asked.captions):
        if not one.position:
            words = _of_scene(one, scene, seen, asked)
        elif short:
            words = _named(stated_at[one.position], seen) if asked.objects else ""
        else:
            words = _of_object(one, stated_at[one.position], seen_at.get(one.position), asked)
        if words:
            yield Misread(one.start, one.end, words)


def _of_scene(one: Stated, scene: Scene, seen: Scene, asked: Asked) -> str:
    if one.attribute == COUNT:
        counted, wanted = len(seen.objects), len(scene.objects)
        if not asked.objects or counted == wanted:
            return ""
        if asked.captions == "short":
            return f"drawn {counted} objects in all, asked {wanted}"
        return f"drawn {counted}, asked {wanted}"
    return _differs(one.attribute, scene, seen) if one.attribute in asked.of_scene else ""


def _of_object(one: Stated, stated: SceneObject, seen: SceneObject | None, asked: Asked) -> str:
    if seen is None:
        return ABSENT if one.attribute == OBJECT and asked.objects else ""
    return _differs(one.attribute, stated, seen) if one.attribute in asked.of_objects else ""


def _differs(attribute: str, stated: Scene | SceneObject, seen: Scene | SceneObject) -> str:
    wanted, drawn = getattr(stated, attribute), getattr(seen, attribute)
    which = f"{attribute} " if attribute in SCENE_VOCABULARY else ""  # sky and ground have the same words
    return "" if wanted == drawn else f"{which}drawn {drawn}, asked {wanted}"


def _named(stated: SceneObject, seen: Scene) -> str:
    """Return a text that says that an object of a short prompt is missing in the image."""
    pairs = {(thing.colour, thing.shape) for thing in seen.objects}
    return "" if (stated.colour, stated.shape) in pairs else ABSENT
