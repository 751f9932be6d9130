"""Attributes: facts about an image besides its captions, such as a style, a score or a licence.

An attribute has one kind for all records: `text`, `int`, `float` or `bool`. A value may be missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow
from pyarrow import types

from tintype.data.store.texts import LONGEST, is_utf8, shortened
from tintype.errors import UserError
from tintype.wording import option

Kind = Literal["text", "int", "float", "bool"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Value = str | int | float | bool | None
RESERVED = ("image", "width", "height", "source", "sha256", "pixels", "split")
_NAME = re.compile(r"[^\[\]:\s](?:[^\[\]:]{0,62}[^\[\]:\s])?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INT64 = 1 << 63
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}
_SHOWN = 40
_KINDS_OF_JSON = {bool: "bool", str: "text", int: "int", float: "float", list: "list", dict: "object"}
ARROW_TYPES: dict[Kind, str] = {"text": "string", "int": "int64", "float": "float64", "bool": "bool"}


@dataclass(frozen=True)
class Attribute:
    """The column of an attribute. If `kind` is None, the source determines it."""

    column: str
    kind: Kind | None = None


@dataclass(frozen=True)
class Settled:
    column: str
    kind: Kind


class MisfitError(Exception):
    """A value that cannot be converted to its kind; the message shows the value."""


def read_attributes(pairs: Mapping[str, str]) -> dict[str, Attribute]:
    """Parse the `COLUMN` or `COLUMN:KIND` given for each attribute."""
    found = {}
    for name, asked in pairs.items():
        column, _, last = asked.rpartition(":")
        kind = next((kind for kind in KINDS if kind == last and column), None)
        found[name] = Attribute(asked) if kind is None else Attribute(column, kind)
    return found


def check_names(names: Iterable[str], captions: Collection[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name) or not name.isprintable():
            raise UserError(
                f"{option('attribute', name)} is not a valid name of an attribute",
                "use at most 64 characters without '[', ']' and ':', and no space at the beginning or end",
            )
        if name in RESERVED:
            raise UserError(
                f"{option('attribute', name)}: every store has a column with this name", "choose another name"
            )
        if name in captions:
            raise UserError(
                f"{option('attribute', name)}: a caption column has this name too",
                "choose another name for one of the two",
            )


def settle(name: str, asked: Attribute, seen: Collection[str]) -> Settled:
    """Return the requested kind, else the kind of the values. A mix of int and float is float."""
    kinds = {"float"} if set(seen) == {"int", "float"} else set(seen)
    only = next((kind for kind in KINDS if kinds == {kind}), None)
    if kind := asked.kind or only:
        return Settled(asked.column, kind)
    holds = f"holds {' and '.join(sorted(kinds))}" if kinds else "holds no value from which its kind could be inferred"
    raise UserError(
        f"{option('attribute', f'{name}={asked.column}')}: this column {holds}",
        "declare its kind: "
        f"{', '.join(f'{name}={asked.column}:{kind}' for kind in KINDS)}. Records with a value of another kind "
        f"are rejected",
    )


def kinds_in(rows: Iterable[Mapping[str, object]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        add_kinds(found, row)
    return found


def add_kinds(found: dict[str, set[str]], row: Mapping[str, object]) -> None:
    for column, value in row.items():
        kinds = found.setdefault(column, set())
        if value is not None:
            kinds.add(_KINDS_OF_JSON[type(value)])


def fit(value: object, kind: Kind) -> Value:
    """Convert a value to a kind. Empty texts and NaN count as missing, since formats without null use them for null."""
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    found = _FITTED[kind](value)
    if found is None:
        raise MisfitError(repr(shortened(str(value), _SHOWN)))
    return found


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if not isinstance(value, str) or len(value) > LONGEST:
        return None
    return value if is_utf8(value) else None


def _int(value: object) -> int | None:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -_INT64 <= value < _INT64:
        return None
    return value


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    lost = isinstance(value, int) and int(found) != value if math.isfinite(found) else True
    return None if lost else found + 0.0  # turns -0.0 into 0.0


def _bool(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return _TRUTHS.get(value.lower() if isinstance(value, str) else repr(value))


_FITTED: dict[Kind, Callable[[object], Value]] = {"text": _text, "int": _int, "float": _float, "bool": _bool}


def kind_of_arrow(kind: pyarrow.DataType) -> Kind | None:
    """Return the kind of a table's column, or None if the column cannot be an attribute."""
    kind = plain_type(kind)
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_integer(kind):
        return "int"
    if types.is_floating(kind):
        return "float"
    return "bool" if types.is_boolean(kind) else None


def plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type of the values, without dictionary encoding."""
    return kind.value_type if types.is_dictionary(kind) else kind
