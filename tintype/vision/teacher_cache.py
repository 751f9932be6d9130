"""Tokens of the training images by a frozen teacher, cached by the id of the image.

They are the same in every epoch. A cache stores them in fp16, and with a cache they always pass through fp16, so that
it makes no difference to a run whether a row was there or had to be computed. All processes of a machine read the same
rows, in its memory or on its disk, and each row is computed by one of them.

B: images. N: images of the data. M: those whose tokens are missing. L: tokens. D: width of the teacher.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from tintype.errors import UserError
from tintype.runtime.cache import cache_folder
from tintype.runtime.memory import checked_memory
from tintype.runtime.rows import PORTION, Content, DiskRows, Rows, fingerprint
from tintype.runtime.shared import open_rows
from tintype.runtime.transfer import ReadAhead, send
from tintype.seams import ImageSource
from tintype.vision.part import Grid, Teacher

CacheKind = Literal["none", "memory", "disk"]

_CPU_BATCH = 16
"""Images that the network sees at once on a CPU, always, since kernels round by the batch's size."""
CACHED_TEACHER_BATCH = 64
"""Images that it sees at once on a GPU, at most: memory that its activations take is not the denoiser's."""
_AHEAD_ON = frozenset({"cuda"})
"""Kinds of devices for which rows are read ahead; a CPU would have to do it itself."""


@dataclass(frozen=True)
class TeacherCache:
    """Tokens of all images of a source; those that are missing are computed."""

    teacher: Teacher
    rows: Rows
    """Tokens of each image, fp16 [L, D]. Where images have several shapes, L is the most; zeros fill up the others."""
    batch: int
    """Images that the network sees at once, always."""
    ahead: ReadAhead | None = None

    def fill(self, ids: Sequence[int], images: Callable[[Sequence[int]], Tensor]) -> int:
        """Compute the tokens that are missing, and return how many images they are of. `images` gives them by id."""
        portion = self.batch * max(1, PORTION // self.batch)
        return self.rows.fill(ids, lambda missing: self._computed(images(missing)), portion)

    def expect(self, ids: Sequence[int]) -> None:
        """Begin to read the tokens of a batch that is asked for next."""
        if self.ahead is not None:
            self.ahead.expect(ids)

    def __call__(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor:
        """Return float32 [B, L, D] on the images' device, of numbers that fp16 has."""
        row_BLD = None if self.ahead is None else self.ahead.take(ids)
        if row_BLD is None:
            place_of = {id_: place for place, id_ in enumerate(ids)}

            def images(some: Sequence[int]) -> Tensor:
                return image_BCHW[torch.tensor([place_of[id_] for id_ in some], device=image_BCHW.device)]

            self.fill(ids, images)
            row_BLD = send(self.rows.read(torch.tensor(ids, dtype=torch.int64)), image_BCHW.device)
        tokens = self.teacher.grid[0] * self.teacher.grid[1]
        return row_BLD[:, :tokens].to(torch.float32)

    def at_grid(self, teacher: Teacher) -> TeacherCache:
        """Return the same rows with the teacher of another of the grids that they are for."""
        return replace(self, teacher=teacher)

    def _computed(self, image_MCHW: Tensor) -> Tensor:
        with checked_memory(), torch.no_grad():
            token_MLD = self.teacher.tokens(image_MCHW, self.batch)
        row_MLD = token_MLD.to(torch.float16)
        if not row_MLD.isfinite().all():
            raise UserError(
                f"the teacher {self.teacher.words} gave tokens up to {float(token_MLD.abs().max()):g}, which fp16 "
                "cannot hold, and so no cache; set its cache to none"
            )
        return pad(row_MLD, (0, 0, 0, self.rows.shape[1] - row_MLD.shape[1]))


_in_memory: dict[bytes, tuple[str, Rows]] = {}
"""Rows by their stamp, with the images that they are of: the arms and seeds of a study have the same images."""


def open_teacher_cache(
    kind: Literal["memory", "disk"],
    teacher: Teacher,
    source: ImageSource,
    data_key: str,
    device: torch.device,
    grids: Sequence[Grid] = (),
    batch: int = _CPU_BATCH,
) -> TeacherCache:
    """Open the cache of all images of a source, or make it; raise a `UserError` where there is no room.

    `grids` are those of the source's images, where they have several shapes. An image has one of them, so the same rows
    serve all: `TeacherCache.at_grid`. On a GPU the teacher runs in batches of `batch` images, `CACHED_TEACHER_BATCH` at
    most; the rows of another batch are others, and so are those of another GPU.
    """
    images = fingerprint(source)
    decides: list[object] = [teacher.identity, data_key, images, teacher.grid, len(source), device.type]
    decides += [list(grids)] if grids else []
    if device.type == "cpu":
        batch = _CPU_BATCH
        decides += [torch.get_num_threads()] if kind == "memory" else []
    else:
        batch = min(batch, CACHED_TEACHER_BATCH)
        decides += [batch, torch.__version__, torch.cuda.get_device_name(device)]
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]
    tokens = max(rows * columns for rows, columns in (teacher.grid, *grids))
    shape = (len(source), tokens, teacher.width)
    words, stamp = "teacher's tokens", bytes.fromhex(key)
    if kind == "disk":
        content = Content(words, shape, torch.float16, "set the cache to memory or none", stamp)
        rows: Rows = DiskRows(cache_folder() / "teacher" / f"{key}.tokens", content)
    else:
        words += f" of {len(source)} images"
        rows = _memory_rows(images, Content(words, shape, torch.float16, "set the cache to disk or none", stamp))
    ahead = ReadAhead(rows.read_into, shape[1:], rows.dtype, device) if device.type in _AHEAD_ON else None
    return TeacherCache(teacher, rows, batch, ahead)


def _memory_rows(images: str, content: Content) -> Rows:
    """Return the rows in memory. Those of other images are released, and all that no run uses if there is no room."""
    if content.stamp not in _in_memory:
        for other in [other for other, (of, _) in _in_memory.items() if of != images]:
            del _in_memory[other]
        try:
            rows = open_rows(content)
        except UserError:
            _in_memory.clear()
            rows = open_rows(content)
        _in_memory[content.stamp] = images, rows
    return _in_memory[content.stamp][1]


def forget_teacher_cache(kept: TeacherCache) -> None:
    """Release what is held in memory; what is on the disk stays."""
    for key in [key for key, (_, rows) in _in_memory.items() if rows is kept.rows]:
        del _in_memory[key]


def forget_teacher_caches() -> None:
    """Release all that no run uses, as for another study."""
    _in_memory.clear()
