"""Reserve shares of a memory pool, so that processes do not use each other's memory.

A process reserves a share before it allocates memory. A share is a small file in a folder of this machine. The file
contains the process, the reserved bytes, and the bytes in use so far. The memory left for new shares is the pool's free
memory minus all reserved bytes that are not in use yet. Other programs take no shares, but the memory that they use is
not free. The share of an ended process is ignored. A process holds a lock while it takes a share, so that no bytes are
reserved twice.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tintype.runtime.cache import cache_folder
from tintype.runtime.files import write_bytes
from tintype.runtime.host import Process, machine
from tintype.runtime.locks import taking_turns
from tintype.runtime.pools import Level, Pool

SPARE_SHARE = 0.03
"""Fraction of a pool that is never reserved."""
_READ_S = 1.0


@dataclass(frozen=True)
class Promise:
    """The content of a share's file."""

    process: Process
    bytes: int
    used: int
    whole: bool
    """Whether the holder has reserved the whole pool, so that no other process can take a share."""


_PROMISE = TypeAdapter(Promise)


class Shares:
    def __init__(self, pool: Pool, folder: Path | None = None) -> None:
        self.pool = pool
        self.folder = (folder or _own_folder()) / machine() / pool.name

    def take(self, wanted: int | None) -> Share | None:
        """Take a share of `wanted` bytes, or of the whole pool for None. Return None if the share does not fit now.

        The share includes memory of the pool that this process already holds. If `wanted` exceeds the memory left and
        no other process uses the pool, the share is all free memory.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with taking_turns(self.folder / "lock"):
            others, level, own = self.promises(), self.pool.read(), self.pool.own_bytes()
            empty = not others and level.free + own >= self.pool.empty_share * level.total
            if any(other.whole for other in others):
                return None
            if wanted is None or wanted >= level.total:
                return None if others else Share(self, level.free + own, True, empty)
            if wanted - own <= _left(others, level):
                return Share(self, wanted, False, empty)
            return Share(self, level.free + own, True, empty) if empty else None

    def left(self) -> int:
        """Return the bytes that are free and not reserved; 0 if a process has reserved the whole pool."""
        others = self.promises()
        return 0 if any(other.whole for other in others) else _left(others, self.pool.read())

    def is_alone(self, share: Share) -> bool:
        """Return whether only the holder of this share uses the pool; other programs count too."""
        level, own = self.pool.read(), self.pool.own_bytes()
        others = [one for one in self.promises() if one.process != Process.this()]
        return share.is_held and not others and level.free + own >= self.pool.empty_share * level.total

    def promises(self) -> list[Promise]:
        """Return the shares of all living processes, and remove the files of ended processes."""
        return list(self._living())

    def _living(self) -> Iterator[Promise]:
        for file in sorted(self.folder.glob("*.json")):
            try:
                promise = _PROMISE.validate_json(file.read_bytes(), strict=True)
            except (OSError, ValidationError):  # removed just now, or damaged: the file reserves nothing
                continue
            if promise.process.has_ended:
                file.unlink(missing_ok=True)
            else:
                yield promise


def _own_folder() -> Path:
    """Return the user's folder in the temporary folder, or in the cache if another user owns a folder of this name."""
    found = Path(tempfile.gettempdir()) / f"tintype-{os.getuid()}"
    with suppress(OSError):
        found.mkdir(mode=0o700, exist_ok=True)
        if not found.is_symlink() and found.stat().st_uid == os.getuid():
            return found
    return cache_folder() / "shares"


def _left(others: list[Promise], level: Level) -> int:
    """Return the free bytes, minus the spare fraction and the reserved bytes that are not in use yet."""
    promised = sum(max(0, one.bytes - one.used) for one in others)
    return int(level.free - promised - SPARE_SHARE * level.total)


class Share:
    """A share that this process holds until `release`. A thread records how many bytes of the share are in use."""

    def __init__(self, shares: Shares, size: int, whole: bool, empty: bool) -> None:
        self.bytes, self.whole = size, whole
        self.empty = empty
        """Whether no other process used the pool when this share was taken."""
        self.most = 0
        """Largest measured number of bytes that this process has held."""
        self._shares, self._over = shares, threading.Event()
        self._file = shares.folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.json"
        self._write()
        threading.Thread(target=self._keep, name=f"share of {shares.pool.name}", daemon=True).start()

    @property
    def is_held(self) -> bool:
        return not self._over.is_set()

    @property
    def is_alone(self) -> bool:
        return self._shares.is_alone(self)

    def release(self) -> None:
        self._over.set()
        self._file.unlink(missing_ok=True)

    def _keep(self) -> None:
        while not self._over.wait(_READ_S):
            with suppress(OSError):
                self._write()
        self._file.unlink(missing_ok=True)

    def _write(self) -> None:
        used = self._shares.pool.own_bytes()
        self.most = max(self.most, used)
        content = asdict(Promise(Process.this(), self.bytes, used, self.whole))
        write_bytes(self._file, json.dumps(content).encode())
