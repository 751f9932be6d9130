"""Errors that the command line prints without a traceback. It exits with 2, or with 3 where a run has diverged."""


class UserError(Exception):
    """Says what was wrong, where, and what to do about it."""


class DivergedError(UserError):
    """A run gave values that are not finite, or weights far too large. A study counts it as diverged, not as failed."""


class DamagedFileError(UserError):
    """A file is not what was written. The message names it and the command that makes it anew."""
