"""Signal handlers: a first SIGINT or SIGTERM calls a function, a second one ends the process at once.

`timeout` and job schedulers signal a process and then its group: what comes within a second is the same signal.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

_SAME_SIGNAL_S = 1.0
_STDERR = 2
_SHOW_CURSOR = b"\x1b[?25h"
_ENDED = "ended at once by a second signal; what was saved before is kept, and the same command resumes"
_NOT_BEGUN = "interrupted: nothing was begun; run the same command again"


def handle_signals(first: Callable[[int], None], *numbers: signal.Signals) -> Callable[[], None]:
    """Call `first` with the number of the first signal, by default of SIGINT and SIGTERM. Return what undoes it."""
    first_s: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first_s
        if first_s is None:
            first_s = time.monotonic()
            first(number)
        elif time.monotonic() - first_s > _SAME_SIGNAL_S:
            _end_at_once(number)

    before = {number: signal.signal(number, handle) for number in numbers or (signal.SIGINT, signal.SIGTERM)}

    def undo() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return undo


def ignore_signals() -> None:
    """Ignore signals. While Python shuts down it handles none: they would end a finished command by their default."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def end_with(code: int) -> None:
    """Make a signal end this process at once with `code`: the command is done, and only threads are waited for."""
    handle_signals(lambda number: os._exit(code))


def end_before_work(number: int) -> None:
    """End a command whose code is still being imported, which takes seconds on a busy machine."""
    _end_at_once(number, _NOT_BEGUN)


def _end_at_once(number: int, words: str = _ENDED) -> None:
    """Nothing is unwound, so the cursor that a progress bar hides is shown again here."""
    with suppress(OSError):
        os.write(_STDERR, (_SHOW_CURSOR + b"\n" if os.isatty(_STDERR) else b"") + words.encode() + b"\n")
    os._exit(128 + number)
