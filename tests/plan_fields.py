"""Walks the settings of plans and studies: each field with its place in a document."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args, get_origin

from tintype.config.strict import settings_in
from tintype.settings import Settings

Place = tuple[str | int, ...]
Field = tuple[Place, dict[Place, str], type[Settings]]
"""Its path, the kinds that must stand above it, and its settings' class."""
NAMED = "a"
"""A key that the user chooses, where settings stand in a dictionary."""


def fields(model: type[Settings]) -> Iterator[Field]:
    """Each key of a document of settings."""
    seen: set[tuple[Place, type[Settings]]] = set()

    def walk(one: type[Settings], path: Place, kinds: dict[Place, str]) -> Iterator[Field]:
        if (path, one) in seen or len(path) > 8:
            return
        seen.add((path, one))
        if "kind" in one.model_fields and isinstance(one.model_fields["kind"].default, str):
            kinds = {**kinds, (*path, "kind"): one.model_fields["kind"].default}
        for name, field in one.model_fields.items():
            key = field.alias or name
            yield (*path, key), kinds, one
            for inner in settings_in(field):
                yield from walk(inner, (*path, key, *_inside(field.annotation)), kinds)

    yield from walk(model, (), {})


def _inside(annotation: Any) -> Place:
    """Step from a key to the settings below it: an index of a list, or a key of a dictionary."""
    origin = get_origin(annotation)
    if origin in (tuple, list):
        return (0,)
    if origin is dict or (isinstance(origin, type) and issubclass(origin, dict)) or "Mapping" in str(origin):
        return (NAMED,)
    return next((found for one in get_args(annotation) if _has_settings(one) and (found := _inside(one))), ())


def _has_settings(annotation: Any) -> bool:
    """Of `tuple[int, ...] | SeedPlan`, only the second has settings."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return True
    return any(_has_settings(one) for one in get_args(annotation))


def document(path: Place, kinds: dict[Place, str], value: Any) -> Any:
    """A document with a value at a path, and the kinds above it."""
    top: dict[str, Any] = {}
    for keys, one in [*kinds.items(), (path, value)]:
        node: Any = top
        for key, following in pairwise(keys):
            if isinstance(key, int):
                while len(node) <= key:
                    node.append({})
                node = node[key]
            else:
                node = node.setdefault(key, [] if isinstance(following, int) else {})
        node[keys[-1]] = one
    return top
