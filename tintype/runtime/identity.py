"""Compare recorded hashes, commits and settings with the current ones. All comparisons of this kind use this module."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import Field

from tintype.errors import UserError

Pin = Annotated[str | None, Field(pattern="^[0-9a-f]{8,64}$")]
"""The first hexadecimal digits that an identity must have; None accepts any identity."""
_SHA256 = re.compile("[0-9a-f]{64}")
_SHOWN, _SHOWN_DIGITS, _SHOWN_LETTERS = 6, 12, 60


def check_same(
    where: object, what: str, recorded: object, found: object, remedy: str, unless: Callable[[], bool] = lambda: False
) -> None:
    """Raise unless the value recorded in `where` equals the current value. Nested settings are compared key by key.

    If a value differs, `unless` is called; the difference is accepted if `unless` returns True.
    """
    there, here = _flat(recorded), _flat(found)
    changes = {key: (there.get(key), here.get(key)) for key in there | here if there.get(key) != here.get(key)}
    if changes and not unless():
        raise another(where, what, changes, remedy)


def check_pin(setting: str, pin: Pin, what: str, identity: str, remedy: str) -> None:
    """Raise if an identity differs from a setting's pin. `remedy` is a fix that does not change the pin."""
    if pin is not None and not identity.startswith(pin):
        way_out = f"{remedy}, or leave {setting.rpartition('.')[2]} out"
        raise another(setting, f"identity of {what}", {"": (pin, identity)}, way_out)


def another(where: object, what: str, changes: Mapping[str, tuple[object, object]], remedy: str) -> UserError:
    return UserError(f"{where} records another {what} ({in_words(changes)})", remedy)


def in_words(changes: Mapping[str, tuple[object, object]]) -> str:
    """Describe the first six differences, each with key and both values. A single value has the key ''."""
    texts = [f"{key}: {shown(old)} there, {shown(new)} here" for key, (old, new) in changes.items()]
    return "; ".join(text.removeprefix(": ") for text in texts[:_SHOWN])


def shown(value: object) -> str:
    """Return a value as text of at most 60 characters. A SHA-256 is shortened to 12 digits."""
    text = str(value)
    most = _SHOWN_DIGITS if _SHA256.fullmatch(text) else _SHOWN_LETTERS
    return text if len(text) <= most else f"{text[:most]}…"


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}.{key}".lstrip(".")).items()}
