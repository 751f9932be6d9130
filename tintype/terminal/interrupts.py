"""Interrupts: a command says in one line what is saved and how to resume; its exit code is 130 (SIGINT) or 143.

Until a command begins to work it has nothing to save, and imports for seconds: a signal ends it at once, since an
exception that is raised within an import may be lost or become another. From then on a signal raises `Interrupted`, or
sets a flag where a loop watches for it (`tintype.runtime.interrupt`).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from tintype.runtime.printable import visible
from tintype.runtime.signals import end_before_work
from tintype.terminal.lines import progress_console

_LATER_S = 0.02
NOTHING_HARMED = "no file is left half written; run the same command again"


class Interrupted(BaseException):
    """Raised by a signal. `kept` says what is saved and how to resume, where the command knows."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.kept: str | None = None


class _State:
    """State of the one command of this process."""

    begun = False
    signal: int | None = None
    """The number of the signal for which `Interrupted` was raised."""
    words = ""
    """Sentence with which it ended."""
    hook: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
    """Handler that was there before."""


def begin_command() -> None:
    """Reset the state of an earlier command in this process; catch lost exceptions of signals."""
    _State.begun, _State.signal, _State.words = False, None, ""
    if sys.unraisablehook is not _raise_again:
        _State.hook, sys.unraisablehook = sys.unraisablehook, _raise_again


def begin_work() -> None:
    """From here on, pass a signal to the command, which may have something to save."""
    _State.begun = True


def came() -> int | None:
    """Return the number of the signal that was raised as `Interrupted`, if one was."""
    return _State.signal


def last_words() -> str:
    """Return what an interrupted command has said at its end; empty where it said nothing."""
    return _State.words


def interrupt_command(number: int) -> None:
    """Handle a command's first signal."""
    if not _State.begun:
        end_before_work(number)
        return
    _State.signal = number
    raise Interrupted(number)


def _raise_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise `Interrupted` once more, a little later, where Python could not: within a destructor, or a callback."""
    if isinstance(lost.exc_value, Interrupted):
        number = lost.exc_value.number
        signal.signal(signal.SIGALRM, lambda *_: interrupt_command(number))
        signal.setitimer(signal.ITIMER_REAL, _LATER_S)
    else:
        _State.hook(lost)


def leave_training(number: int | None, step: int) -> NoReturn:
    """End a command that was stopped while it trained."""
    leave(number, f"{f'saved at step {step}' if step else 'before the first step'}; run the same command to resume")


def leave(number: int | None, kept: str) -> NoReturn:
    """End a command that the signal `number` has stopped.

    The line goes past the console: the signal may have come within its print, after which it prints no more.
    """
    _State.words = f"interrupted: {kept}"
    if not progress_console.quiet:
        with suppress(OSError):
            sys.stderr.write(visible(f"interrupted: {kept}\n"))
            sys.stderr.flush()
    raise SystemExit(128 + (number or 0))
