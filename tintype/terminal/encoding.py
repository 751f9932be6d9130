"""The one way to the terminal: what is printed has no control characters of others, in any encoding.

Text from outside (names in a study file, captions, file names, answers of a server) may hold escape codes, which would
hide lines, write new ones, or set the clipboard. `prepare_streams` makes stdout and stderr write them out, whoever
prints. `EncodedConsole` does so too: what it adds itself (colours, bars) goes past the streams' check.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import unicodedata
from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text

from tintype.runtime.printable import visible

_HANDLER = "tintype-plain"
_PLAIN = {
    "→": "->", "←": "<-", "–": "-", "—": "-", "−": "-", "·": "-", "±": "+/-", "×": "x", "…": "...",
    "≥": ">=", "≤": "<=", "≈": "~", "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "•": "*",
}  # fmt: skip


_MOVES = re.compile(r"\n*(?:\x1b\[A)*")
"""How the progress bars of other libraries go to their line: as a text of its own."""


def prepare_streams() -> None:
    """Make stdout and stderr write control characters as codes, and what their encoding lacks in plain letters."""
    os.environ.setdefault("PYTHON_COLORS", "0")  # else a traceback of Python 3.13 colours itself by escape codes
    sys.stdout, sys.stderr = _prepared(sys.stdout), _prepared(sys.stderr)


class VisibleStream:
    """A text stream that writes control characters as codes. It has no `buffer`, by which one could write past it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; carriage returns at its ends are of progress bars, and stay."""
        if _MOVES.fullmatch(text):
            return self._stream.write(text)
        inner = text.strip("\r")
        before, after = text.partition(inner)[::2] if inner else (text, "")
        self._stream.write(before + visible(inner) + after)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def rich_proxied_file(self) -> TextIO:
        """Return the stream that consoles write to, under the name that they look for."""
        below: TextIO = getattr(self._stream, "rich_proxied_file", self._stream)
        return getattr(below, "rich_proxied_file", below)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


class EncodedConsole(Console):
    """A console that replaces control characters, and what its encoding lacks, before it measures text, so that tables
    stay aligned."""

    def render_str(self, text: str, **options: Any) -> Text:
        shown = visible(text).encode(self.encoding, _HANDLER).decode(self.encoding)
        return super().render_str(shown, **options)


def _prepared(stream: TextIO) -> TextIO:
    if stream is None or isinstance(stream, VisibleStream):  # None: a process without a terminal may have no stream
        return stream
    _set_handler(stream)
    return cast(TextIO, VisibleStream(stream))


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
