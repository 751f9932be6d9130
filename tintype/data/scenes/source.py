"""The embedded scenes as a source of images and records, by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tintype.data.resident import Resident, resident_bytes
from tintype.data.scenes.captions import long_caption, short_caption
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import Scene, draw_batch
from tintype.data.scenes.settings import ScenesSettings
from tintype.seams import Record

Split = Literal["train", "eval"]
_MOST_CACHED_BYTES = 1 << 30
_FIRST_INDEX: dict[Split, int] = {"train": 0, "eval": 1 << 40}
"""The first index of a split, so that no two splits share jitter, texture or noise."""


class SceneSource:
    """Renders each image when it is first asked for, and caches it when the whole set fits into a gigabyte."""

    identity = None
    """The settings name the scenes; how they are drawn, only the images say."""
    columns = frozenset({"long", "short"})

    def __init__(self, settings: ScenesSettings, split: Split, device: torch.device) -> None:
        self._settings, self._split, self._device = settings, split, device
        self._records: dict[int, Record] = {}
        self.resident: Resident | None = None
        if resident_bytes(settings.count, settings.size_px) <= _MOST_CACHED_BYTES:
            self.resident = Resident(settings.count, settings.size_px, device, self._render)

    def __len__(self) -> int:
        return self._settings.count

    def records(self, ids: Sequence[int]) -> list[Record]:
        missing = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._records]
        for id_, scene in zip(missing, self._scenes(missing), strict=True):
            captions = {"long": long_caption(scene, id_), "short": short_caption(scene, id_)}
            self._records[id_] = Record(captions, scene)
        return [self._records[id_] for id_ in ids]

    def images(self, ids: Sequence[int]) -> Tensor:
        return self.resident.images(ids) if self.resident else self._render(ids)

    def prepare(self, ids: Sequence[int]) -> None:
        """Render the images that are to be cached and are not."""
        if self.resident:
            self.resident.prepare(ids)

    def expect(self, ids: Sequence[int]) -> None:
        """Do nothing: images are rendered when they are asked for."""

    def _render(self, ids: Sequence[int]) -> Tensor:
        scenes = [record.attributes for record in self.records(ids)]
        return render(scenes, self._settings.size_px, self._settings.seed, self._indices(ids), self._device)

    def _indices(self, ids: Sequence[int]) -> list[int]:
        return [_FIRST_INDEX[self._split] + id_ for id_ in ids]

    def _scenes(self, ids: Sequence[int]) -> list[Scene]:
        own, indices = self._settings, self._indices(ids)
        return draw_batch(own.seed, indices, self._split, own.style, own.min_objects, own.max_objects).to_scenes()
