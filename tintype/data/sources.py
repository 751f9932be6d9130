"""Open the images of a plan's data, of any kind, for training and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tintype.data.buckets import Bucketed
from tintype.data.mixture.naming import naming
from tintype.data.mixture.order import Mixed
from tintype.data.mixture.settings import MixtureSettings
from tintype.data.mixture.source import MixtureSource
from tintype.data.order import Shuffled
from tintype.data.scenes.settings import ScenesSettings
from tintype.data.scenes.source import Split, scene_source
from tintype.data.store.settings import StoreSettings
from tintype.data.store.source import StoreSource, store_source
from tintype.seams import ImageSource, Order, Record
from tintype.settings import DataPart, TrainSettings


def open_source(data: DataPart, split: Split, device: torch.device) -> ImageSource:
    """Return one source per (data, split, device) in a process."""
    if isinstance(data, StoreSettings):
        return store_source(data, split, device)
    if isinstance(data, MixtureSettings):
        return _mixture_source(data, split, device)
    assert isinstance(data, ScenesSettings), f"data of the kind {data.kind} has no source"
    return scene_source(data, split, device)


@lru_cache(maxsize=8)
def _mixture_source(data: MixtureSettings, split: Split, device: torch.device) -> MixtureSource:
    parts: dict[str, ImageSource] = {}
    for name in data.read:
        with naming(data, name):
            parts[name] = open_source(data.sources[name].data, split, device)
    return MixtureSource(parts, device)


def open_held_out(data: DataPart, count: int, device: torch.device) -> ImageSource:
    """Open the held-out images that a run is scored against; those of one source of a mixture."""
    with naming(data, data.evaluate) if isinstance(data, MixtureSettings) else nullcontext():
        return open_source(data.held_out(count), "eval", device)


def open_order(seed: int, data: DataPart, train: TrainSettings, source: ImageSource, device: torch.device) -> Order:
    """Return the order of the training images. `source` is that of the training split."""
    if isinstance(source, StoreSource) and source.bucket_N is not None:
        return Bucketed(seed, source.bucket_N, train.batch // train.accumulate)
    if not isinstance(data, MixtureSettings):
        return Shuffled(seed, source)
    mixture = data

    def sizes() -> dict[str, int]:
        return {name: len(part) for name, part in _mixture_source(mixture, "train", device).parts.items()}

    return Mixed(seed, data, train.batch, train.steps, sizes)


@dataclass(frozen=True)
class LaterSource:
    """Opens its source when it is first asked: a run can be sampled where its data is not."""

    data: DataPart
    split: Split
    device: torch.device

    @property
    def identity(self) -> str | None:
        return self._opened.identity

    @property
    def columns(self) -> frozenset[str]:
        return self._opened.columns

    def __len__(self) -> int:
        return len(self._opened)

    def prepare(self, ids: Sequence[int]) -> None:
        self._opened.prepare(ids)

    def expect(self, ids: Sequence[int]) -> None:
        self._opened.expect(ids)

    def images(self, ids: Sequence[int]) -> Tensor:
        return self._opened.images(ids)

    def records(self, ids: Sequence[int]) -> list[Record]:
        return self._opened.records(ids)

    @property
    def _opened(self) -> ImageSource:
        return open_source(self.data, self.split, self.device)


def forget_sources() -> None:
    """Drop every open source, and the images that it caches."""
    _mixture_source.cache_clear()
    scene_source.cache_clear()
    store_source.cache_clear()
