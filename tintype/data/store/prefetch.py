"""Prefetch batches, in threads that write into the batch itself.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.data.buckets import Shape
from tintype.data.decoding.threads import decoding_pool

_MOST_PREFETCHED_BYTES = 1 << 30
_TASKS_PER_THREAD = 4
"""Tasks of a batch per thread: enough that no thread waits long, few enough that handing them out takes no time."""


@dataclass(frozen=True)
class _UnderWay:
    image_BCHW: Tensor
    tasks: Sequence[Future[None]]

    def result(self) -> Tensor:
        for task in self.tasks:
            task.result()
        return self.image_BCHW

    def drop(self) -> None:
        for task in self.tasks:
            task.cancel()


class Prefetch:
    """Prefetched batches, by their ids. A batch that was not prefetched is made at once."""

    def __init__(
        self, write: Callable[[int, Tensor], None], shape: Callable[[int], Shape], threads: int, pinned: bool
    ) -> None:
        """`write` writes the image with an id into its row of the batch."""
        self._write, self._shape, self._pinned, self.threads = write, shape, pinned, threads
        self._pool = decoding_pool(threads)
        self._begun: dict[tuple[int, ...], _UnderWay] = {}

    def expect(self, ids: Sequence[int]) -> None:
        """Prefetch a batch, unless those under way take much memory: one is always prefetched."""
        if not ids or tuple(ids) in self._begun:
            return
        if self._begun and sum(one.image_BCHW.numel() for one in self._begun.values()) > _MOST_PREFETCHED_BYTES:
            return
        self._begun[tuple(ids)] = self._begin(ids)

    def take(self, ids: Sequence[int]) -> Tensor:
        """Return the batch, in pinned memory where there is a GPU.

        Batches that were expected before it are dropped, since batches are taken in the order in which they are
        expected; those after it stay.
        """
        wanted = tuple(ids)
        if wanted not in self._begun:
            return self._begin(ids).result()
        while (earlier := next(iter(self._begun))) != wanted:
            self._begun.pop(earlier).drop()
        return self._begun.pop(wanted).result()

    def _begin(self, ids: Sequence[int]) -> _UnderWay:
        height, width = self._shape(ids[0])
        image_BCHW = torch.empty(len(ids), 3, height, width, dtype=torch.uint8, pin_memory=self._pinned)

        def make(first: int, last: int) -> None:
            for index in range(first, last):
                self._write(ids[index], image_BCHW[index])

        some = -(-len(ids) // (self.threads * _TASKS_PER_THREAD))
        starts = range(0, len(ids), some)
        tasks = [self._pool.submit(make, first, min(first + some, len(ids))) for first in starts]
        return _UnderWay(image_BCHW, tasks)
