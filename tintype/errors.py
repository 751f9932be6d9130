"""Errors that the command line prints without a traceback.

The exit code is 3 if a run has diverged, and 2 for all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tintype.wording import Language, Option, options_in, rendered


class UserError(Exception):
    """An error for the user. `problem` says what was wrong and where, and `fix` says what to do.

    `problem` and `fix` may name options as data (`tintype.wording`). The error's text shows options in the wording of
    the command line, until `speak` chooses another wording. A fix that begins with a line break is shown on separate
    lines.
    """

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__()
        self.parts = problem, fix
        """The problem and the fix, with options as data. An error that is made from this one uses them."""
        self.speak("command")

    def speak(self, language: Language) -> None:
        """From now on, show options in the wording of this language."""
        self._language: Language = language
        self.args = (rendered(self.marked, language),)

    @property
    def problem(self) -> str:
        """Return what is wrong, and where."""
        return rendered(self.parts[0], self._language)

    @property
    def fix(self) -> str:
        """Return what to do; empty if the problem already says what to do."""
        return rendered(self.parts[1], self._language).lstrip("\n")

    @property
    def options(self) -> tuple[Option, ...]:
        """Return the options that the problem and the fix name, with their values."""
        return tuple(options_in(self.marked))

    @property
    def marked(self) -> str:
        """Return the whole text with options as data, for a message that quotes this error."""
        problem, fix = self.parts
        separator = "; " if fix and not fix.startswith("\n") else ""
        return f"{problem}{separator}{fix}"

    def at(self, place: str) -> UserError:
        """Return a `UserError` whose text begins with a place, such as `arm 'muon': …`."""
        problem, fix = self.parts
        return UserError(f"{place}: {problem}", fix)


class DivergedError(UserError):
    """Raised if a run's values are not finite, or its weights are far too large.

    A study counts such a run as diverged, not as failed.
    """


class StoppedError(UserError):
    """Raised if a signal ended work before it had a result.

    The problem says what is kept, and the fix says how to resume.
    """


class DamagedFileError(UserError):
    """Raised if a file is damaged. The message names the file and the command that remakes it."""

    reason: str = ""
    """The damage, without the file and the fix."""


@contextmanager
def as_user_error(kinds: type[Exception] | tuple[type[Exception], ...], what: str, fix: str = "") -> Iterator[None]:
    """Turn errors of these kinds into a `UserError` that says what failed, why, and what to do."""
    try:
        yield
    except kinds as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        reason = f"there is no {error}" if isinstance(error, KeyError) else reason
        raise UserError(f"{what}: {reason}", fix) from error
