"""Show notes of the other rooms on stderr, one line each."""

from __future__ import annotations

import logging
import sys

from tintype.runtime.notes import LOGGER


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"note: {record.getMessage()}\n")
        sys.stderr.flush()


def show_notes() -> None:
    """Print every note from now on. A second call changes nothing."""
    if not any(isinstance(handler, _Stderr) for handler in LOGGER.handlers):
        LOGGER.addHandler(_Stderr())
