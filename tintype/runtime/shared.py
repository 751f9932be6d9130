"""Store rows in memory that all processes of a user on one machine share, as long as any of these processes uses them.

The memory is an anonymous file (`memfd_create`). The process that makes the file publishes a record, which is an empty
file in the cache. The record's name has the identity of the rows, the process and the descriptor. Another process opens
this descriptor (`/proc/PID/fd/N`), gets its own descriptor, and publishes its own record. The kernel frees the memory
when the last process with such a descriptor ends, even after SIGKILL. The memory is not in /dev/shm, so the size of
/dev/shm (64 MB in many containers) is not a limit. Records of ended processes are removed.

Array dimensions are M (rows whose checksums are needed), K (bytes of a row) and W (64-bit words of a row).
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.runtime.cache import cache_folder
from tintype.runtime.host import Process, machine
from tintype.runtime.locks import SharedWork, taking_turns
from tintype.runtime.notes import note_once
from tintype.runtime.rows import SUM_BYTES, Content, Rows, gigabytes, map_file

SMALLEST_BYTES = 16 << 20
"""Smaller rows are not shared, since computing them takes less time than finding shared rows."""
_RESERVE_BYTES = 2 << 30
"""Bytes of memory that shared rows leave free for other programs."""
_WORD_BYTES = 8
_FOREIGN_S = 30 * 24 * 3600
"""Age at which this process removes records of other machines and containers that use the same cache."""


class MemoryRows(Rows):
    """Rows in memory. Rows whose checksums are computed at memory speed, since SHA-256 would take seconds per 10 GB."""

    def __init__(self, content: Content, mapped: Tensor, work: SharedWork) -> None:
        stride_bytes = _stride_bytes(content)
        super().__init__(mapped, content, stride_bytes, work)
        words = stride_bytes // _WORD_BYTES
        weights = hashlib.shake_128(content.head).digest((words + 1) * _WORD_BYTES)
        weight_W = np.frombuffer(weights, dtype=np.int64) | 1
        self._weight_W, self._place_weight = weight_W[:words], int(weight_W[words])
        self._word_NW = self._stride_NK.view(np.int64)

    def _sums(self, id_M: Tensor) -> Tensor:
        """Return a sum modulo 2^64 over each row's words and index, each multiplied by an odd weight.

        A change of one word always changes the sum, since an odd weight has an inverse. Other changes, such as two
        swapped rows, remain undetected in about one of 2^60 cases. The weights are derived from the header of the rows.
        """
        dots = [np.dot(self._word_NW[id_], self._weight_W) for id_ in id_M.tolist()]
        sum_M = torch.tensor(np.array(dots, dtype=np.int64)) + (id_M + 1) * self._place_weight
        return torch.where(sum_M == 0, 1, sum_M)


def open_rows(content: Content) -> MemoryRows:
    """Return rows in memory; raise a `UserError` if the memory is too small.

    Small rows belong to this process only. Larger rows are shared by this machine's processes, if the system can.
    """
    if (size := _size(content)) >= SMALLEST_BYTES:
        if (rows := open_shared(content)) is not None:
            return rows
        _check_room(content, size)
    return MemoryRows(content, torch.zeros(size, dtype=torch.uint8), SharedWork(content.words, None))


def open_shared(content: Content) -> MemoryRows | None:
    """Return the shared rows of this machine; if the system has no shared memory, log a note and return None."""
    try:
        if hasattr(os, "memfd_create"):
            return _open_shared(content, _size(content))
        reason = f"{sys.platform} has no shared memory that is freed when its processes end"
    except OSError as error:
        reason = str(error)
    note_once(
        f"shared {content.words}",
        f"processes do not share the {content.words}, and each process makes its own copy: {reason}",
    )
    return None


def free_bytes() -> int:
    """Return how much memory this process can still allocate on its machine and in its container or job."""
    memory = Path("/proc/meminfo")
    if not memory.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in memory.read_text().splitlines())
    return min(int(fields["MemAvailable"].split()[0]) * 1024, *map(_free_in, _groups()), sys.maxsize)


def _groups() -> list[Path]:
    """Return the control groups that limit this process's memory. A container's own group is the root in it."""
    found: list[Path] = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            roots = {"0": "/sys/fs/cgroup", "memory": "/sys/fs/cgroup/memory"}
            root = roots.get("memory" if "memory" in controllers.split(",") else number)
            if root is not None:
                inner = Path(root + path)
                found += [one for one in (inner, *inner.parents) if one.is_relative_to(root)]
    return found


def _free_in(group: Path) -> int:
    """Return the memory that a control group can still allocate. Cached files that can be dropped count as free."""
    v2 = ("memory.max", "memory.current", "inactive_file")
    v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for limit, usage, file_cache in (v2, v1):
        with suppress(OSError, ValueError):  # the file is missing or says "max", which means no limit
            numbers = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            free = int((group / limit).read_text()) - int((group / usage).read_text())
            return max(0, free + int(numbers.get(file_cache, 0)))
    return sys.maxsize


def _check_room(content: Content, size: int) -> None:
    free = max(0, free_bytes() - _RESERVE_BYTES)
    if size > free:
        raise UserError(
            f"the {content.words} need {gigabytes(size)} of memory, but only {gigabytes(free)} are free, not "
            f"counting {gigabytes(_RESERVE_BYTES)} reserved for other uses",
            content.otherwise,
        )


def _open_shared(content: Content, size: int) -> MemoryRows:
    """Open the memory that another process has published, or make and publish it."""
    folder = cache_folder() / f"shared-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    decides = [content.head, repr(content.shape).encode(), repr(content.dtype).encode()]
    name = hashlib.sha256(b" ".join(decides)).hexdigest()[:32]
    with taking_turns(folder / "opening"):  # so that only one process allocates the memory
        descriptor = _published(folder, name, content, size)
        if descriptor is None:
            descriptor = _made(name, content, size)
        try:
            file, this = Path(f"/proc/self/fd/{descriptor}"), Process.this()
            work = SharedWork(content.words, lambda: os.open(file, os.O_RDWR | os.O_CLOEXEC))
            rows = MemoryRows(content, map_file(file, size), work)
            record = folder / f"{this.machine}.{name}.{this.pid}.{this.started}.{descriptor}"
            record.touch()
        except BaseException:
            os.close(descriptor)
            raise
    weakref.finalize(rows, _withdraw, this.pid, record, descriptor)
    return rows


def _published(folder: Path, name: str, content: Content, size: int) -> int | None:
    """Return a descriptor of memory of this name that a living process published. Remove records of ended processes."""
    found: int | None = None
    for record in sorted(folder.glob("*.*.*.*.*")):
        there, of, *numbers = record.name.split(".")
        try:
            pid, started, number = map(int, numbers)
            if there != machine():
                if time.time() - record.stat().st_mtime > _FOREIGN_S:
                    record.unlink(missing_ok=True)
                continue
            if Process(there, pid, started).has_ended:
                record.unlink(missing_ok=True)
                continue
            file = f"/proc/{pid}/fd/{number}"
            if found is not None or of != name or not os.readlink(file).startswith(f"/memfd:{_memory_name(name)}"):  # noqa: PTH115
                continue
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except (OSError, ValueError):  # the process has just ended, or its descriptors may not be read
            continue
        if os.fstat(descriptor).st_size == size and os.pread(descriptor, len(content.head), 0) == content.head:
            found = descriptor
        else:
            os.close(descriptor)
    return found


def _made(name: str, content: Content, size: int) -> int:
    """Return a descriptor of new memory. All pages are allocated now: a later failure would kill the process."""
    _check_room(content, size)
    descriptor = os.memfd_create(_memory_name(name), os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.pwrite(descriptor, content.head, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _memory_name(name: str) -> str:
    return f"tintype-{name}"


def _withdraw(process: int, record: Path, descriptor: int) -> None:
    """Close memory that this process no longer uses. A forked process does not remove its parent's record."""
    if process == os.getpid():
        with suppress(OSError):
            record.unlink(missing_ok=True)
    with suppress(OSError):
        os.close(descriptor)


def _stride_bytes(content: Content) -> int:
    """Return the distance between two rows in bytes, rounded up to whole words."""
    row_bytes = content.row_bytes // content.shape[0]
    return -(-row_bytes // _WORD_BYTES) * _WORD_BYTES


def _size(content: Content) -> int:
    return len(content.head) + content.shape[0] * (SUM_BYTES + _stride_bytes(content))
