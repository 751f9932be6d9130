"""Recognise errors of a full disk, and check whether the disk has free space again."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tintype.runtime.host import process_name

_FULL = (errno.ENOSPC, errno.EDQUOT)
_IN_WORDS = re.compile(rf"\(os error ({errno.ENOSPC}|{errno.EDQUOT})\)")
"""Match the error number in safetensors' message, since the exception has no field for the number."""
_PROBE_BYTES = 1 << 16


def is_full(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes means that the disk or the user's quota is full."""
    numbered = any(isinstance(one, OSError) and one.errno in _FULL for one in _chain(error))
    return numbered or any(_IN_WORDS.search(str(one)) for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def has_room(folder: Path, needed: int) -> bool:
    """Return whether a folder's disk has `needed` free bytes. A small test file detects an exhausted quota."""
    probe = folder / f".room.writing-{process_name()}"  # `remove_unfinished` removes what a kill leaves
    try:
        if shutil.disk_usage(folder).free < needed:
            return False
        probe.write_bytes(os.urandom(_PROBE_BYTES))
        return True
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def size_of(folder: Path) -> int:
    """Return the total size of all files below a folder. Files that are deleted during the count are ignored."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            found += path.stat().st_size
    return found
