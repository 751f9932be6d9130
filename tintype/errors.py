"""Errors that the command line prints without a traceback. It exits with 2, or with 3 where a run has diverged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tintype.wording import Language, Option, options_in, rendered


class UserError(Exception):
    """Says what was wrong and where (`problem`), and what to do about it (`fix`).

    Both may name options as data (`tintype.wording`). The text of the error has them in the language of the command
    line until `speak` chooses another. A fix that begins with a line break stands on lines of its own.
    """

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__()
        self.parts = problem, fix
        """The problem and the fix with options as data, for an error that is made of this one."""
        self.speak("command")

    def speak(self, language: Language) -> None:
        """Show options in the words of a language from now on."""
        self._language: Language = language
        self.args = (rendered(self.marked, language),)

    @property
    def problem(self) -> str:
        """Return what was wrong, and where."""
        return rendered(self.parts[0], self._language)

    @property
    def fix(self) -> str:
        """Return what to do; empty if the problem says it."""
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
        """Return a `UserError` with the same text after a place, as `arm 'muon': …`."""
        problem, fix = self.parts
        return UserError(f"{place}: {problem}", fix)


class DivergedError(UserError):
    """A run gave values that are not finite, or weights far too large. A study counts it as diverged, not as failed."""


class DamagedFileError(UserError):
    """A file is not what was written. The message names it and the command that makes it anew."""

    reason: str = ""
    """Only what is wrong with it."""


@contextmanager
def as_user_error(kinds: type[Exception] | tuple[type[Exception], ...], what: str, fix: str = "") -> Iterator[None]:
    """Raise a `UserError` in place of an error of these kinds: what failed, for which reason, and what to do."""
    try:
        yield
    except kinds as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        reason = f"there is no {error}" if isinstance(error, KeyError) else reason
        raise UserError(f"{what}: {reason}", fix) from error
