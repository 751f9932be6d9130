"""Lines, notes and numbers, all printed alike, and the console that prints them."""

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
"""Colours of verdicts; all others are yellow."""


class EncodedConsole(Console):
    """A console that replaces control characters, and what its encoding lacks, before it measures text.

    So tables stay aligned. Colours and moves of the cursor, which it adds itself, go past the check of
    `runtime.streams`.
    """

    @property
    def file(self) -> IO[str]:
        """Return the stream below all wrappers. A live display wraps the checked stream once more."""
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
"""For all that is no result: stdout stays clean for `--json`. On ranks that do not lead it is quiet."""


def number(value: float | None, form: str = ".4g") -> str:
    return "" if value is None else format(value, form)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print one line, however long, with the text as it is: a path may have brackets or colons in it."""
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False, emoji=False)


def say_note(console: Console, text: str) -> None:
    """Print what the user should know and what stops nothing."""
    say(console, f"note: {text}", "yellow")


def say_chosen(run: Run) -> None:
    """Name the run of an arm that was chosen in the folder of a study."""
    if run.arm:
        say(progress_console, f"arm '{run.arm}', seed {run.plan.seed}: {run.path}")


def start_live(live: Live) -> None:
    """Start a display that is redrawn in place. What other code prints meanwhile appears above it."""
    live.start()
    prepare_streams()  # the streams that it puts in place of stdout and stderr obey escape codes
    live.refresh()


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"note: {record.getMessage()}\n")
        sys.stderr.flush()


def show_notes() -> None:
    """Print every note of the other rooms from now on. A second call changes nothing."""
    if not any(isinstance(handler, _Stderr) for handler in LOGGER.handlers):
        LOGGER.addHandler(_Stderr())
