"""Errors that the command line prints without a traceback. It exits with 2, or with 3 where a run has diverged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Says what was wrong, where, and what to do about it."""


class DivergedError(UserError):
    """A run gave values that are not finite, or weights far too large. A study counts it as diverged, not as failed."""


class DamagedFileError(UserError):
    """A file is not what was written. The message names it and the command that makes it anew."""

    reason: str = ""
    """Only what is wrong with it."""


@contextmanager
def as_user_error(kinds: type[Exception] | tuple[type[Exception], ...], what: str, remedy: str = "") -> Iterator[None]:
    """Raise a `UserError` in place of an error of these kinds: what failed, for which reason, and what to do."""
    try:
        yield
    except kinds as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        reason = f"there is no {error}" if isinstance(error, KeyError) else reason
        raise UserError(f"{what}: {reason}" + (f"; {remedy}" if remedy else "")) from error
