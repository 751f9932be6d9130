"""Make stdout and stderr safe to write text from outside to, in any encoding.

Names in a study file, captions, file names and answers of a server may hold escape codes, which would hide lines,
write new ones, or set the clipboard. `prepare_streams` writes them out, whichever code prints.
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
"""The error handler of encoders that replaces what an encoding lacks by ASCII that reads alike."""
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
    """Return ASCII that reads alike: `->` for an arrow, `e` for é, `*` for a spinner's dots, or the code point."""
    if "\u2800" <= letter <= "\u28ff":
        return "*"
    without_accents = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode("ascii")
    return _PLAIN.get(letter) or without_accents or letter.encode("ascii", "backslashreplace").decode("ascii")


def stdout_to_stderr() -> AbstractContextManager[object]:
    """Send to stderr what a package prints: stdout is for results."""
    return redirect_stdout(sys.stderr)


def end_at_once(code: int) -> NoReturn:
    """End the process without freeing anything: what it holds on a GPU that has failed may never be answered for."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
