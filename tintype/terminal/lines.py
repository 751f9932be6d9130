"""Functions that print lines and notes in one style, and the console that prints them."""

from __future__ import annotations

import logging
import sys
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tintype.runtime.notes import LOGGER
from tintype.runtime.printable import visible
from tintype.runtime.streams import PLAIN_LETTERS, prepare_streams

if TYPE_CHECKING:
    from tintype.library.runs import Run

VERDICT_STYLE = {
    **dict.fromkeys(("better", "reinforces"), "green"),
    **dict.fromkeys(("worse", "cancels"), "red"),
    **dict.fromkeys(("undecided", "identical"), "dim"),
    "unstable": "magenta",
}
"""Colours of verdicts; all other verdicts are yellow."""


class EncodedConsole(Console):
    """A console that replaces control and unsupported characters before it measures text, to keep tables aligned.

    The console's own escape codes for colours and cursor moves bypass the check of `runtime.streams`.
    """

    @property
    def file(self) -> IO[str]:
        """Return the stream below all wrappers. A live display adds another wrapper to the checked stream."""
        file = super().file
        while (below := getattr(file, "rich_proxied_file", None)) is not None:
            file = below
        return file

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> Text:
        shown = visible(text).encode(self.encoding, PLAIN_LETTERS).decode(self.encoding)
        return super().render_str(shown, **options)


progress_console = EncodedConsole(stderr=True, emoji=False)
"""Console for progress and notes of the first rank, on stderr, so that stdout holds only results."""


def number(value: float | None, form: str = ".4g") -> str:
    return "" if value is None else format(value, form)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print the text on one line, without wrapping or markup, since a path may contain brackets or colons."""
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False, emoji=False)


def say_note(console: Console, text: str) -> None:
    """Print a note: something that the user should know but that does not stop the command."""
    say(console, f"note: {text}", "yellow")


def say_chosen(run: Run) -> None:
    """Print which run of an arm was chosen from the folder of a study."""
    if run.arm:
        say(progress_console, f"arm '{run.arm}', seed {run.plan.seed}: {run.path}")


def start_live(live: Live) -> None:
    """Start a display that is redrawn in the same place. Text that other code prints appears above the display."""
    live.start()
    prepare_streams()  # the display replaces stdout and stderr by streams that interpret escape codes
    live.refresh()


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"note: {record.getMessage()}\n")
        sys.stderr.flush()


def show_notes() -> None:
    """Print, from now on, every note that other packages of tintype log. A second call has no effect."""
    if not any(isinstance(handler, _Stderr) for handler in LOGGER.handlers):
        LOGGER.addHandler(_Stderr())
