"""Rows of numbers, one for each image of the data, in a file that is mapped into memory.

What a frozen network says of an image is computed once and kept by the image's id: a teacher's tokens, a tokenizer's
latents.

B: images asked for. M: those whose rows are written. N: images of the data.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tintype.errors import UserError, as_user_error
from tintype.runtime import fault
from tintype.runtime.files import damaged

_FORMAT = b"tintype rows 2\n\0"
"""The first bytes of the file. Earlier files had none, and sums that swapped numbers or rows did not change."""
_SUM_BYTES = 8
_LEFT_S = 3600


@dataclass(frozen=True)
class Content:
    """Content of a file of rows."""

    words: str
    """Names it in errors, in the plural."""
    shape: tuple[int, ...]
    """[N, …]"""
    dtype: torch.dtype
    otherwise: str
    """Advice to a user without room on the disk."""
    stamp: bytes = b""
    """Stands at the head of the file and says which rows these are; of a multiple of 8 bytes."""

    @property
    def head(self) -> bytes:
        """The file's first bytes."""
        return _FORMAT + self.stamp

    @property
    def row_bytes(self) -> int:
        """Size of all rows, without their checksums."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def file_bytes(self) -> int:
        return len(self.head) + _SUM_BYTES * self.shape[0] + self.row_bytes


class DiskRows:
    """A memory-mapped file that all processes share: a head, for each image a checksum, for each its row.

    The checksum is written after the row and says that it is there. It is compared when a process first reads the row,
    so that a row that a crash left unwritten, that is damaged or that lies in another's place is computed again.
    """

    def __init__(self, file: Path, content: Content) -> None:
        count, size = content.shape[0], content.file_bytes
        if not file.exists():
            make_file(file, content)
        with file.open("rb") as opened:
            head = opened.read(len(content.head))
        remake = f"delete it, and its {content.words} will be computed again"
        if not head.startswith(_FORMAT):
            raise damaged(file, "or was written by an earlier version of tintype", remake)
        if (found := file.stat().st_size) != size:
            raise damaged(file, f"it has {found} bytes, and a file of these {content.words} has {size}", remake)
        if head != content.head:
            raise UserError(f"{file} holds the {content.words} of something else; {remake}")
        with as_user_error(RuntimeError, f"cannot map {file} into memory"):
            mapped = torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)
        first = len(head)
        rows = first + _SUM_BYTES * count
        self.file, self.shape, self._stamp = file, content.shape, content.stamp
        self._sum_N = mapped[first:rows].view(torch.int64)
        self._row_N = mapped[rows:].view(content.dtype).view(content.shape)
        self._byte_NK = mapped[rows:].view(count, -1).numpy()
        self._known_N = torch.zeros(count, dtype=torch.bool)

    @property
    def count(self) -> int:
        """Rows that were written, damaged ones too."""
        return int((self._sum_N != 0).sum())

    def has(self, id_B: Tensor) -> Tensor:
        new = id_B[~self._known_N[id_B]]
        new = new[self._sum_N[new] != 0]
        if len(new):
            self._known_N[new] = self._sums(new) == self._sum_N[new]
        return self._known_N[id_B]

    def write(self, id_M: Tensor, row_M: Tensor) -> None:
        self._row_N[id_M] = row_M.cpu()
        fault.point("rows.sum")
        self._sum_N[id_M] = self._sums(id_M)
        self._known_N[id_M] = True
        fault.point("rows.done")

    def read(self, id_B: Tensor) -> Tensor:
        return self._row_N[id_B]

    def flush(self) -> None:
        """Return when all that was written is on the disk."""
        with self.file.open("rb+") as file:
            os.fsync(file.fileno())

    def _sums(self, id_M: Tensor) -> Tensor:
        """Return the first 64 bits of SHA-256 over what the file is of, the row's place and the row.

        Zero is left for rows that are not there.
        """
        sums = []
        for id_ in id_M.tolist():
            total = hashlib.sha256(self._stamp + id_.to_bytes(8, "little"))
            total.update(self._byte_NK[id_])
            sums.append(int.from_bytes(total.digest()[:_SUM_BYTES], "little", signed=True) or 1)
        return torch.tensor(sums, dtype=torch.int64)


class _Images(Protocol):
    def __len__(self) -> int: ...

    def images(self, ids: Sequence[int]) -> Tensor: ...


def fingerprint(source: _Images) -> str:
    """Return a hash of a few images, which stand for how all are drawn or decoded."""
    some = sorted({0, len(source) // 2, len(source) - 1})
    return hashlib.sha256(source.images(some).cpu().contiguous().numpy().data).hexdigest()


def make_file(file: Path, content: Content) -> None:
    """An empty file of its full size, in place only when it is whole."""
    size = content.file_bytes
    advice = f"free some, set TINTYPE_CACHE to a folder with room, or {content.otherwise}"
    with as_user_error(OSError, f"cannot make {file} of {gigabytes(size)} ({size} bytes)", advice):
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(file.parent)
        if size > (free := shutil.disk_usage(file.parent).free):
            raise UserError(
                f"the {content.words} need {gigabytes(size)} ({size} bytes) in {file.parent}, where "
                f"{gigabytes(free)} are free; {advice}"
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
    """First writer wins."""
    try:
        os.link(made, file)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        made.replace(file)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes have left; making a file never takes an hour."""
    for left in folder.glob("*.making"):
        if time.time() - left.stat().st_mtime > _LEFT_S:
            left.unlink(missing_ok=True)


def _take_room(descriptor: int, size: int) -> None:
    """Takes the blocks now: to write to a mapped file when the disk is full kills the process."""
    if sys.platform == "darwin":
        os.ftruncate(descriptor, size)
    else:
        os.posix_fallocate(descriptor, 0, size)


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
