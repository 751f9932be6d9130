"""Locks that keep a second process out of a folder, and fall with the process that holds them.

Some file systems of clusters have none. There a lock stops nobody; the leases of a study (`leases`) need none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from tintype.errors import UserError, as_user_error
from tintype.runtime.files import remove_unfinished
from tintype.runtime.notes import note_once

_LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of a file system that has no locks."""
_WAIT_S = 120.0
_LOOK_S = 0.1


@contextmanager
def locked(folder: Path, otherwise: str = "choose another --out", passed: Collection[int] = ()) -> Iterator[None]:
    """Make the folder and keep other processes out of it. The lock falls with the process that holds it.

    The file names that process, for messages. What killed processes left half written in the folder is removed. A lock
    that one of the processes `passed` holds, whose lease was taken over, is left to it under no name.
    """
    with as_user_error(OSError, f"cannot write to {folder}", otherwise):
        folder.mkdir(parents=True, exist_ok=True)
        if _held_by(folder) in passed:
            (folder / _LOCK).unlink(missing_ok=True)
        lock = (folder / _LOCK).open("a+")
    with lock:
        if not _take(lock):
            raise UserError(f"another process{_holder(folder)} works in {folder}; wait for it or {otherwise}")
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        remove_unfinished(folder)
        yield


@contextmanager
def taking_turns(lock: Path) -> Iterator[None]:
    """Hold a lock for a moment; a process that finds it taken waits."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wait_for_lock(
    folder: Path, stop: Callable[[], bool], on_wait: Callable[[str], None], passed: Collection[int] = ()
) -> bool:
    """Wait until no other process works in the folder, `_WAIT_S` at most; False where `stop` ended the wait.

    A process that was killed a moment ago may still be ending. `on_wait` gets one sentence if there is a wait. Nobody
    waits for the processes `passed`.
    """
    if not os.access(folder / _LOCK, os.W_OK):  # not there, or `locked` says what is wrong with it
        return True
    if _held_by(folder) in passed:
        return True
    until_s = time.monotonic() + _WAIT_S
    with (folder / _LOCK).open("a+") as lock:
        if _take(lock):
            return True
        on_wait(f"waiting for another process{_holder(folder)} that works in {folder}, {_WAIT_S:g} s at most")
        while not _take(lock) and time.monotonic() < until_s:
            if stop():
                return False
            time.sleep(_LOOK_S)
    return True


def _take(lock: TextIO) -> bool:
    """Take the lock if it is free; it falls when the file is closed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            return False
        note_once("locks", f"{lock.name}: the file system has no locks; do not start two commands in one folder")
    return True


def _holder(folder: Path) -> str:
    """Return the id of the process that holds the lock, in words; empty where it has not written it."""
    return f" ({holder})" if (holder := _held_by(folder)) is not None else ""


def _held_by(folder: Path) -> int | None:
    """Return the id of the process that took the lock last; None where it has not written it."""
    with suppress(OSError, ValueError):
        return int((folder / _LOCK).read_text())
    return None


def refuse_foreign(folder: Path, mark: str) -> None:
    """A folder without its mark must be empty, but for what an earlier try may have left."""
    if any(not entry.name.startswith(".") and entry.name != "checkpoints" for entry in folder.iterdir()):
        raise UserError(f"{folder} holds other files and no {mark}; choose an empty or new folder for --out")
