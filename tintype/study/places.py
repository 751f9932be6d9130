"""Results as they may be passed on: of a place on this machine the last name is left, in settings as in free text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from tintype.config.strict import read_yaml, write_yaml
from tintype.study.results import Results

_PLAN = "plan"
"""The key of the plans, which are YAML: long lines are broken there, and a path may be on two."""
_HOME = r"~[\w.-]*/"
_WHOLE = re.compile(rf"(?:{_HOME}|/[^/\n]+/)[^/\n]*(?:/[^/\n]*)*")
"""A setting that is a path; it may have spaces."""
_LETTER = r"[^\s/'\"`,;:()\[\]{}]"
_WITHIN = rf"(?<![\w/:.~<>-])(?:{_HOME}|/{_LETTER}+/){_LETTER}*(?:/{_LETTER}*)*"
"""A path in a text: from someone's home, or of two names at least, or it could be a mere stroke."""


def without_places(results: Results) -> Results:
    content = results.model_dump()
    names: dict[str, str] = {}
    for path in _paths(content):
        _name(path, names)
    known = "|".join(re.escape(path) + r"(?![\w.-])" for path in sorted(names, key=len, reverse=True))
    places = re.compile(f"{known}|{_WITHIN}" if known else _WITHIN)
    return Results.model_validate(_shown(content, lambda text: places.sub(lambda found: _name(found[0], names), text)))


def _paths(value: Any, key: str = "") -> Iterator[str]:
    """The strings that are paths as a whole."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _paths(inner, name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _paths(inner, key)
    elif isinstance(value, str):
        if key == _PLAN and "\n" in value:
            yield from _paths(read_yaml(value, "the plan").data)
        elif _WHOLE.fullmatch(value):
            yield value


def _name(path: str, names: dict[str, str]) -> str:
    """The last name of a path. Two places of one name stay two."""
    if path not in names:
        last, taken = PurePosixPath(path).name, set(names.values())
        numbered = (f"{last}-{number}" for number in range(2, len(taken) + 3))
        names[path] = last if last not in taken else next(one for one in numbered if one not in taken)
    return names[path]


def _shown(value: Any, shorten: Callable[[str], str], key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _shown(inner, shorten, name) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(inner, shorten, key) for inner in value]
    if not isinstance(value, str):
        return value
    if key == _PLAN and "\n" in value:
        return write_yaml(_shown(read_yaml(value, "the plan").data, shorten))
    return shorten(value)
