"""Resolve relative paths in studies and plans, beside the file that names them, then in the working directory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from tintype.config.strict import assignments_in, marks_of, read_yaml, settings_in
from tintype.settings import KeysOf, NamesFile, Settings

_PLAIN = re.compile(r"[\w./~@+-]+")
"""Matches a path that needs no quotes in an assignment."""


def find_beside(folder: Path, text: str) -> str:
    """Return the absolute path of `text` in `folder`; return `text` unchanged if it refers to the working directory."""
    path = Path(text).expanduser()
    found = folder / path
    if not text or path.is_absolute() or not found.exists() or (path.exists() and path.samefile(found)):
        return text
    return str(found.resolve())


def locate(data: object, classes: Sequence[type[Settings]], folder: Path) -> Any:
    """Resolve the file paths in data of any of these settings classes."""
    if isinstance(data, list):
        return [locate(inner, classes, folder) for inner in data]
    if not isinstance(data, Mapping):
        return data
    return {key: _located(key, inner, classes, folder) for key, inner in data.items()}


def locate_assignments(assignments: Sequence[str], classes: Sequence[type[Settings]], folder: Path) -> tuple[str, ...]:
    """Resolve the file paths in assignments `a.b=value` to settings of any of these classes."""
    return tuple(_located_assignment(assignment, classes, folder) for assignment in assignments)


def locate_options(spec: str, classes: Sequence[type[Settings]], folder: Path) -> str:
    """Resolve the file paths in the values of `name:key=value,key=value`."""
    name, colon, rest = spec.partition(":")
    return name + colon + ",".join(locate_assignments(assignments_in(rest), classes, folder))


def files_named_in(settings: Settings) -> list[str]:
    """Return the files and folders that settings name, also in nested sections, lists and mappings."""
    found: list[str] = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        marks = [mark for mark in marks_of(field) if isinstance(mark, NamesFile)]
        if isinstance(value, str):
            found += [value] if any(not mark.is_word(value) for mark in marks) else []
        several = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else [value]
        found += [path for one in several if isinstance(one, Settings) for path in files_named_in(one)]
    return found


def _located(key: str, value: object, classes: Sequence[type[Settings]], folder: Path) -> object:
    fields = [field for one in classes for name, field in one.model_fields.items() if key in (name, field.alias)]
    marks = [mark for field in fields for mark in marks_of(field) if isinstance(mark, NamesFile)]
    if isinstance(value, str):
        return find_beside(folder, value) if any(not mark.is_word(value) for mark in marks) else value
    if isinstance(value, list) and marks and all(isinstance(one, str) for one in value):
        return [_located(key, one, classes, folder) for one in value]
    inside = [one for field in fields for one in _classes_in(field)]
    return locate(
        value, inside if fields else classes, folder
    )  # an unknown key is a user's name, as in a mapping of sources


def _located_assignment(assignment: str, classes: Sequence[type[Settings]], folder: Path) -> str:
    dotted, equals, text = assignment.partition("=")
    keys = dotted.strip().split(".")
    value = read_yaml(text, dotted).data if equals else None
    nested = value
    for key in reversed(keys):
        nested = {key: nested}
    located: Any = locate(nested, classes, folder)
    for key in keys:
        located = located[key]
    if located == value:
        return assignment
    is_plain = isinstance(located, str) and _PLAIN.fullmatch(located)
    return f"{dotted}={located if is_plain else json.dumps(located, ensure_ascii=False)}"


def _classes_in(field: FieldInfo) -> list[type[Settings]]:
    marked = [one for mark in marks_of(field) if isinstance(mark, KeysOf) for one in mark.classes]
    return [*settings_in(field), *marked]
