"""Cache the tokens of a frozen teacher for the training images, by image id.

The tokens of an image are the same in every epoch. The cache has one row of fp16 tokens per image. With a cache, newly
computed tokens are also rounded to fp16, so that they equal cached tokens. All processes of a machine share the rows,
in memory or on disk, and each row is computed by one process.

On a GPU, rounding depends on the index of an image in its batch. So images are encoded in blocks that depend only on
the data. A row then does not depend on the process that computes it, on the order, or on earlier cache content.

Tensor dimensions are B (images), N (images of the data), M (images whose tokens are computed), L (tokens) and D (width
of the teacher).
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from tintype.data.sources import buckets_of
from tintype.errors import UserError
from tintype.runtime.cache import cache_folder
from tintype.runtime.memory import checked_memory
from tintype.runtime.notes import note_once
from tintype.runtime.rows import Content, DiskRows, Rows, fingerprint
from tintype.runtime.shared import open_rows
from tintype.runtime.transfer import ReadAhead, send
from tintype.seams import ImageSource
from tintype.vision.part import Grid, Teacher

CacheKind = Literal["none", "memory", "disk"]

_CPU_BATCH = 16
"""The fixed batch size of the network on a CPU, since kernels round differently for other batch sizes."""
CACHED_TEACHER_BATCH = 64
"""Largest batch size of the teacher on a GPU. The limit leaves more memory to the denoiser."""
_BLOCKS_AT_ONCE = 16
"""Number of blocks to look up at a time, so that long lists are not searched for each block."""
_AHEAD_ON = frozenset({"cuda"})
"""Device types for which rows are prefetched. On a CPU, prefetching would slow down the training."""


class Blocks:
    """Batches for the teacher, each with up to `size` images of one shape, in the order of their ids."""

    def __init__(self, size: int, bucket_N: Tensor) -> None:
        """Divide the images into blocks. `bucket_N` contains the same number for all images of one shape."""
        sorted_N, order_N = bucket_N.sort(stable=True)
        place_N = torch.arange(len(bucket_N))
        bucket_begin_N = torch.searchsorted(sorted_N, sorted_N)
        begin_N = place_N - (place_N - bucket_begin_N) % size
        self.size, self._order_N = size, order_N
        self._begin_N = torch.empty_like(order_N).index_put((order_N,), begin_N)
        self._bounds = [*begin_N.unique().tolist(), len(bucket_N)]

    def holding(self, ids: Sequence[int]) -> list[list[int]]:
        """Return all blocks that contain any of these images, without duplicates."""
        begins = self._begin_N[torch.tensor(ids, dtype=torch.int64)].unique().tolist()
        ends = (self._bounds[bisect_right(self._bounds, begin)] for begin in begins)
        return [self._order_N[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]


@dataclass(frozen=True)
class TeacherCache:
    """The teacher's tokens for all images of a source. Missing tokens are computed on request."""

    teacher: Teacher
    rows: Rows
    """Tokens of each image, fp16 [L, D]. With several shapes, L is the maximum, and shorter rows are zero-padded."""
    blocks: Blocks
    """Blocks whose size is the fixed batch size of the network."""
    ahead: ReadAhead | None = None

    def fill(self, ids: Sequence[int], images: Callable[[Sequence[int]], Tensor]) -> int:
        """Compute the missing tokens of all blocks with these images, which `images` returns by id.

        Return the number of images whose tokens this process has stored.
        """
        blocks = self.blocks.holding(ids)
        portions = (blocks[first : first + _BLOCKS_AT_ONCE] for first in range(0, len(blocks), _BLOCKS_AT_ONCE))
        return sum(self.rows.fill_blocks(some, lambda block: self._computed(images(block))) for some in portions)

    def expect(self, ids: Sequence[int]) -> None:
        """Prefetch the tokens of these images, which are the next training batch."""
        if self.ahead is not None:
            self.ahead.expect(ids)

    def __call__(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor:
        """Return float32 [B, L, D] on the images' device, with values rounded to fp16.

        Missing tokens are computed from `image_BCHW`, but not stored, since a training batch is not a block.
        """
        row_BLD = None if self.ahead is None else self.ahead.take(ids)
        if row_BLD is None:
            missing = self.rows.missing(ids)
            row_BLD = self.rows.read(torch.tensor(ids, dtype=torch.int64))
            if missing:
                note_once(
                    f"missing {self.rows.words}",
                    f"some {self.rows.words} are missing in a step, damaged or not computed before it; steps compute "
                    "them anew and do not store them, on a GPU with other last digits",
                )
                place_M = torch.tensor([list(ids).index(id_) for id_ in missing], device=image_BCHW.device)
                row_MLD = self._computed(image_BCHW[place_M]).to(row_BLD.device)
                for id_, row_LD in zip(missing, row_MLD, strict=True):
                    row_BLD[torch.tensor(ids) == id_] = row_LD
            row_BLD = send(row_BLD, image_BCHW.device)
        tokens = self.teacher.grid[0] * self.teacher.grid[1]
        return row_BLD[:, :tokens].to(torch.float32)

    def at_grid(self, teacher: Teacher) -> TeacherCache:
        """Return a cache with the same rows for a teacher with another grid, which must be a grid of the source."""
        return replace(self, teacher=teacher)

    def _computed(self, image_MCHW: Tensor) -> Tensor:
        with checked_memory(), torch.no_grad():
            token_MLD = self.teacher.tokens(image_MCHW, self.blocks.size)
        row_MLD = token_MLD.to(torch.float16)
        if not row_MLD.isfinite().all():
            raise UserError(
                f"the teacher {self.teacher.words} gave tokens with values up to "
                f"{float(token_MLD.abs().max()):g}, which fp16 cannot represent, so its tokens cannot be cached",
                "set cache=none for this loss",
            )
        return pad(row_MLD, (0, 0, 0, self.rows.shape[1] - row_MLD.shape[1]))


_in_memory: dict[bytes, tuple[str, Rows]] = {}
"""Rows by stamp, with their images. A study's arms and seeds share them, since they have the same images."""


def open_teacher_cache(
    kind: Literal["memory", "disk"],
    teacher: Teacher,
    source: ImageSource,
    data_key: str,
    device: torch.device,
    grids: Sequence[Grid] = (),
    batch: int = _CPU_BATCH,
) -> TeacherCache:
    """Open or create the cache for all images of a source. Raise a `UserError` if memory or disk space is too small.

    `grids` are the grids of the source's images, if they have several shapes. An image has exactly one of these grids,
    so all grids share the rows (`TeacherCache.at_grid`). On a GPU, a block has `batch` images, but at most
    `CACHED_TEACHER_BATCH`. Rows depend on the block size and the GPU model, so each combination has a separate cache.
    """
    images = fingerprint(source)
    decides: list[object] = [teacher.identity, data_key, images, teacher.grid, len(source), device.type]
    decides += [list(grids)] if grids else []
    if device.type == "cpu":
        batch = _CPU_BATCH
        decides += [torch.get_num_threads()] if kind == "memory" else []
    else:
        batch = min(batch, CACHED_TEACHER_BATCH)
        decides += ["blocks", batch, torch.__version__, torch.cuda.get_device_name(device)]
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
    bucket_N = buckets_of(source)
    blocks = Blocks(batch, torch.zeros(len(source), dtype=torch.uint8) if bucket_N is None else bucket_N)
    return TeacherCache(teacher, rows, blocks, ahead)


def _memory_rows(images: str, content: Content) -> Rows:
    """Return the rows in memory. Release other images' rows and, if memory is short, all rows that no run uses."""
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
    """Release the rows of a cache that are in memory. Rows on disk are not removed."""
    for key in [key for key, (_, rows) in _in_memory.items() if rows is kept.rows]:
        del _in_memory[key]


def forget_teacher_caches() -> None:
    """Release all rows that no run uses, for example before another study."""
    _in_memory.clear()
