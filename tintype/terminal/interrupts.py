"""An interrupted command says in one line what is kept and how to resume; its exit code is 130 (SIGINT) or 143."""

from __future__ import annotations

from typing import NoReturn

from tintype.terminal.lines import progress_console, say

NOTHING_HARMED = "no file is left half written; run the same command again"


class Interrupted(BaseException):
    """Raised by a signal. `kept` says what is kept and how to resume, where the command knows."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.kept: str | None = None


def raise_interrupted(number: int) -> NoReturn:
    raise Interrupted(number)


def leave(number: int | None, kept: str) -> NoReturn:
    """End a command that the signal `number` has stopped."""
    say(progress_console, f"interrupted: {kept}")
    raise SystemExit(128 + (number or 0))
