"""Scenes that the workers of a study render once for all of them, in memory-mapped files in the study's folder.

A row is one image, with a checksum that is written after it. Whoever renders an image holds the lock of its byte in a
second file meanwhile; locks fall with their process. So no two workers render the same image at a time, and what a
killed one left is rendered again. An image does not depend on the batch that it is drawn in: the bytes are the same
whoever renders it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.runtime.cache import stamp_of
from tintype.runtime.locks import taking_turns
from tintype.runtime.notes import note_once
from tintype.runtime.rows import Content, DiskRows

MOST_BYTES = 4 << 30
"""Size of all files together; sets of scenes that are opened later are rendered by each worker for itself."""
_PORTION = 64
"""Images that a worker takes at a time: enough for one call, and some are left for the others."""
_folder: Path | None = None


@contextmanager
def shared_folder(folder: Path | None) -> Iterator[None]:
    """Make an empty folder for the workers' scenes, and remove it at the end; do nothing for None."""
    if folder is None:
        yield
        return
    shutil.rmtree(folder, ignore_errors=True)  # of a study that was killed
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def share_scenes(folder: Path | None) -> None:
    """Share the scenes that this process opens from now on with all processes that have the same folder."""
    global _folder
    _folder = folder


def open_shared(made_of: Mapping[str, object], count: int, size_px: int) -> SharedScenes | None:
    """Return the shared images of a set of scenes; None where nothing is shared, or there is no room."""
    stamp = stamp_of(made_of)
    content = Content("scenes", (count, 3, size_px, size_px), torch.uint8, "use --jobs 1", stamp)
    if _folder is None or not _folder.is_dir():
        return None
    try:
        with taking_turns(_folder / "opening"):  # so that two workers do not take the same room
            file = _folder / f"{stamp.hex()[:24]}.rows"
            taken = sum(one.stat().st_size for one in _folder.glob("*.rows"))
            fits = file.exists() or taken + content.file_bytes <= MOST_BYTES
            return SharedScenes(file, content) if fits else None
    except (UserError, OSError) as error:  # no room, or a file system without locks
        note_once("shared scenes", f"each worker renders its scenes for itself: {error}")
        return None


class SharedScenes:
    """The images of one set of scenes."""

    def __init__(self, file: Path, content: Content) -> None:
        self.rows = DiskRows(file, content)
        self._locks = os.open(file.with_suffix(".locks"), os.O_RDWR | os.O_CREAT, 0o600)

    def images(self, ids: Sequence[int], render: Callable[[Sequence[int]], Tensor]) -> Tensor:
        """Return the images, on the CPU; render those that no worker has rendered."""
        id_B = torch.tensor(ids, dtype=torch.int64)
        while left := id_B[~self.rows.has(id_B)].unique().tolist():
            mine = self._take(left)
            try:
                missing_M = torch.tensor(mine)[~self.rows.has(torch.tensor(mine))]
                if len(missing_M):
                    self.rows.write(missing_M, render(missing_M.tolist()))
            finally:
                fcntl.lockf(self._locks, fcntl.LOCK_UN)  # all of this process
        return self.rows.read(id_B)

    def _take(self, ids: Sequence[int]) -> list[int]:
        """Lock some images that no other worker is rendering; where there are none, wait for one."""
        mine: list[int] = []
        for id_ in ids:
            if len(mine) < _PORTION and self._lock(id_, fcntl.LOCK_NB):
                mine.append(id_)
        if not mine and self._lock(ids[0], 0):
            mine.append(ids[0])
        return mine

    def _lock(self, id_: int, more: int) -> bool:
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | more, 1, id_)
        except BlockingIOError:
            return False
        return True
