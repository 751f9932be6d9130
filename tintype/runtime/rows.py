"""Store rows of numbers, one per image of the data, in memory or in a memory-mapped file.

The output of a frozen network for an image, such as a teacher's tokens or a tokenizer's latents, is computed once. The
output is then cached by the image's id. The module `shared` has rows that exist only as long as the processes that use
them.

Tensor dimensions are B (requested images), M (images whose rows are written) and N (images of the data).
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tintype.errors import UserError, as_user_error
from tintype.runtime import fault
from tintype.runtime.files import damaged
from tintype.runtime.locks import SharedWork

_FORMAT = b"tintype rows 2\n\0"
"""First bytes of a file of rows. Version 1 had none, and its checksums missed swapped numbers and rows."""
SUM_BYTES = 8
PORTION = 64
"""Number of rows that a process takes at a time, enough for one call and few enough to share the work."""
_LEFT_S = 3600


@dataclass(frozen=True)
class Content:
    words: str
    """Plural name of the rows in error messages."""
    shape: tuple[int, ...]
    """[N, …]"""
    dtype: torch.dtype
    otherwise: str
    """Advice for a user without enough disk space or memory."""
    stamp: bytes = b""
    """Identity of the rows, written to the header; its length is a multiple of 8 bytes."""

    @property
    def head(self) -> bytes:
        return _FORMAT + self.stamp

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def file_bytes(self) -> int:
        return len(self.head) + SUM_BYTES * self.shape[0] + self.row_bytes


class Rows:
    """Mapped memory that contains a header, then a checksum for each image, then a row for each image.

    The checksum is written after the row, and marks the row as present. The checksum is verified when a process first
    reads the row. A row that is incomplete after a crash, damaged or in the wrong place is computed again.
    """

    def __init__(self, mapped: Tensor, content: Content, stride_bytes: int, work: SharedWork) -> None:
        """Map the rows. `stride_bytes` is the distance between the starts of two rows."""
        count, first = content.shape[0], len(content.head)
        rows = first + SUM_BYTES * count
        stride_NK = mapped[rows:].view(count, stride_bytes)
        self.words, self.shape, self.dtype = content.words, content.shape, content.dtype
        self._stamp, self._work = content.stamp, work
        self._sum_N = mapped[first:rows].view(torch.int64)
        self._stride_NK = stride_NK.numpy()
        self._byte_NK = self._stride_NK[:, : content.row_bytes // count]
        self._known_N = torch.zeros(count, dtype=torch.bool)

    @property
    def count(self) -> int:
        """Return the number of rows that were written; damaged rows count too."""
        return int((self._sum_N != 0).sum())

    def has(self, id_B: Tensor) -> Tensor:
        new = id_B[~self._known_N[id_B]]
        new = new[self._sum_N[new] != 0]
        if len(new):
            self._known_N[new] = self._sums(new) == self._sum_N[new]
        return self._known_N[id_B]

    def missing(self, ids: Sequence[int]) -> list[int]:
        """Return the images whose rows are missing or damaged, each once."""
        id_B = torch.tensor(ids, dtype=torch.int64)
        found: list[int] = id_B[~self.has(id_B)].unique().tolist()
        return found

    def fill(self, ids: Sequence[int], make: Callable[[list[int]], Tensor], portion: int = PORTION) -> int:
        """Compute the missing rows of these images; return how many rows this process computed.

        Exactly one of the processes that share the rows computes each row, one portion at a time.
        """

        def write(some: list[int]) -> None:
            self.write(torch.tensor(some), make(some))

        return self._work.do(ids, self.missing, int, write, portion)

    def fill_blocks(self, blocks: Sequence[list[int]], make: Callable[[list[int]], Tensor]) -> int:
        """Compute missing rows as `fill` does, but block by block.

        If any row of a block is missing, one process computes all rows of the block in one call. Only the missing rows
        are written, since other processes may be reading the other rows. The blocks must be disjoint.
        """
        written = 0

        def left(some: Sequence[list[int]]) -> list[list[int]]:
            there_B = self.has(torch.tensor([id_ for block in some for id_ in block], dtype=torch.int64))
            whole = [bool(there_M.all()) for there_M in there_B.split([len(block) for block in some])]
            return [block for block, all_there in zip(some, whole, strict=True) if not all_there]

        def write(some: list[list[int]]) -> None:
            nonlocal written
            for block in some:
                id_M, row_M = torch.tensor(block), make(block)
                new_M = ~self.has(id_M)
                self.write(id_M[new_M], row_M[new_M.to(row_M.device)])
                written += int(new_M.sum())

        self._work.do(blocks, left, lambda block: block[0], write, portion=1)
        return written

    def write(self, id_M: Tensor, row_M: Tensor) -> None:
        row_M = row_M.to("cpu", self.dtype).contiguous().view(len(id_M), *self.shape[1:])
        self._byte_NK[id_M.numpy()] = row_M.view(len(id_M), -1).view(torch.uint8).numpy()
        fault.point("rows.sum")
        self._sum_N[id_M] = self._sums(id_M)
        self._known_N[id_M] = True
        fault.point("rows.done")

    def read(self, id_B: Tensor) -> Tensor:
        """Return copies of the rows, made by numpy, since torch's threads would wait for each other on a busy CPU."""
        stride_BK = torch.from_numpy(np.take(self._stride_NK, id_B.numpy(), axis=0))
        return stride_BK[:, : self._byte_NK.shape[1]].view(self.dtype).view(len(id_B), *self.shape[1:])

    def read_into(self, ids: Sequence[int], out_B: Tensor) -> bool:
        """Copy the rows in the calling thread, without torch's threads; return False if a row is missing."""
        if not bool(self.has(torch.tensor(ids, dtype=torch.int64)).all()):
            return False
        byte_BK = out_B.view(len(ids), -1).view(torch.uint8).numpy()
        for index, id_ in enumerate(ids):
            byte_BK[index] = self._byte_NK[id_]
        return True

    def _sums(self, id_M: Tensor) -> Tensor:
        """Return a 64-bit checksum over the stamp, the row's index and the row. Zero is reserved for missing rows."""
        raise NotImplementedError


class DiskRows(Rows):
    """Rows in a memory-mapped file that all processes share."""

    def __init__(self, file: Path, content: Content) -> None:
        size = content.file_bytes
        if not file.exists():
            make_file(file, content)
        with file.open("rb") as opened:
            head = opened.read(len(content.head))
        remake = f"delete this file, and its {content.words} will be computed again"
        if not head.startswith(_FORMAT):
            raise damaged(file, "or was written by an earlier version of tintype", remake)
        if (found := file.stat().st_size) != size:
            raise damaged(file, f"the file has {found} bytes, but must have {size} for these {content.words}", remake)
        if head != content.head:
            raise UserError(f"{file} contains other {content.words}", remake)
        self.file = file
        work = SharedWork(content.words, lambda: os.open(file, os.O_RDWR | os.O_CLOEXEC))
        super().__init__(map_file(file, size), content, content.row_bytes // content.shape[0], work)

    def flush(self) -> None:
        with self.file.open("rb+") as file:
            os.fsync(file.fileno())

    def _sums(self, id_M: Tensor) -> Tensor:
        """Return the first 64 bits of each row's SHA-256."""
        sums = []
        for id_ in id_M.tolist():
            total = hashlib.sha256(self._stamp + id_.to_bytes(8, "little"))
            total.update(self._byte_NK[id_])
            sums.append(int.from_bytes(total.digest()[:SUM_BYTES], "little", signed=True) or 1)
        return torch.tensor(sums, dtype=torch.int64)


def map_file(file: Path, size: int) -> Tensor:
    """Map a file of this size into memory, so that writes to the memory change the file."""
    with as_user_error(RuntimeError, f"cannot map {file} into memory"):
        return torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)


class _Images(Protocol):
    def __len__(self) -> int: ...

    def images(self, ids: Sequence[int]) -> Tensor: ...


def fingerprint(source: _Images) -> str:
    """Return a hash of three images, which changes if the code that draws or decodes images changes."""
    some = sorted({0, len(source) // 2, len(source) - 1})
    return hashlib.sha256(source.images(some).cpu().contiguous().numpy().data).hexdigest()


def make_file(file: Path, content: Content) -> None:
    """Make an empty file with its full size. The file gets its final name only when it is complete."""
    size = content.file_bytes
    advice = f"free some, set TINTYPE_CACHE to a folder with room, or {content.otherwise}"
    with as_user_error(OSError, f"cannot create {file} with {gigabytes(size)} ({size} bytes)", advice):
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(file.parent)
        if size > (free := shutil.disk_usage(file.parent).free):
            raise UserError(
                f"the {content.words} need {gigabytes(size)} ({size} bytes) in {file.parent}, where only "
                f"{gigabytes(free)} are free",
                advice,
            )
        made = file.with_name(f"{secrets.token_hex(6)}.making")
        try:
            with made.open("xb") as opened:
                _take_room(opened.fileno(), size)
                opened.write(content.head)
            _put_in_place(made, file)
        finally:
            made.unlink(missing_ok=True)


def _put_in_place(made: Path, file: Path) -> None:
    """Move a finished file to its final path, unless another process has put its own file there."""
    try:
        os.link(made, file)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        made.replace(file)


def _remove_leftovers(folder: Path) -> None:
    """Remove killed processes' unfinished files, which are older than an hour. Making a file never takes an hour."""
    for left in folder.glob("*.making"):
        if time.time() - left.stat().st_mtime > _LEFT_S:
            left.unlink(missing_ok=True)


def _take_room(descriptor: int, size: int) -> None:
    """Allocate the blocks of the file now, since writing to a mapped file on a full disk would kill the process."""
    if sys.platform == "darwin":
        os.ftruncate(descriptor, size)
    else:
        os.posix_fallocate(descriptor, 0, size)


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
