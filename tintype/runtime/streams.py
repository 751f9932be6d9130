"""Make stdout and stderr safe for foreign text, in any encoding.

Names in a study file, captions, file names and responses of a server may contain terminal escape codes. Escape codes
could hide lines, write new lines, or set the clipboard of a terminal. `prepare_streams` makes escape codes visible in
the output of all code.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import unicodedata
from contextlib import AbstractContextManager, redirect_stdout
from typing import NoReturn, TextIO, cast

from tintype.runtime.printable import visible

PLAIN_LETTERS = "tintype-plain"
"""Name of the error handler that replaces letters missing in an encoding with similar ASCII letters."""
_PLAIN = {
    "→": "->", "←": "<-", "–": "-", "—": "-", "−": "-", "·": "-", "±": "+/-", "×": "x", "…": "...",
    "≥": ">=", "≤": "<=", "≈": "~", "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "•": "*",
}  # fmt: skip
_MOVES = re.compile(r"\n*(?:\x1b\[A)*")
"""Match newlines and cursor-up codes, which progress bars of other libraries use to move the cursor."""


def prepare_streams() -> None:
    """Make stdout and stderr write control characters as codes, and unsupported letters as similar ASCII."""
    os.environ.setdefault("PYTHON_COLORS", "0")  # else a traceback of Python 3.13 colours itself by escape codes
    sys.stdout, sys.stderr = _prepared(sys.stdout), _prepared(sys.stderr)


class VisibleStream:
    """A text stream that writes control characters as codes, without a `buffer`, whose bytes would not be checked."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text. Carriage returns at its start or end stay unchanged, since they come from progress bars."""
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
        """Return the wrapped stream; rich consoles look for it under this attribute's name."""
        return self._stream

    def __getattr__(self, name: str) -> object:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


def _prepared(stream: TextIO) -> TextIO:
    if stream is None or isinstance(stream, VisibleStream):  # None: a process without a terminal may have no stream
        return stream
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=PLAIN_LETTERS)
    return cast(TextIO, VisibleStream(stream))


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


codecs.register_error(PLAIN_LETTERS, _replace)


def _plain(letter: str) -> str:
    """Return similar ASCII (`->` for an arrow, `e` for é, `*` for a spinner's dots), or else the code point."""
    if "\u2800" <= letter <= "\u28ff":
        return "*"
    without_accents = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode("ascii")
    return _PLAIN.get(letter) or without_accents or letter.encode("ascii", "backslashreplace").decode("ascii")


def stdout_to_stderr() -> AbstractContextManager[object]:
    """Redirect the output of a package to stderr, since stdout is for results."""
    return redirect_stdout(sys.stderr)


def end_at_once(code: int) -> NoReturn:
    """End the process without freeing memory, since freeing the memory of a failed GPU may block forever."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
