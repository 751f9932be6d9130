"""The one place that compares what was recorded (a hash, a commit, settings) with what is there now."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import Field

from tintype.errors import UserError

Pin = Annotated[str | None, Field(pattern="^[0-9a-f]{8,64}$")]
"""The first digits of an identity; None where any will do."""
_SHA256 = re.compile("[0-9a-f]{64}")
_SHOWN, _SHOWN_DIGITS, _SHOWN_LETTERS = 6, 12, 60


def check_same(
    where: object, what: str, recorded: object, found: object, remedy: str, unless: Callable[[], bool] = lambda: False
) -> None:
    """Raise unless `where` records what is found now; of nested settings every key is compared.

    `unless` is asked where something differs, and says whether that may be.
    """
    there, here = _flat(recorded), _flat(found)
    changes = {key: (there.get(key), here.get(key)) for key in there | here if there.get(key) != here.get(key)}
    if changes and not unless():
        raise another(where, what, changes, remedy)


def check_pin(setting: str, pin: Pin, what: str, identity: str, remedy: str) -> None:
    """Refuse what has another identity than a setting pins. `remedy` is for a user who means to keep the setting."""
    if pin is not None and not identity.startswith(pin):
        way_out = f"{remedy}, or leave {setting.rpartition('.')[2]} out"
        raise another(setting, f"identity of {what}", {"": (pin, identity)}, way_out)


def another(where: object, what: str, changes: Mapping[str, tuple[object, object]], remedy: str) -> UserError:
    """Return the error: what differs, where it was recorded, and what to do."""
    return UserError(f"{where} records another {what} ({in_words(changes)})", remedy)


def in_words(changes: Mapping[str, tuple[object, object]]) -> str:
    """Write both values of each key, the first six; an identity that stands alone has the key ''."""
    texts = [f"{key}: {shown(old)} there, {shown(new)} here" for key, (old, new) in changes.items()]
    return "; ".join(text.removeprefix(": ") for text in texts[:_SHOWN])


def shown(value: object) -> str:
    """Return a value as text, cut where it is long; of a SHA-256 the first digits."""
    text = str(value)
    most = _SHOWN_DIGITS if _SHA256.fullmatch(text) else _SHOWN_LETTERS
    return text if len(text) <= most else f"{text[:most]}…"


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}.{key}".lstrip(".")).items()}
