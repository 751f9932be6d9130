"""The one error that is the user's to fix. The command line prints it without a traceback and exits with 2."""


class UserError(Exception):
    """Says what was wrong, where, and what to do about it."""


class DivergedError(UserError):
    """Training or scoring gave values that are not finite. A study counts such a run as diverged, not as failed."""


class DamagedFileError(UserError):
    """A file is not what was written. The message names it and the command that makes it anew."""
