"""Implement leases, so that only one process at a time works on each item of a folder, even across machines.

A lease is a series of claims, `NAME/000001.json`, `NAME/000002.json` and so on. A process makes a claim by an exclusive
file creation, which can succeed for only one process on any file system. Only the newest claim counts. The newest
claim's number is the fencing number. The fencing number only grows, since claims are never removed. Every few seconds,
the holder rewrites its own claim with its progress (the heartbeat). At the end, the holder writes the outcome. Only the
holder writes to its claim while the holder lives. File system locks are not used.

Clocks of two machines are never compared. Each waiting process uses its own clock to measure how long the newest claim
has not changed. A waiting process takes the lease when the claim has not changed for 1.5 times its expiry. If the
holder ran on the same machine as the waiting process, the waiting process takes the lease as soon as the holder's
process ends.

The holder measures time since the start of its last heartbeat, and gives up the lease after the expiry. So there are
never two holders at a time if other machines see a heartbeat within half the expiry. NFS caches can be up to a minute
old. A holder that was suspended for longer than the expiry claims the lease again, unless another process made the next
claim first.

A claim carries a checksum, and each of its values has a type and bounds. A claim can be unreadable because its file is
empty, damaged or of a later version. The holder of an unreadable claim is unknown. If an unreadable claim has not
changed for 1.5 times the usual expiry, a waiting process takes the lease.

`Fence` describes how a former holder is prevented from writing late.
"""

from __future__ import annotations

import json
import os
import platform
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tintype.errors import UserError
from tintype.runtime.fence import Fence
from tintype.runtime.files import Json, checksum_of, checksum_of_json, parse_object, remove_unfinished, write_bytes
from tintype.runtime.host import Process, process_name
from tintype.runtime.notes import note_once
from tintype.runtime.room import is_full

EXPIRY_S = 120.0
"""If the holder writes no heartbeat for this time, it has lost its lease."""
BEAT_S = 5.0
"""Time between heartbeats; at most a tenth of the expiry."""
MOST_EXPIRY_S = 86_400.0
"""Longest expiry in a valid claim. Without this limit, the run of a dead worker could wait for days."""
_PATIENCE = 1.5
"""Other processes wait this multiple of the claim's expiry before they take the lease."""
_UNKNOWN = Process("", 0)
_NAME = re.compile(r"([0-9]{6})\.json")
_MOST_CLAIMS = 999_999
"""Largest number of claims per lease, given by the length of the file names."""
_MOST_BYTES = 1 << 20
"""Largest size of a claim file, in bytes. The claim of a run has about one thousandth of this size."""


class LostLeaseError(Exception):
    """Raised when another process has the lease, or when the folder is gone. The process must stop writing."""


class MovedError(UserError):
    """Raised when the folder with the leases was moved, renamed or removed."""


def boot_clock() -> float:
    """Return the seconds of a clock that also runs while the machine sleeps, and that no process can set."""
    if (clock := getattr(time, "CLOCK_BOOTTIME", None)) is not None:
        return time.clock_gettime(clock)
    return time.monotonic()


class Disk:
    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder; empty if the folder is missing."""
        try:
            return os.listdir(folder)  # noqa: PTH208 (names, no paths)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: Path) -> bool:
        """Return whether a file is visible. A file counts as not visible if it cannot be reached."""
        try:
            return path.exists()
        except OSError:
            return False

    def is_gone(self, path: Path) -> bool:
        """Return whether a file is certainly missing: False if the file's folder cannot be reached at the moment."""
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False

    def read(self, path: Path) -> bytes:
        """Return a claim file's content; empty if the file is missing, being replaced, too large or not regular."""
        try:
            opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
            with os.fdopen(opened, "rb") as file:
                status = os.fstat(opened)
                if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
                    return b""
                return file.read(_MOST_BYTES)
        except OSError:  # over NFS also a stale handle
            return b""

    def create(self, path: Path, content: bytes) -> bool:
        """Create a file; return False if the file exists."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            with os.fdopen(made, "wb") as file:
                file.write(content)
        except OSError:  # a full disk: other processes would wait for an empty claim to expire
            path.unlink(missing_ok=True)
            raise
        remove_unfinished(path.parent)
        return True

    def replace(self, path: Path, content: bytes) -> None:
        write_bytes(path, content)


class _Checked(BaseModel):
    """Types and bounds of a claim's values. Extra keys are refused, since their types are unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


_Seconds = Annotated[float, Field(ge=0, le=1e9)]
_Step = Annotated[int, Field(ge=0, le=1 << 53)]
_Bytes = Annotated[int, Field(ge=0, le=1 << 53)]


class _Process(_Checked):
    machine: str
    pid: int = Field(ge=1, lt=1 << 31)
    started: int = Field(ge=0, lt=1 << 63)


class _About(_Checked):
    round: str = ""
    arm: str = ""
    seed: int = Field(0, ge=0)
    step: _Step = 0
    gpu: str = ""


class _Now(_Checked):
    beat: int = Field(ge=-1, le=1 << 53)
    state: str = ""
    share: float = Field(0.0, ge=0, le=1)
    step: _Step = 0
    loss: float | None = None
    images_per_s: float | None = Field(None, ge=0)
    text: str = ""
    died: str = ""


class _Ended(_Checked):
    state: str
    text: str = ""
    step: _Step = 0
    training_s: _Seconds = 0.0
    scoring_s: _Seconds = 0.0
    peak_bytes: _Bytes = 0
    gpu_bytes: _Bytes = 0
    needs_bytes: _Bytes = 0


class _Content(_Checked):
    number: int
    process: _Process
    host: str
    worker: str
    expiry_s: float = Field(gt=0, le=MOST_EXPIRY_S)
    held_s: _Seconds
    about: _About
    now: _Now
    ended: _Ended | None


@dataclass(frozen=True)
class Claim:
    """The content of a claim file. If the file cannot be read, only the claim's number is known."""

    number: int
    process: Process = _UNKNOWN
    host: str = ""
    worker: str = ""
    expiry_s: float = EXPIRY_S
    held_s: float = 0.0
    """Seconds for which the holder had held the lease at the last heartbeat."""
    about: Mapping[str, Json] = field(default_factory=dict)
    """Details that the holder recorded when it took the lease."""
    now: Mapping[str, Json] = field(default_factory=dict)
    ended: Mapping[str, Json] | None = None
    """Outcome of the work; None until the holder gives the lease back."""
    damage: str = ""
    """The reason why the claim cannot be read; empty if the claim is readable."""

    @classmethod
    def parse(cls, number: int, content: bytes) -> Claim:
        if not content:
            return cls(number, damage="it is empty")
        try:
            known = parse_object(content)
            if known.pop("checksum", None) != checksum_of_json(known):
                return cls(number, damage="the file does not match its checksum")
            found = _Content.model_validate(known)
            if found.number != number:
                return cls(number, damage=f"it is a copy of {found.number:06d}.json")
        except ValidationError as error:
            first = error.errors()[0]
            return cls(number, damage=f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        except ValueError as error:
            return cls(number, damage=f"it {error}")
        return cls(
            number,
            Process(**found.process.model_dump()),
            found.host,
            found.worker,
            found.expiry_s,
            found.held_s,
            found.about.model_dump(exclude_unset=True),
            found.now.model_dump(exclude_unset=True),
            None if found.ended is None else found.ended.model_dump(exclude_unset=True),
        )

    def dump(self, beat: int) -> bytes:
        content = {
            "number": self.number,
            "process": vars(self.process),
            "host": self.host,
            "worker": self.worker,
            "expiry_s": self.expiry_s,
            "held_s": round(self.held_s, 3),
            "about": dict(self.about),
            "now": dict(self.now) | {"beat": beat},
            "ended": None if self.ended is None else dict(self.ended),
        }
        return json.dumps({**content, "checksum": checksum_of(content)}, indent=1).encode() + b"\n"

    @property
    def words(self) -> str:
        """Describe who held the lease and, if known, how the holder ended."""
        if self.damage:
            return f"unknown: its claim {self.number:06d}.json cannot be read ({self.damage})"
        known = (self.ended or {}).get("text") or self.now.get("died")
        died = known or ("its process has ended" if self.process.has_ended else "it was silent too long")
        return f"{self.worker or 'unknown'} on {self.host or 'an unknown machine'}, process {self.process.pid}: {died}"

    @property
    def is_dead(self) -> bool:
        """Return whether the holder has certainly ended without giving the lease back."""
        return self.ended is None and self.process.has_ended


class Leases:
    def __init__(
        self,
        folder: Path,
        worker: str = "",
        expiry_s: float = EXPIRY_S,
        disk: Disk | None = None,
        clock: Callable[[], float] = boot_clock,
        anchor: Path | None = None,
        beat_s: float = BEAT_S,
    ) -> None:
        self.folder, self.worker, self.expiry_s, self.beat_s = folder, worker, expiry_s, beat_s
        self.disk, self.clock = disk or Disk(), clock
        self.anchor = anchor if anchor is not None and anchor.is_file() else None
        """A file whose path exists only as long as the folder has not moved."""
        self._seen: dict[str, tuple[int, bytes, float]] = {}
        """The newest claim of each lease, its content, and the time since which it has not changed."""

    def is_moved(self) -> bool:
        """Return whether the folder was moved. If so, further writes would create a second folder at the old path."""
        return self.anchor is not None and self.disk.is_gone(self.anchor)

    def check_place(self) -> None:
        """Raise MovedError if the folder was moved, renamed or removed."""
        if self.anchor is not None and self.is_moved():
            raise MovedError(
                f"{self.anchor.parent} was moved, renamed or removed while it was in use, so writing stopped; "
                f"saved files are in the folder's new place",
                "give the folder's new path to resume",
            )

    def newest(self, name: str) -> Claim | None:
        """Return the newest claim; None if no process has claimed the lease yet."""
        if not (numbers := self._numbers(name)):
            return None
        number, content = numbers[-1], self.disk.read(self.path(name, numbers[-1]))
        before = self._seen.get(name)
        if before is None or before[:2] != (number, content):
            self._seen[name] = (number, content, self.clock())
        return Claim.parse(number, content)

    def history(self, name: str) -> list[Claim]:
        """Return all claims, oldest first."""
        return [Claim.parse(number, self.disk.read(self.path(name, number))) for number in self._numbers(name)]

    def silent_s(self, name: str) -> float:
        """Return for how many seconds the newest claim has not changed, as seen by this process."""
        return self.clock() - self._seen[name][2] if name in self._seen else 0.0

    def is_free(self, name: str, finished: bool = False) -> bool:
        """Return whether this process can take the lease. `take` describes `finished`."""
        return self._is_over(name, self.newest(name), finished)

    def _is_over(self, name: str, newest: Claim | None, finished: bool) -> bool:
        if newest is None or newest.ended is not None or newest.is_dead:
            return True
        if not newest.damage:
            return self.silent_s(name) > _PATIENCE * newest.expiry_s
        expiry_s = max(EXPIRY_S, self.expiry_s)
        return self.silent_s(name) > (2 * BEAT_S if finished else _PATIENCE * expiry_s)

    def take(
        self, name: str, about: Mapping[str, Json] | None = None, finished: bool = False, over: int = 0
    ) -> Lease | None:
        """Take the lease; return None if another process holds the lease or claimed it first.

        `finished` means that the work is done and needs no claim. With `finished`, an unreadable newest claim counts as
        over after two heartbeats, since a living holder would have rewritten the claim by then. `over` is the number of
        a claim for which another process has already waited until the claim expired.
        """
        self.check_place()
        newest = self.newest(name)
        if not self._is_over(name, newest, finished) and (newest is None or newest.number != over):
            return None
        number = newest.number + 1 if newest else 1  # after the claim that is over, and after no other
        if number > _MOST_CLAIMS:
            file = self.path(name, _MOST_CLAIMS)
            raise UserError(
                f"{file} is the last possible claim of a run (claims are numbered, and the numbers are used up)",
                f"stop all workers and remove {file.parent}",
            )
        if newest is not None and newest.damage:
            file = self.path(name, newest.number)
            note_once(str(file), f"{file} cannot be read ({newest.damage}): it is taken for expired")
        claim = Claim(number, Process.this(), platform.node(), self.worker, self.expiry_s, about=about or {})
        began_s = self.clock()
        if not self.disk.create(self.path(name, number), claim.dump(0)):
            return None
        return Lease(self, name, claim, [one for one in self.history(name) if one.number < number], began_s)

    def note_death(self, name: str, process: int, reason: str) -> Claim | None:
        """Record in the newest claim how its process ended, and return the claim.

        Only the process that started the ended process calls this function. Return None if the newest claim belongs to
        another process, or if its process has recorded an outcome or has not ended.
        """
        newest = self.newest(name)
        if newest is None or newest.process.pid != process or not newest.is_dead:
            return None
        self.disk.replace(self.path(name, newest.number), replace(newest, now={**newest.now, "died": reason}).dump(-1))
        return newest

    def path(self, name: str, number: int) -> Path:
        return self.folder / name / f"{number:06d}.json"

    def _numbers(self, name: str) -> list[int]:
        return sorted(int(found[1]) for one in self.disk.names(self.folder / name) if (found := _NAME.fullmatch(one)))


class Lease:
    """A lease that this process holds, or held before it lost the lease. A thread writes its heartbeat until `end`."""

    def __init__(self, leases: Leases, name: str, claim: Claim, before: list[Claim], began_s: float) -> None:
        self.name, self.claim, self.before = name, claim, before
        self._leases, self._began_s, self._renewed_s = leases, began_s, began_s
        self._lock, self._over = threading.RLock(), threading.Event()
        self._now: Mapping[str, Json] = {}
        self._beats, self._lost = 0, False
        self._beat_s = min(leases.beat_s, leases.expiry_s / 10)
        threading.Thread(target=self._keep, name=f"lease {name}", daemon=True).start()

    @property
    def number(self) -> int:
        return self.claim.number

    @property
    def fence(self) -> Fence:
        """Return the fence that stops this process from writing once the lease is lost."""
        passed = frozenset(one.process.pid for one in self.before if one.process.is_here)
        left = any(one.ended is None for one in self.before)
        words = self.before[-1].words if left and self.before[-1].ended is None else ""
        return Fence(self.check, f"-{process_name()}", left, words, passed - {os.getpid()})

    @property
    def is_lost(self) -> bool:
        return self._lost

    def report(self, now: Mapping[str, Json]) -> None:
        self._now = dict(now)

    def check(self) -> None:
        """Raise LostLeaseError if another process has the lease, or could have it by now."""
        with self._lock:
            if self._holds():
                return
            if self._leases.is_moved():
                raise LostLeaseError(f"{self._leases.folder.parent} is gone")
            raise LostLeaseError(f"another process has taken over {self.name} from {process_name()}")

    def end(self, how: Mapping[str, Json]) -> None:
        """Give the lease back and record how the work ended. Write nothing if the lease is lost."""
        self._over.set()
        with self._lock:
            if self._holds():
                self.claim = replace(self.claim, ended=dict(how))
                with suppress(OSError):  # other processes then wait until the lease has expired
                    self._write()
                self._lost = True

    def _keep(self) -> None:
        while not self._over.wait(self._beat_s) and not self._lost:
            self.beat()

    def beat(self) -> bool:
        """Write a heartbeat; return whether this process still has the lease."""
        with self._lock:
            if self._over.is_set() or not self._holds():
                return False
            began_s = self._leases.clock()
            with suppress(OSError):  # if the folder stays out of reach, the lease expires
                self._write()
                self._renewed_s = began_s
            return True

    def _holds(self) -> bool:
        """Return whether this process has the lease.

        After a sleep longer than the expiry, claim the lease again unless another process has claimed it. If the disk
        is full, try again later, since no other process can write a claim to a full disk either.
        """
        leases = self._leases
        if self._lost or leases.is_moved():
            self._lost = True
            return False
        if leases.clock() - self._renewed_s <= self.claim.expiry_s:
            self._lost = leases.disk.exists(leases.path(self.name, self.number + 1))
            return not self._lost
        began_s, old = leases.clock(), self.claim
        self.claim = replace(old, number=old.number + 1)
        try:
            self._lost = not leases.disk.create(leases.path(self.name, self.number), self._dump())
        except OSError as error:
            if is_full(error):
                self.claim = old
                return False
            self._lost = True  # the folder cannot be reached, and another process may have the lease by now
        if not self._lost:
            self._renewed_s = began_s
            with suppress(OSError):
                ended = replace(old, ended={"state": "continued"})
                leases.disk.replace(leases.path(self.name, old.number), ended.dump(self._beats))
        return not self._lost

    def _write(self) -> None:
        self._leases.disk.replace(self._leases.path(self.name, self.number), self._dump())

    def _dump(self) -> bytes:
        self._beats += 1
        self.claim = replace(self.claim, held_s=self._leases.clock() - self._began_s, now=self._now)
        return self.claim.dump(self._beats)
