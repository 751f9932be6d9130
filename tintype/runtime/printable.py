"""Replace terminal escapes in foreign text with codes such as `\x1b`, and hide passwords."""

from __future__ import annotations

import re

from tintype.runtime.redact import hide_passwords

_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline; C1, which some terminals take for escapes
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible; bidi; new lines
    "\U000e0000-\U000e007f]"  # invisible tags
)
"""Characters that control a terminal. Joiners (U+200C, U+200D) are allowed, since Persian and emoji need them."""


def visible(text: str) -> str:
    """Return the text with control and invisible characters written as codes, and without passwords."""
    return _ACTING.sub(_code, hide_passwords(text))


def acts(text: str) -> bool:
    return _ACTING.search(text) is not None


def _code(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
