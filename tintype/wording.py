"""Represent options in messages as data, shown as `--arm muon` on the command line, and as `arm="muon"` in Python.

`option("arm", "muon")` returns text with the name and the value between marks, which fits into any f-string. `rendered`
replaces the marks with the wording of one language. No other code reads or writes these marks.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

Language: TypeAlias = Literal["command", "python"]
_OPEN, _VALUE, _CLOSE, _AGAIN = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
"""Noncharacters: Unicode reserves the marks for internal use of programs, so foreign text does not contain them."""
MARKS = frozenset((_OPEN, _VALUE, _CLOSE, _AGAIN))
_AGAIN_WORDS: dict[Language, str] = {"command": "run the same command", "python": "make the same call"}
_ARGUMENTS = {
    "arm-seed": "seed",
    "import": "import_",
    "license": "license_",
    "list": "list_",
    "plugin": "plugins",
    "set": "settings",
    "technique": "techniques",
}
"""Function arguments whose names differ from the option's name.

All other arguments have the same name as the option, such as `ema_length`.
"""
_POSITIONAL = frozenset(("plugin", "set", "technique"))
"""Options that a function takes by position. In Python, only the values of these options are shown."""
_SAFE = frozenset("@%+=:,./-_…")
"""Characters, besides letters and digits, that have no special meaning in any shell."""
_IN_DOUBLE_QUOTES = frozenset('"$`\\!')
"""Characters that have a special meaning within double quotes of a shell."""


class Option(NamedTuple):
    """An option in a message. `value` is None if the message names the option without a value."""

    name: str
    value: str | None


def option(name: str, value: object = None) -> str:
    """Return an option as data, with its value if there is one: `--arm` or `--arm muon`."""
    shown = "" if value is None else _VALUE + "".join(letter for letter in str(value) if letter not in MARKS)
    return f"{_OPEN}{name}{shown}{_CLOSE}"


def setting(key: str, value: object) -> str:
    """Return a setting as data: `--set "seeds=[0,1]"` or `"seeds=[0,1]"`."""
    return option("set", f"{key}={value}")


def technique(words: str) -> str:
    """Return a technique as data: `--technique muon:lr=1e-3` or `"muon:lr=1e-3"`."""
    return option("technique", words)


def again() -> str:
    """Return "run the same command" or "make the same call"."""
    return _AGAIN


def rendered(text: str, language: Language = "command") -> str:
    """Return a message in the wording of a language, without marks."""
    first, *others = text.replace(_AGAIN, _AGAIN_WORDS[language]).split(_OPEN)
    shown = [first]
    for other in others:
        inside, _, after = other.partition(_CLOSE)
        shown += _shown(_parsed(inside), language), after
    return "".join(letter for letter in "".join(shown) if letter not in MARKS)


def options_in(text: str) -> Iterator[Option]:
    """Yield the options in a message."""
    for other in text.split(_OPEN)[1:]:
        yield _parsed(other.partition(_CLOSE)[0])


def _parsed(inside: str) -> Option:
    name, has_value, value = inside.partition(_VALUE)
    return Option(name, value if has_value else None)


def _shown(one: Option, language: Language) -> str:
    if language == "command":
        return f"--{one.name}" if one.value is None else f"--{one.name} {_in_shell(one.value)}"
    argument = _ARGUMENTS.get(one.name, one.name.replace("-", "_"))
    if one.value is None:
        return f"`{argument}`"
    return _in_python(one.value) if one.name in _POSITIONAL else f"{argument}={_in_python(one.value)}"


def _in_shell(value: str) -> str:
    """Return the value, quoted for a shell if necessary, by double quotes or, as a last resort, by single quotes."""
    if value and all(letter.isalnum() or letter in _SAFE for letter in value):
        return value
    return shlex.quote(value) if _IN_DOUBLE_QUOTES & set(value) else f'"{value}"'


def _in_python(value: str) -> str:
    """Return a number unchanged, and any other value as a string literal."""
    try:
        is_number = math.isfinite(float(value))
    except ValueError:
        is_number = False
    return value if is_number else json.dumps(value, ensure_ascii=False)
