"""Shares of a pool of memory: a process takes one before it fills that memory, and others see what it was promised.

A share is a small file in a folder of this machine, with the process that holds it, its bytes, and how many of them the
process has in use by now. What is free of a pool is then what the pool says is free, less what was promised and is not
in use yet. Memory of strangers, who take no shares, is simply not free. The share of a process that has ended counts no
more, however it ended. Who takes a share holds a lock meanwhile, so no two processes are promised the same bytes.
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
"""Share of a pool that is promised to nobody."""
_READ_S = 1.0


@dataclass(frozen=True)
class Promise:
    """The content of a share's file."""

    process: Process
    bytes: int
    used: int
    whole: bool
    """Whether its holder has the pool for itself: nobody else takes a share."""


_PROMISE = TypeAdapter(Promise)


class Shares:
    """The shares of a pool, as one process sees and takes them."""

    def __init__(self, pool: Pool, folder: Path | None = None) -> None:
        self.pool = pool
        self.folder = (folder or _own_folder()) / machine() / pool.name

    def take(self, wanted: int | None) -> Share | None:
        """Take a share of so many bytes, all of the pool for None; None where it does not fit now.

        What this process holds of the pool already counts as its own. What no pool has is given where nobody else is
        there: then the share is all that is free.
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
        """Return the bytes that are free and promised to nobody; 0 where somebody has the pool for itself."""
        others = self.promises()
        return 0 if any(other.whole for other in others) else _left(others, self.pool.read())

    def is_alone(self, share: Share) -> bool:
        """Return whether the holder of this share has the pool for itself, strangers counted."""
        level, own = self.pool.read(), self.pool.own_bytes()
        others = [one for one in self.promises() if one.process != Process.this()]
        return share.is_held and not others and level.free + own >= self.pool.empty_share * level.total

    def promises(self) -> list[Promise]:
        """Return the shares of all living processes; the files of others are removed."""
        return list(self._living())

    def _living(self) -> Iterator[Promise]:
        for file in sorted(self.folder.glob("*.json")):
            try:
                promise = _PROMISE.validate_json(file.read_bytes(), strict=True)
            except (OSError, ValidationError):  # gone by now, or damaged: it promises nothing
                continue
            if promise.process.has_ended:
                file.unlink(missing_ok=True)
            else:
                yield promise


def _own_folder() -> Path:
    """Return a folder of this machine that is the user's: where somebody has taken its name, one in the cache."""
    found = Path(tempfile.gettempdir()) / f"tintype-{os.getuid()}"
    with suppress(OSError):
        found.mkdir(mode=0o700, exist_ok=True)
        if not found.is_symlink() and found.stat().st_uid == os.getuid():
            return found
    return cache_folder() / "shares"


def _left(others: list[Promise], level: Level) -> int:
    """Return the bytes that are free, less what others will still take of their shares and what is spared."""
    promised = sum(max(0, one.bytes - one.used) for one in others)
    return int(level.free - promised - SPARE_SHARE * level.total)


class Share:
    """A share that this process holds until `release`. A thread notes how much of it is in use."""

    def __init__(self, shares: Shares, size: int, whole: bool, empty: bool) -> None:
        self.bytes, self.whole = size, whole
        self.empty = empty
        """Whether nobody else held anything of note in the pool when it was taken."""
        self.most = 0
        """The most that this process was seen to hold."""
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
