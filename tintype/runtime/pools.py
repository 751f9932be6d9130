"""Read the total and free memory of a pool that several processes share, such as the memory of a GPU or of the host.

The GPU's memory is read through NVML. `cudaMemGetInfo` would open a CUDA context, which takes half a gigabyte in each
waiting process.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

_MEMINFO, _STATUS = Path("/proc/meminfo"), Path("/proc/self/status")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Level:
    free: int
    total: int


class Pool(Protocol):
    @property
    def name(self) -> str:
        """Return the pool's name, which is equal in all processes of the machine."""

    @property
    def empty_share(self) -> float:
        """Return the minimum fraction of an empty pool that is free or held by this process."""

    def read(self) -> Level: ...
    def own_bytes(self) -> int:
        """Return the bytes of the pool that this process holds."""


CONTEXT_BYTES = 1 << 30
"""Bytes reserved for memory that torch does not count, such as a process's CUDA context and loaded libraries."""


@dataclass(frozen=True)
class Gpu:
    """The memory of one GPU. The index counts only the GPUs that are visible to this process."""

    index: int = 0
    empty_share: float = 0.9

    @property
    def name(self) -> str:
        return f"gpu-{_uuid(self.index)}"

    def read(self) -> Level:
        free, total = _nvml_memory(_uuid(self.index)) or torch.cuda.mem_get_info(self.index)
        return Level(free, total)

    def own_bytes(self) -> int:
        if not torch.cuda.is_initialized() or not (reserved := torch.cuda.memory_reserved(self.index)):
            return 0
        return reserved + CONTEXT_BYTES


@cache
def _uuid(index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    return str(getattr(properties, "uuid", f"{properties.name} {index}"))


class _NvmlMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@cache
def _nvml() -> Any:
    """Return NVIDIA's management library, initialized."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def _nvml_memory(uuid: str) -> tuple[int, int] | None:
    library, handle, memory = _nvml(), ctypes.c_void_p(), _NvmlMemory()
    if library is None or library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle)):
        return None
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return None
    return memory.free, memory.total


@dataclass(frozen=True)
class Host:
    """The memory of the host, or of the container in which this process runs."""

    name: str = "host"
    empty_share: float = 0.0
    """Zero, since other programs always use some of the host's memory."""

    def read(self) -> Level:
        known = _kilobytes(_MEMINFO)
        if "MemTotal" not in known:  # not Linux: the memory of other processes is unknown
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            return Level(total, total)
        free, total = known.get("MemAvailable", known["MemTotal"]) * 1024, known["MemTotal"] * 1024
        limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
        if limit is not None and used is not None and limit < total:
            cached = _kilobytes(_CGROUP / "memory.stat").get("inactive_file", 0)  # in bytes, and given back when asked
            free, total = min(free, max(0, limit - used + cached)), limit
        return Level(free, total)

    def own_bytes(self) -> int:
        return _kilobytes(_STATUS).get("RssAnon", 0) * 1024


def count_kills() -> int:
    """Return how many processes of this machine or container the kernel has killed for lack of memory."""
    return max(
        _kilobytes(Path("/proc/vmstat")).get("oom_kill", 0),
        _kilobytes(_CGROUP / "memory.events").get("oom_kill", 0),
    )


def _kilobytes(file: Path) -> Mapping[str, int]:
    """Return the numbers in one of the kernel's files by name, in the units of the file."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    words = [line.replace(":", " ").split() for line in lines]
    return {one[0]: int(one[1]) for one in words if len(one) > 1 and one[1].isdecimal()}


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max": no limit
        return None
