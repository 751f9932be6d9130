"""Names for this machine and its processes. The names are unique among all machines that share a folder."""

from __future__ import annotations

import hashlib
import os
import platform
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BOOT, _PIDS = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
_ENDED = ("Z", "X")
"""States of a process that has ended and still occupies its id."""


@cache
def machine() -> str:
    """Return a name for the scope in which process ids are unique: a boot of a machine, or a container on it."""
    with suppress(OSError):
        return _digest(_BOOT.read_text() + os.readlink(_PIDS))  # noqa: PTH115 (no path: pid:[4026531836])
    return _digest(f"{platform.node()} {uuid.getnode()}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def process_name() -> str:
    """Return a name for this process. No other living process on any machine has the same name."""
    return f"{machine()}-{os.getpid()}"


@dataclass(frozen=True)
class Process:
    machine: str
    pid: int
    started: int = 0
    """Start time in the kernel's unit, to tell apart processes with a reused id; 0 if unknown."""

    @classmethod
    def this(cls) -> Process:
        return cls(machine(), os.getpid(), _state(os.getpid())[1])

    @property
    def is_here(self) -> bool:
        return self.machine == machine()

    @property
    def has_ended(self) -> bool:
        """Return whether the process has certainly ended. Return False for a process on another machine."""
        if not self.is_here:
            return False
        if not is_alive(self.pid):
            return True
        state, started = _state(self.pid)
        return state in _ENDED or bool(self.started and started and started != self.started)


def is_alive(pid: int) -> bool:
    try:
        with suppress(PermissionError):  # the process belongs to another user
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _state(pid: int) -> tuple[str, int]:
    """Return the state and the start time of a process; ("", 0) if the system does not provide them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # its name may have spaces
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0
