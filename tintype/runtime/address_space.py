"""Report in one line that there is too little memory to load torch. This module imports only the standard library."""

from __future__ import annotations

import resource
import sys
from typing import NoReturn

LEAST_BYTES = 3 << 29
"""Minimum address space of a command, in bytes. `plan show` takes 1.07 GB on a CPU with one thread."""
_NO_MEMORY = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")


def why_too_small() -> str:
    """Return why this process cannot load the libraries, or ''. Without this check, some libraries abort or hang."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or limit >= LEAST_BYTES:
        return ""
    return _words(f"this process may use {limit / 1e9:.2f} GB of address space and needs {LEAST_BYTES / 1e9:.1f} GB")


def why_not_loaded(error: ImportError) -> str:
    """Return an error message if a library could not be loaded for lack of memory; '' for all other import errors."""
    return _words(f"{' '.join(str(error).split())}") if any(one in str(error) for one in _NO_MEMORY) else ""


def end_with(words: str) -> NoReturn:
    """Print one line and end the program. `terminal/` cannot be used, since it needs the libraries."""
    sys.stderr.write(f"error: {words}\n")
    sys.exit(2)


def _words(reason: str) -> str:
    return f"not enough memory to load torch: {reason}; raise the limit (`ulimit -v`), then run the same command again"
