"""A teacher's tokens of the training data, kept by the id of the image.

A frozen teacher says the same of an image in every epoch. Tokens are kept in fp16, and with a cache they always pass
through fp16, so that it makes no difference to a run whether a row was there or had to be computed.

B: pictures. N: images of the data. M: those whose tokens are missing. L: tokens. D: width of the teacher.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.seams import ImageSource
from tintype.transfer import send
from tintype.vision.teachers import Teacher
from tintype.vision.weights import cache_folder

CacheKind = Literal["none", "memory", "disk"]

_CPU_BATCH = 16
"""Pictures that the network sees at once on a CPU, always, since kernels round by the batch's size."""
_PRESENT = 1 << 62
"""Added to the sum over a row that is there; zero stands for one that is not."""
_LEFT_S = 3600


class Rows(Protocol):
    """Tokens of each image, fp16 [L, D]."""

    def has(self, id_B: Tensor) -> Tensor: ...
    def write(self, id_M: Tensor, row_MLD: Tensor) -> None: ...
    def read(self, id_B: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class KeptTokens:
    """Asks the teacher for what is not there yet."""

    teacher: Teacher
    rows: Rows

    def __call__(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor:
        """Float32 [B, L, D] on the pictures' device, of numbers that fp16 has."""
        id_B = torch.tensor(ids, dtype=torch.int64)
        place_of = {ids[place]: place for place in (~self.rows.has(id_B)).nonzero()[:, 0].tolist()}
        if place_of:
            missing_BCHW = image_BCHW[torch.tensor(list(place_of.values()), device=image_BCHW.device)]
            self.rows.write(torch.tensor(list(place_of)), self._computed(missing_BCHW, len(ids)))
        return send(self.rows.read(id_B), image_BCHW.device).to(torch.float32)

    def _computed(self, image_MCHW: Tensor, batch: int) -> Tensor:
        """A GPU too sees batches of one size: those of the run."""
        token_MLD = self.teacher.tokens(image_MCHW, _CPU_BATCH if image_MCHW.device.type == "cpu" else batch)
        row_MLD = token_MLD.to(torch.float16)
        if not row_MLD.isfinite().all():
            raise UserError(
                f"the teacher {self.teacher.words} gave tokens up to {float(token_MLD.abs().max()):g}, which fp16 "
                "cannot hold, and so no cache; set its cache to none"
            )
        return row_MLD


class MemoryRows:
    def __init__(self, shape: tuple[int, int, int], device: torch.device) -> None:
        self._row_NLD = torch.empty(shape, dtype=torch.float16, device=device)
        self._have_N = torch.zeros(shape[0], dtype=torch.bool)

    def has(self, id_B: Tensor) -> Tensor:
        return self._have_N[id_B]

    def write(self, id_M: Tensor, row_MLD: Tensor) -> None:
        self._row_NLD[id_M.to(row_MLD.device)] = row_MLD
        self._have_N[id_M] = True

    def read(self, id_B: Tensor) -> Tensor:
        return self._row_NLD[send(id_B, self._row_NLD.device)]


class DiskRows:
    """A file that is mapped into memory and shared by all processes: for each image a sum, then for each its row.

    The sum is written after the row and says that it is there. It is compared when a process first reads the row, so
    that what a crash of the machine left unwritten is computed again.
    """

    def __init__(self, file: Path, shape: tuple[int, int, int]) -> None:
        count = shape[0]
        size = _file_bytes(shape)
        if not file.exists():
            _make(file, size)
        if (found := file.stat().st_size) != size:
            raise UserError(
                f"{file} has {found} bytes, but a cache of these teacher tokens has {size}: it is damaged; delete it, "
                "and it will be made anew"
            )
        try:
            mapped = torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)
        except RuntimeError as error:
            raise UserError(f"cannot map {file} into memory: {error}") from None
        self._sum_N = mapped[: 8 * count].view(torch.int64)
        self._row_NLD = mapped[8 * count :].view(torch.float16).view(shape)
        self._known_N = torch.zeros(count, dtype=torch.bool)

    def has(self, id_B: Tensor) -> Tensor:
        new = id_B[~self._known_N[id_B]]
        new = new[self._sum_N[new] != 0]
        if len(new):
            self._known_N[new] = _sums(self._row_NLD[new]) == self._sum_N[new]
        return self._known_N[id_B]

    def write(self, id_M: Tensor, row_MLD: Tensor) -> None:
        row_MLD = row_MLD.cpu()
        self._row_NLD[id_M] = row_MLD
        self._sum_N[id_M] = _sums(row_MLD)
        self._known_N[id_M] = True

    def read(self, id_B: Tensor) -> Tensor:
        return self._row_NLD[id_B]


def _sums(row_MLD: Tensor) -> Tensor:
    return row_MLD.view(torch.int16).sum(dim=(1, 2), dtype=torch.int64) + _PRESENT


_in_memory: dict[tuple[str, torch.device], MemoryRows] = {}
"""Shared by the runs of a process: the arms and seeds of a study have the same images."""


def keep_tokens(
    kind: Literal["memory", "disk"], teacher: Teacher, source: ImageSource, data_key: str, device: torch.device
) -> KeptTokens:
    """Room for the tokens of all images of a source, or a `UserError` where there is none."""
    key = _key(teacher, source, data_key, device)
    shape = (len(source), teacher.grid[0] * teacher.grid[1], teacher.width)
    if kind == "disk":
        return KeptTokens(teacher, DiskRows(cache_folder() / "teacher" / f"{key}.tokens", shape))
    here = (key, device)
    if here not in _in_memory:
        _find_memory(shape, device)
        _in_memory[here] = MemoryRows(shape, device)
    return KeptTokens(teacher, _in_memory[here])


def forget_tokens(kept: KeptTokens) -> None:
    """Lets go of what is held in memory; what is on the disk stays."""
    for key in [key for key, rows in _in_memory.items() if rows is kept.rows]:
        del _in_memory[key]


def _key(teacher: Teacher, source: ImageSource, data_key: str, device: torch.device) -> str:
    """Names what decides every row: a few pictures of the data stand for how it is drawn or decoded."""
    some = sorted({0, len(source) // 2, len(source) - 1})
    pictures = hashlib.sha256(source.images(some).cpu().contiguous().numpy().data).hexdigest()
    content = json.dumps([teacher.identity, data_key, pictures, teacher.grid, len(source), device.type])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _row_bytes(shape: tuple[int, int, int]) -> int:
    return 2 * shape[0] * shape[1] * shape[2]


def _file_bytes(shape: tuple[int, int, int]) -> int:
    return 8 * shape[0] + _row_bytes(shape)


def _find_memory(shape: tuple[int, int, int], device: torch.device) -> None:
    """What earlier runs left is given up for it."""
    need = _row_bytes(shape)
    if need > _free_bytes(device):
        _in_memory.clear()
    if need > (free := _free_bytes(device)):
        raise UserError(
            f"the teacher's tokens of {shape[0]} images need {_gigabytes(need)} of memory on {device}, which has "
            f"{_gigabytes(free)} free; set the cache to disk or none"
        )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    memory = Path("/proc/meminfo")
    if memory.exists():
        fields = dict(line.split(":", 1) for line in memory.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _make(file: Path, size: int) -> None:
    """An empty file of its full size, in place only when it is whole."""
    advice = "; free some, set TINTYPE_CACHE to a folder with room, or set the cache to memory or none"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(file.parent)
        if size > (free := shutil.disk_usage(file.parent).free):
            raise UserError(
                f"the teacher's tokens need {_gigabytes(size)} ({size} bytes) in {file.parent}, where "
                f"{_gigabytes(free)} are free{advice}"
            )
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".making", delete=False) as made:
            try:
                _take_room(made.fileno(), size)
                Path(made.name).chmod(0o666 & ~_umask())
                Path(made.name).replace(file)
            except OSError:
                Path(made.name).unlink()
                raise
    except OSError as error:
        raise UserError(f"cannot make {file} of {_gigabytes(size)} ({size} bytes): {error.strerror}{advice}") from None


def _remove_leftovers(folder: Path) -> None:
    """What a process left that was killed while it made a file: none takes an hour for that."""
    for left in folder.glob("*.making"):
        if time.time() - left.stat().st_mtime > _LEFT_S:
            left.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _take_room(descriptor: int, size: int) -> None:
    """Takes the blocks now: to write to a mapped file when the disk is full kills the process."""
    if sys.platform == "darwin":
        os.ftruncate(descriptor, size)
    else:
        os.posix_fallocate(descriptor, 0, size)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
