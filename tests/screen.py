"""A terminal in this process: a pseudo-terminal, and the screen that its bytes draw."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.cells import cell_len
from rich.color import ColorSystem

from tintype.cli.shared import console
from tintype.terminal.lines import progress_console

COLUMNS, ROWS = 100, 24
_CODE = re.compile(r"\x1b\[(\??)([0-9;]*)([a-zA-Z])")
_END = "\x04the end"
"""Written last: a busy machine passes on what was written to a pseudo-terminal only after a while."""
_ENDS_S = 60.0


class Screen:
    """Lines as a terminal shows them. A code that it does not know is an error: it would be a change of the display."""

    def __init__(self) -> None:
        self.lines = [""]
        """All lines since the start, also those that have scrolled off the top."""
        self.drawn: list[str] = []
        """Each line as it was before it was cleared."""
        self.cursor_shown = True
        self._row = self._column = 0

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")

    def feed(self, text: str) -> None:
        """Draw text and obey its codes."""
        while text:
            if code := _CODE.match(text):
                self._obey(*code.groups())
                text = text[code.end() :]
                continue
            self._draw(text[0])
            text = text[1:]

    def _draw(self, letter: str) -> None:
        if letter == "\r":
            self._column = 0
        elif letter == "\n":
            self._row += 1
            self.lines += [""] * (self._row - len(self.lines) + 1)
        else:
            assert letter.isprintable(), f"{letter!r} acts on the terminal"
            if self._column + cell_len(letter) > COLUMNS:
                self._draw("\n")
                self._column = 0
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + letter + line[self._column + 1 :]
            self._column += 1

    def _obey(self, private: str, numbers: str, letter: str) -> None:
        if private:
            assert (numbers, letter) in (("25", "h"), ("25", "l")), f"unknown code {numbers}{letter}"
            self.cursor_shown = letter == "h"
        elif letter == "A":  # up; never above the top of the screen
            self._row = max(self._row - int(numbers or 1), len(self.lines) - ROWS, 0)
        elif letter == "K":
            assert numbers == "2", "the whole line is cleared"
            self.drawn.append(self.lines[self._row].rstrip())
            self.lines[self._row] = ""
        else:
            assert letter == "m", f"unknown code {numbers}{letter}"


class Terminal:
    """Both ends of a pseudo-terminal. What is written to it is drawn on the screen."""

    def __init__(self) -> None:
        self.screen = Screen()
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.stream = os.fdopen(theirs, "w")
        self._received = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def close(self) -> None:
        """Draw the rest of what was written."""
        self.stream.write(_END)
        self.stream.flush()
        self._reader.join(_ENDS_S)
        self.stream.close()
        os.close(self._mine)
        text, end, _ = self._received.decode().partition(_END)
        assert end, "the terminal did not pass on all that was written"
        self.screen.feed(text)

    def _read(self) -> None:
        while _END.encode() not in self._received and select.select([self._mine], [], [], _ENDS_S)[0]:
            self._received += os.read(self._mine, 1 << 16)


@contextmanager
def on_a_terminal(name: str = "xterm-256color", *, stdout: bool = True) -> Iterator[Screen]:
    """Let commands of this process write to a terminal; the screen is drawn once the block has ended."""
    terminal = Terminal()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in {"TERM": name, "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}.items():
                patch.setenv(key, value)
            for one in (console, progress_console):  # which were made when there was no terminal
                patch.setattr(one, "_color_system", ColorSystem.STANDARD)
                patch.setattr(one, "is_interactive", True)
            patch.setattr(sys, "stderr", terminal.stream)
            patch.setattr(sys, "stdout", terminal.stream if stdout else sys.stdout)
            yield terminal.screen
    finally:
        terminal.close()
