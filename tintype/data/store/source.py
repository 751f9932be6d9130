"""A split of a store as a source of images and captions, by id. Threads prefetch batches and write into them directly.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tintype.data.buckets import Shape, nearest_shape
from tintype.data.decoding.processes import decoders
from tintype.data.decoding.threads import PixelBudget, decoding_pool, usual_threads
from tintype.data.fit import covering, stretched
from tintype.data.image_sets import decode
from tintype.data.order import ids_at
from tintype.data.resident import Resident, resident_bytes
from tintype.data.store.layout import Split
from tintype.data.store.selection import refuse_empty
from tintype.data.store.settings import MOST_ON_GPU_BYTES, StoreSettings
from tintype.errors import UserError
from tintype.runtime.identity import check_pin
from tintype.runtime.notes import note_once
from tintype.runtime.transfer import send
from tintype.seams import Record

_MOST_CACHED_BYTES = {"cpu": 1 << 30, "cuda": MOST_ON_GPU_BYTES}
_MOST_CACHED_RECORDS = 1 << 18
_EVAL_ORDER = 0
_MOST_PREFETCHED_BYTES = 1 << 30
_TASKS_PER_THREAD = 4
"""Tasks of a batch per thread: enough to keep all threads busy, few enough for a low scheduling cost."""


class TooSmallError(UserError):
    """An image would have to be enlarged."""


class StoreSource:
    """Decodes images at their first use, and caches them on the device if the whole split fits.

    If the split does not fit, threads prefetch the next batches. With a GPU, each thread has a worker process.

    The training split is in the store's order. The evaluation split is in a fixed random order, so that its first
    images are a random sample, even if the store is sorted.
    """

    def __init__(
        self,
        settings: StoreSettings,
        split: Split,
        device: torch.device,
        keep: bool = True,
        threads: int | None = None,
        processes: bool | None = None,
        stage_shapes: Sequence[Shape] | None = None,
    ) -> None:
        """Open a split. `stage_shapes` are the buckets' shapes in an earlier stage, by default the settings' shapes."""
        self._shapes, self._device = stage_shapes or settings.shapes, device
        self._stretch = settings.fit == "resize"
        self._store = settings.open()
        what = f"the store in {self._store.path}"
        check_pin("data.sha256", settings.sha256, what, self._store.identity, "give the right path")
        selection = settings.select(self._store)
        refuse_empty(self._store, selection, split)
        if selection.note:
            note_once(selection.note, selection.note)
        self._rows = torch.from_numpy(selection.rows(self._store, split))
        if split == "eval" and len(self._rows):
            self._rows = self._rows[ids_at(_EVAL_ORDER, 0, len(self._rows), len(self._rows))]
        self._rows = self._rows[: settings.limit]
        if split == "train" and not len(self._rows):
            raise UserError(
                f"{self._store.path} has no training images",
                "import the data again with a smaller share of held-out images: `tintype data import SOURCE "
                "--out DIR --eval-share SHARE`",
            )
        width_N, height_N = (torch.from_numpy(side[self._rows.numpy()]) for side in self._store.sizes())
        self.buckets = settings.buckets
        self.bucket_N = nearest_shape(height_N, width_N, settings.buckets) if settings.buckets else None
        self._refuse_small(width_N, height_N, settings.size_px)
        self._decoding = PixelBudget()
        self.identity: str | None = selection.identity(self._store.identity)
        self.columns = frozenset(self._store.captions)
        self._record = lru_cache(_MOST_CACHED_RECORDS)(self._read_record)
        self.resident: Resident | None = None
        fits = resident_bytes(len(self), settings.size_px) <= _MOST_CACHED_BYTES.get(device.type, 0)
        if keep and fits and not settings.buckets:
            self.resident = Resident(len(self), settings.size_px, device)
        threads = threads or usual_threads()
        beside_gpu = device.type == "cuda" and not self.resident
        self.decoders = decoders(threads) if (beside_gpu if processes is None else processes) else None
        self.prefetch = Prefetch(self._write, self.shape, threads, pinned=device.type == "cuda")

    def _refuse_small(self, width_N: Tensor, height_N: Tensor, size_px: int) -> None:
        """Raise if an image would have to be enlarged. Sizes are known without decoding."""
        wanted_S2 = torch.tensor(self._shapes)
        wanted_N2 = wanted_S2[0] if self.bucket_N is None else wanted_S2[self.bucket_N]
        small = (torch.stack([height_N, width_N], dim=1) < wanted_N2).any(dim=1).nonzero().flatten()
        if len(small):
            first = int(small[0])
            how = f"have fewer than data.size_px={size_px} on a side"
            if self.bucket_N is not None:
                how = "do not cover the nearest shape of data.buckets"
            raise TooSmallError(
                f"{self._store.name(int(self._rows[first]))} has {int(width_N[first])} × {int(height_N[first])} "
                f"pixels, and {len(small):,} of {len(self):,} images {how}; images are never enlarged",
                f"use a smaller size, or leave these images out: data.where='min(width, height) >= {size_px}'",
            )

    def __len__(self) -> int:
        return len(self._rows)

    def records(self, ids: Sequence[int]) -> list[Record]:
        return [self._record(id_) for id_ in ids]

    def _read_record(self, id_: int) -> Record:
        return Record(self._store.captions_of(int(self._rows[id_])), None)

    def images(self, ids: Sequence[int]) -> Tensor:
        return self.resident.images(ids, self._taken) if self.resident else self._taken(ids)

    def prepare(self, ids: Sequence[int]) -> None:
        if self.resident:
            self.resident.prepare(ids, self._taken)

    def expect(self, ids: Sequence[int]) -> None:
        if not self.resident:
            self.prefetch.expect(ids)

    def _taken(self, ids: Sequence[int]) -> Tensor:
        return send(self.prefetch.take(ids), self._device)

    def shape(self, id_: int) -> Shape:
        return self._shapes[0 if self.bucket_N is None else int(self.bucket_N[id_])]

    def _write(self, id_: int, out_CHW: Tensor) -> None:
        row = int(self._rows[id_])
        one = self._store.encoded(row)
        with self._decoding.take(self._store.pixels(row)):
            if self.decoders is not None:
                self.decoders.fit(one, out_CHW, self._stretch)
            else:
                out_CHW.copy_((stretched if self._stretch else covering)(decode(one), *out_CHW.shape[1:]))


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
    """Prefetched batches, by their ids. A batch that was not prefetched is decoded at once."""

    def __init__(
        self, write: Callable[[int, Tensor], None], shape: Callable[[int], Shape], threads: int, pinned: bool
    ) -> None:
        """Start the thread pool. `write` writes the image with an id into its row of the batch."""
        self._write, self._shape, self._pinned, self.threads = write, shape, pinned, threads
        self._pool = decoding_pool(threads)
        self._begun: dict[tuple[int, ...], _UnderWay] = {}

    def expect(self, ids: Sequence[int]) -> None:
        """Prefetch a batch, unless the batches in progress take too much memory. One batch is always prefetched."""
        if not ids or tuple(ids) in self._begun:
            return
        if self._begun and sum(one.image_BCHW.numel() for one in self._begun.values()) > _MOST_PREFETCHED_BYTES:
            return
        self._begun[tuple(ids)] = self._begin(ids)

    def take(self, ids: Sequence[int]) -> Tensor:
        """Return the batch, in pinned memory if there is a GPU.

        Batches are taken in the order of the calls of `expect`. So batches expected before this batch are dropped.
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
