"""Markdown pieces of generated pages, and settings in words."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Sequence
from inspect import cleandoc, getmodule
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tintype.config.strict import settings_in
from tintype.settings import Settings, plain

_SIMPLE = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def cell(text: str) -> str:
    """Return text for a cell of a table: on one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table whose cells stand below each other on a narrow screen."""
    yield f":::{{container}} stacked{' settings' if head[1] == 'default' else ''}"
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell(text) for text in row)} |"
    yield ":::\n"


def code(text: str) -> str:
    """Return text as inline code, even if it contains backticks."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def sentence(text: str) -> str:
    """Return text that begins with a capital and ends with a full stop."""
    text = " ".join(text.split())
    return (text[:1].upper() + text[1:]).rstrip(".") + "." if text else ""


def class_words(settings: type[Settings]) -> str:
    """Return the docstring of settings; if they have none, the first sentence of their module's."""
    own = settings.__dict__.get("__doc__")
    if own:
        return cleandoc(own)
    module = cleandoc(getattr(getmodule(settings), "__doc__", None) or "")
    return " ".join(module.split("\n\n")[0].split())


def default_words(field: FieldInfo) -> str:
    """Return the default as a user would write it; parts are named by their kind."""
    if field.default_factory is not None:
        value = field.get_default(call_default_factory=True)
    elif field.default is PydanticUndefined:
        return "required"
    else:
        value = field.default
    if isinstance(value, Settings):
        kind = getattr(value, "kind", None)
        return "its defaults" if kind is None else code(str(kind))
    text = json.dumps(_data(value), ensure_ascii=False)
    return code(text.strip('"') if text != '""' else text)


def _data(value: object) -> object:
    if isinstance(value, Settings):
        return plain(value)
    if isinstance(value, tuple | list):
        return [_data(one) for one in value]
    return value


def type_words(field: FieldInfo) -> str:
    """Return what values a setting takes, with its bounds."""
    found = _type_words(field.annotation)
    if "dictionary" not in found and "settings" not in found:
        found += _bounds(field.metadata)
    return found


def _bounds(marks: Iterable[Any]) -> str:
    """Return the bounds among the marks of a type."""
    limits = [
        f"{words} {getattr(mark, name):,}"
        for mark in marks
        for name, words in _BOUNDS.items()
        if isinstance(getattr(mark, name, None), int | float)
    ]
    return f", {' and '.join(limits)}" if limits else ""


def _type_words(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_words(inside[0]) + _bounds(inside[1:])
    if origin is Literal:
        return "one of " + ", ".join(code(str(one)) for one in inside)
    if origin in (Union, types.UnionType):
        words = [_type_words(one) for one in inside if one is not type(None)]
        return " or ".join(dict.fromkeys([*words, *(["null"] if type(None) in inside else [])]))
    if origin in (tuple, list):
        return f"a list ({_type_words(inside[0])})" if inside else "a list"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return "settings"
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    return "a dictionary" if origin is not None else "a value"


def kinds_of(field: FieldInfo) -> dict[str, type[Settings]]:
    """Return the settings that a field may hold, by kind; '' for settings without a kind."""
    classes = dict.fromkeys(settings_in(field))
    return {_kind(one): one for one in classes}


def _kind(settings: type[Settings]) -> str:
    """Return the kind of settings with a single kind; otherwise ''."""
    kind = settings.model_fields.get("kind")
    return str(kind.default) if kind is not None and len(get_args(kind.annotation)) == 1 else ""
