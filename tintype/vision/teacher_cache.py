"""Tokens of the training images by a frozen teacher, cached by the id of the image.

They are the same in every epoch. A cache stores them in fp16, and with a cache they always pass through fp16, so that
it makes no difference to a run whether a row was there or had to be computed.

B: images. N: images of the data. M: those whose tokens are missing. L: tokens. D: width of the teacher.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from tintype.errors import UserError
from tintype.runtime.cache import cache_folder
from tintype.runtime.memory import checked_memory
from tintype.runtime.rows import Content, DiskRows, fingerprint, gigabytes
from tintype.runtime.transfer import send
from tintype.seams import ImageSource
from tintype.vision.part import Grid, Teacher

CacheKind = Literal["none", "memory", "disk"]

_CPU_BATCH = 16
"""Images that the network sees at once on a CPU, always, since kernels round by the batch's size."""


@dataclass(frozen=True)
class TeacherCache:
    """Tokens of all images of a source; those that are missing are computed."""

    teacher: Teacher
    rows: MemoryRows | DiskRows
    """Tokens of each image, fp16 [L, D]. Where images have several shapes, L is the most; zeros fill up the others."""

    def __call__(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor:
        """Return float32 [B, L, D] on the images' device, of numbers that fp16 has."""
        id_B = torch.tensor(ids, dtype=torch.int64)
        place_of = {ids[place]: place for place in (~self.rows.has(id_B)).nonzero()[:, 0].tolist()}
        if place_of:
            missing_BCHW = image_BCHW[torch.tensor(list(place_of.values()), device=image_BCHW.device)]
            self.rows.write(torch.tensor(list(place_of)), self._computed(missing_BCHW, len(ids)))
        tokens = self.teacher.grid[0] * self.teacher.grid[1]
        return send(self.rows.read(id_B), image_BCHW.device)[:, :tokens].to(torch.float32)

    def at_grid(self, teacher: Teacher) -> TeacherCache:
        """Return the same rows with the teacher of another of the grids that they are for."""
        return replace(self, teacher=teacher)

    def _computed(self, image_MCHW: Tensor, batch: int) -> Tensor:
        """Compute tokens in batches of one size: on a GPU those of the run."""
        with checked_memory():
            token_MLD = self.teacher.tokens(image_MCHW, _CPU_BATCH if image_MCHW.device.type == "cpu" else batch)
        row_MLD = token_MLD.to(torch.float16)
        if not row_MLD.isfinite().all():
            raise UserError(
                f"the teacher {self.teacher.words} gave tokens up to {float(token_MLD.abs().max()):g}, which fp16 "
                "cannot hold, and so no cache; set its cache to none"
            )
        return pad(row_MLD, (0, 0, 0, self.rows.shape[1] - row_MLD.shape[1]))


class MemoryRows:
    def __init__(self, shape: tuple[int, int, int], device: torch.device) -> None:
        self.shape = shape
        self._row_NLD = torch.empty(shape, dtype=torch.float16, device=device)
        self._have_N = torch.zeros(shape[0], dtype=torch.bool)

    def has(self, id_B: Tensor) -> Tensor:
        return self._have_N[id_B]

    def write(self, id_M: Tensor, row_M: Tensor) -> None:
        self._row_NLD[id_M.to(row_M.device)] = row_M
        self._have_N[id_M] = True

    def read(self, id_B: Tensor) -> Tensor:
        return self._row_NLD[send(id_B, self._row_NLD.device)]


_in_memory: dict[tuple[str, torch.device], MemoryRows] = {}
"""Shared by the runs of a process: the arms and seeds of a study have the same images."""


def open_teacher_cache(
    kind: Literal["memory", "disk"],
    teacher: Teacher,
    source: ImageSource,
    data_key: str,
    device: torch.device,
    grids: Sequence[Grid] = (),
) -> TeacherCache:
    """Open the cache of all images of a source, or make it; raise a `UserError` where there is no room.

    `grids` are those of the source's images, where they have several shapes. An image has one of them, so the same rows
    serve all: `TeacherCache.at_grid`.
    """
    decides = [teacher.identity, data_key, fingerprint(source), teacher.grid, len(source), device.type]
    decides += [list(grids)] if grids else []
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]
    tokens = max(rows * columns for rows, columns in (teacher.grid, *grids))
    shape = (len(source), tokens, teacher.width)
    stamp = bytes.fromhex(key)
    content = Content("teacher's tokens", shape, torch.float16, "set the cache to memory or none", stamp)
    if kind == "disk":
        return TeacherCache(teacher, DiskRows(cache_folder() / "teacher" / f"{key}.tokens", content))
    here = (key, device)
    if here not in _in_memory:
        _check_memory(content, device)
        _in_memory[here] = MemoryRows(shape, device)
    return TeacherCache(teacher, _in_memory[here])


def forget_teacher_cache(kept: TeacherCache) -> None:
    """Release what is held in memory; what is on the disk stays."""
    for key in [key for key, rows in _in_memory.items() if rows is kept.rows]:
        del _in_memory[key]


def _check_memory(content: Content, device: torch.device) -> None:
    """Refuse what does not fit into memory. Tokens of earlier runs are released for it."""
    need = content.row_bytes
    if need > _free_bytes(device):
        _in_memory.clear()
    if need > (free := _free_bytes(device)):
        raise UserError(
            f"the teacher's tokens of {content.shape[0]} images need {gigabytes(need)} of memory on {device}, which "
            f"has {gigabytes(free)} free; set the cache to disk or none"
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
