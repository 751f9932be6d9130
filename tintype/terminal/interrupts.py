"""Handle signals, so that an interrupted command prints one line on what is saved and how to resume.

The exit code of the command is 130 after SIGINT, and 143 after SIGTERM.

In its first seconds, a command imports modules and has nothing to save. A signal then ends the command immediately,
because an exception during an import may be lost or converted. After the command has begun to work, a signal raises
`Interrupted`. In a loop that watches for signals (`tintype.runtime.interrupt`), the signal sets a flag instead.
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
    """Raised when the command receives a signal. `kept` states what is saved and how to resume, if this is known."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.kept: str | None = None


class _State:
    """State of signal handling in the command of this process."""

    begun = False
    signal: int | None = None
    """The number of the signal for which `Interrupted` was raised."""
    words = ""
    hook: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
    """The hook for unraisable exceptions that was installed before."""


def begin_command() -> None:
    """Reset the state that an earlier command left, and install a hook that gets each `Interrupted` Python drops."""
    _State.begun, _State.signal, _State.words = False, None, ""
    if sys.unraisablehook is not _raise_again:
        _State.hook, sys.unraisablehook = sys.unraisablehook, _raise_again


def begin_work() -> None:
    """Let signals raise `Interrupted` from now on, since the command may have something to save."""
    _State.begun = True


def came() -> int | None:
    return _State.signal


def last_words() -> str:
    return _State.words


def interrupt_command(number: int) -> None:
    if not _State.begun:
        end_before_work(number)
        return
    _State.signal = number
    raise Interrupted(number)


def _raise_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise `Interrupted` again a little later, if Python dropped the exception in a destructor or a callback."""
    if isinstance(lost.exc_value, Interrupted):
        number = lost.exc_value.number
        signal.signal(signal.SIGALRM, lambda *_: interrupt_command(number))
        signal.setitimer(signal.ITIMER_REAL, _LATER_S)
    else:
        _State.hook(lost)


def leave_training(number: int | None, step: int) -> NoReturn:
    """End a command that a signal stopped during training."""
    leave(number, f"{f'saved at step {step}' if step else 'before the first step'}; run the same command to resume")


def leave(number: int | None, kept: str) -> NoReturn:
    """End a command that the signal `number` has stopped.

    The console does not write the last line, since the signal may have come while it printed.
    """
    _State.words = f"interrupted: {kept}"
    if not progress_console.quiet:
        with suppress(OSError):
            sys.stderr.write(visible(f"interrupted: {kept}\n"))
            sys.stderr.flush()
    raise SystemExit(128 + (number or 0))
