"""Use lock files, so that only one process uses a folder or does a piece of work.

A lock is released when its process ends. Some cluster file systems do not support locks, and a lock on such a file
system keeps no process out. The leases of a study (module `leases`) do not depend on locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO, TypeVar

from tintype.errors import UserError, as_user_error
from tintype.runtime.files import remove_unfinished
from tintype.runtime.notes import note_once
from tintype.wording import option

T = TypeVar("T")

_LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Error numbers of file systems that do not support locks."""
_WAIT_S = 120.0
_LOOK_S = 0.1
ANOTHER_OUT = f"choose another {option('out')}"


@contextmanager
def locked(folder: Path, otherwise: str = ANOTHER_OUT, passed: Collection[int] = ()) -> Iterator[None]:
    """Make the folder, and lock it against other processes. The lock is released when this process ends.

    The lock file contains this process's id, for error messages. Unfinished files of killed processes are removed from
    the folder. `passed` are processes whose leases were taken over. If one of these processes holds the lock file, the
    file is unlinked and a new file is made.
    """
    with as_user_error(OSError, f"cannot write to {folder}", otherwise):
        folder.mkdir(parents=True, exist_ok=True)
        if _held_by(folder) in passed:
            (folder / _LOCK).unlink(missing_ok=True)
        lock = (folder / _LOCK).open("a+")
    with lock:
        if not _take(lock):
            raise UserError(
                f"another process{_holder(folder)} is writing to {folder}", f"wait until it ends, or {otherwise}"
            )
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        remove_unfinished(folder)
        yield


@contextmanager
def taking_turns(lock: Path) -> Iterator[None]:
    """Hold a lock for a short time; wait if another process holds it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class SharedWork:
    """Share the work on many items among several processes, so that each item is done once.

    Before a process works on an item, it locks the item's byte in a file that all processes open. If a process is
    killed, other processes finish its items. The locks belong to the open file and not to the process (`F_OFD_SETLK`).
    A lock of the process would be released as soon as any code, even a library, closes a descriptor of the file. On a
    system without `F_OFD_SETLK`, each process does all items; the results are the same, but the work is repeated.
    """

    def __init__(self, words: str, open_file: Callable[[], int] | None) -> None:
        """Prepare to share work. `words` names the items in messages; `open_file` returns a new writable descriptor.

        Without `open_file` this process does all the work.
        """
        self._words, self._open = words, open_file
        self._held: tuple[int, int] | None = None
        """The process that opened the file, and the descriptor. A forked process would share its parent's locks."""
        self._has_locks = open_file is not None and hasattr(fcntl, "F_OFD_SETLK")

    def do(
        self,
        items: Sequence[T],
        left: Callable[[Sequence[T]], list[T]],
        place: Callable[[T], int],
        make: Callable[[list[T]], None],
        portion: int,
    ) -> int:
        """Work until all items are done; return how many items this process made.

        This process makes a portion, then waits for items of other processes. `place` is an item's byte in the lock
        file.
        """
        made = 0
        while items := left(items):
            mine = self._take(items, place, portion)
            try:
                if mine := left(mine):  # another process may have finished some of these items just before
                    make(mine)
                    made += len(mine)
            finally:
                self._release()
        return made

    def _take(self, items: Sequence[T], place: Callable[[T], int], portion: int) -> list[T]:
        """Lock some items that no other process is making. If all items are taken, wait for the first item."""
        mine: list[T] = []
        try:
            for item in items:
                if len(mine) < portion and self._lock("F_OFD_SETLK", fcntl.F_WRLCK, place(item)):
                    mine.append(item)
            if not mine and self._lock("F_OFD_SETLKW", fcntl.F_WRLCK, place(items[0])):
                mine.append(items[0])
        except OSError as error:
            self._has_locks = False
            text = (
                f"processes cannot share the work on {self._words}, because file locks do not work "
                f"({error}); each process does all of the work itself"
            )
            note_once(f"locks of {self._words}", text)
        return mine or list(items[:portion])

    def _release(self) -> None:
        if self._held is not None and self._held[0] == os.getpid():
            self._lock("F_OFD_SETLK", fcntl.F_UNLCK, 0, count=0)  # to the end of the file, and beyond

    def _lock(self, command: str, kind: int, first: int, count: int = 1) -> bool:
        if not self._has_locks or self._open is None:
            return True
        if self._held is None or self._held[0] != os.getpid():
            descriptor = self._open()
            self._held = os.getpid(), descriptor
            weakref.finalize(self, _close_own, *self._held)
        try:
            fcntl.fcntl(self._held[1], getattr(fcntl, command), struct.pack("hhqqi0q", kind, 0, first, count, 0))
        except BlockingIOError:
            return False
        return True


def _close_own(process: int, descriptor: int) -> None:
    if process == os.getpid():
        with suppress(OSError):
            os.close(descriptor)


def wait_for_lock(
    folder: Path, stop: Callable[[], bool], on_wait: Callable[[str], None], passed: Collection[int] = ()
) -> bool:
    """Wait at most `_WAIT_S` seconds until no other process works in the folder; return False if `stop` ended the wait.

    The wait gives a killed process time to exit. Before waiting, `on_wait` gets a sentence for the user. Locks that the
    processes in `passed` hold are ignored.
    """
    if not os.access(folder / _LOCK, os.W_OK):  # the file is missing, or `locked` will report why it is unusable
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
    """Take the lock if no process holds it; return whether this worked. Closing the file releases the lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            return False
        note_once("locks", f"{lock.name}: the file system has no locks; do not start two commands in one folder")
    return True


def _holder(folder: Path) -> str:
    """Return a phrase with the id of the process that holds the lock; empty if the lock file has no id."""
    return f" ({holder})" if (holder := _held_by(folder)) is not None else ""


def _held_by(folder: Path) -> int | None:
    """Return the id of the process that took the lock last."""
    with suppress(OSError, ValueError):
        return int((folder / _LOCK).read_text())
    return None


def refuse_foreign(folder: Path, mark: str) -> None:
    """Raise if a folder has files but no file `mark`, since another program may have written those files.

    Hidden files and the folder `checkpoints` are allowed, since an earlier attempt may have left them.
    """
    if any(not entry.name.startswith(".") and entry.name != "checkpoints" for entry in folder.iterdir()):
        raise UserError(
            f"{folder} contains other files, but not {mark}", f"choose an empty or new folder for {option('out')}"
        )
