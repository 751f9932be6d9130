"""Text on terminals and pipes that are not UTF-8."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

_HANDLER = "tintype-plain"
_PLAIN = {
    "→": "->", "←": "<-", "–": "-", "—": "-", "−": "-", "·": "-", "±": "+/-", "×": "x", "…": "...",
    "≥": ">=", "≤": "<=", "≈": "~", "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "•": "*",
}  # fmt: skip


def print_on_any_encoding() -> None:
    """Make stdout and stderr write what their encoding lacks in plain letters, where they would raise."""
    for stream in (sys.stdout, sys.stderr):
        _set_handler(stream)


class EncodedConsole(Console):
    """A console that replaces what its encoding lacks before it measures text, so that tables stay aligned."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(text.encode(self.encoding, _HANDLER).decode(self.encoding), **options)


def _set_handler(stream: TextIO | None) -> None:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_HANDLER)


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


codecs.register_error(_HANDLER, _replace)


def _plain(letter: str) -> str:
    """Return ASCII that reads alike: `->` for an arrow, `e` for é, `*` for a spinner's dots, or the code point."""
    if "\u2800" <= letter <= "\u28ff":
        return "*"
    without_accents = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode("ascii")
    return _PLAIN.get(letter) or without_accents or letter.encode("ascii", "backslashreplace").decode("ascii")
