"""Install signal handlers, so that the first SIGINT or SIGTERM calls a function and a second signal ends the process.

`timeout` and job schedulers send a signal first to a process and then to its process group. So several signals within
one second count as one signal.

Python lets only the main thread set handlers. In another thread, for example in a notebook or a server, the functions
of this module do nothing.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SAME_SIGNAL_S = 1.0
_STDERR = 2
_SHOW_CURSOR = b"\x1b[?25h"
_ENDED = "ended at once by a second signal; what was saved before is kept, and the same command resumes"
_NOT_BEGUN = "interrupted: nothing was begun; run the same command again"


def handle_signals(first: Callable[[int], None], *numbers: signal.Signals) -> Callable[[], None]:
    """Call `first` with the number of the first signal of `numbers`, by default SIGINT and SIGTERM.

    Return a function that restores the previous handlers. Outside of the main thread, this function does nothing.
    """
    if not _is_main_thread():
        return lambda: None
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


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal here and in processes started inside the context. Only the main thread can do so."""
    if not _is_main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def ignore_signals() -> None:
    """Ignore signals during shutdown, where the default handlers would end a finished command with an error."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def end_with(code: int) -> None:
    """Make a signal end this process immediately with `code`, when the command only waits for its threads."""
    handle_signals(lambda number: os._exit(code))


def end_before_work(number: int) -> None:
    """End a command immediately on a signal during its imports, which take seconds on a busy machine."""
    _end_at_once(number, _NOT_BEGUN)


def _end_at_once(number: int, words: str = _ENDED) -> None:
    """End the process without unwinding. Show the cursor again, since a progress bar may have hidden it."""
    with suppress(OSError):
        os.write(_STDERR, (_SHOW_CURSOR + b"\n" if os.isatty(_STDERR) else b"") + words.encode() + b"\n")
    os._exit(128 + number)
