"""A cache of byte blocks by key, in a folder that any number of processes extend at the same time.

Each process writes its own pair of files, so there are no locks and no waiting. `NAME.rows` has the blocks one after
another and is mapped into memory. `NAME.index` has a record of 32 bytes for each block. Every process reads the files
of all processes. A record is written after its block. The record's checksum covers the block and the folder's stamp.
Blocks with incomplete, foreign or corrupt records count as missing and are written again.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tintype.runtime import fault
from tintype.runtime.cache import writing_cache

KEY_BYTES = 16
_RECORD = struct.Struct(f"<{KEY_BYTES}sQII")
"""Format of a record, which consists of key, offset, size and checksum."""


@dataclass
class _Segment:
    rows: Path
    index: Path
    read: int = 0
    """Number of bytes of the index that this process has read."""
    mapped: mmap.mmap | None = None

    def block(self, first: int, size: int) -> memoryview | None:
        """Return a block; None if the file is too short."""
        if self.mapped is None or len(self.mapped) < first + size:
            if not self.rows.is_file() or self.rows.stat().st_size < first + size:
                return None
            with self.rows.open("rb") as file:
                self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(self.mapped)[first : first + size]


@dataclass
class _Place:
    segment: _Segment
    first: int
    size: int
    sum: int
    checked: bool = False


class Segments:
    def __init__(self, folder: Path, stamp: bytes, otherwise: str) -> None:
        """Open the folder. `otherwise` is the advice to the user in the error for a full disk."""
        self.folder, self._stamp, self._otherwise = folder, stamp, otherwise
        self._segments: dict[str, _Segment] = {}
        self._places: dict[bytes, _Place] = {}
        self._own: tuple[int, _Segment] | None = None
        self.refresh()

    def __len__(self) -> int:
        return len(self._places)

    def refresh(self) -> None:
        for index in sorted(self.folder.glob("*.index")):
            segment = self._segments.setdefault(index.stem, _Segment(index.with_suffix(".rows"), index))
            with index.open("rb") as file:
                file.seek(segment.read)
                added = file.read()
            whole = len(added) - len(added) % _RECORD.size
            segment.read += whole
            for key, first, size, total in _RECORD.iter_unpack(added[:whole]):
                if key not in self._places:
                    self._places[key] = _Place(segment, first, size, total)

    def missing(self, keys: Sequence[bytes]) -> list[bytes]:
        if any(self.get(key) is None for key in keys):
            self.refresh()
        return [key for key in keys if self.get(key) is None]

    def get(self, key: bytes) -> memoryview | None:
        """Return the block of a key; None if the block is missing or damaged."""
        place = self._places.get(key)
        if place is None:
            return None
        block = place.segment.block(place.first, place.size)
        if block is not None and not place.checked:
            place.checked = self._sum(key, place.first, block) == place.sum
        if block is None or not place.checked:
            del self._places[key]
            return None
        return block

    def add(self, blocks: Sequence[tuple[bytes, bytes]]) -> None:
        """Store each block under its key. If an error is raised, blocks that were added before remain."""
        records = []
        with writing_cache(self.folder, self._otherwise):
            segment, self._own = self._own_segment(), None  # dropped after an error: its index may end in half a record
            first = segment.rows.stat().st_size if segment.rows.exists() else 0
            for key, block in blocks:
                records.append((key, first, len(block), self._sum(key, first, block)))
                first += len(block)
            _append(segment.rows, b"".join(block for _, block in blocks))
            fault.point("text.index")
            _append(segment.index, b"".join(_RECORD.pack(*record) for record in records))
        self._own = os.getpid(), segment
        for key, first, size, total in records:
            self._places[key] = _Place(segment, first, size, total, checked=True)
        segment.read += len(records) * _RECORD.size

    def _own_segment(self) -> _Segment:
        """Return this process's pair of files. A forked process gets a new pair."""
        if self._own is None or self._own[0] != os.getpid():
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"{os.getpid()}-{secrets.token_hex(6)}"
            segment = _Segment(self.folder / f"{name}.rows", self.folder / f"{name}.index")
            self._segments[name] = segment
            self._own = os.getpid(), segment
        return self._own[1]

    def _sum(self, key: bytes, first: int, block: bytes | memoryview) -> int:
        head = zlib.crc32(self._stamp + key + struct.pack("<QI", first, len(block)))
        return zlib.crc32(block, head)


def _append(path: Path, content: bytes) -> None:
    """Append without a buffer, so that write errors are raised here."""
    left = memoryview(content)
    with path.open("ab", buffering=0) as file:
        while left:
            left = left[file.write(left) :]
