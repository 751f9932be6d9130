"""Combine a mixture's sources into one source, and define the order of its images.

B: requested images, or images of a batch. C: channels. H, W: rows, columns. P: requested positions. S: steps of these
positions. N: sources.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.data.mixture.settings import MixtureSettings, images_before
from tintype.data.order import ids_at
from tintype.rng import stream_key
from tintype.runtime.transfer import send
from tintype.seams import ImageSource, Record

_STREAM = "mixture"
_MORE_STEPS = 1024


class MixtureSource:
    """Several sources as one source. Ids are consecutive over the sources, in the order of `parts`."""

    def __init__(self, parts: Mapping[str, ImageSource], device: torch.device) -> None:
        self.parts, self._device = dict(parts), device
        self.columns = frozenset.intersection(*(part.columns for part in self.parts.values()))

    @property
    def identity(self) -> str | None:
        """A hash of the identities of all sources; None if the settings define every source."""
        return identity_of_parts({name: part.identity for name, part in self.parts.items()})

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def prepare(self, ids: Sequence[int]) -> None:
        for part, own, _ in self._by_part(ids):
            part.prepare(own)

    def expect(self, ids: Sequence[int]) -> None:
        for part, own, _ in self._by_part(ids):
            part.expect(own)

    def images(self, ids: Sequence[int]) -> Tensor:
        asked = list(self._by_part(ids))
        image_BCHW = torch.cat([part.images(own) for part, own, _ in asked])
        place_B = torch.tensor([place for _, _, places in asked for place in places], dtype=torch.int64)
        return image_BCHW[send(place_B.argsort(), self._device)]

    def records(self, ids: Sequence[int]) -> list[Record]:
        found: dict[int, Record] = {}
        for part, own, places in self._by_part(ids):
            found.update(zip(places, part.records(own), strict=True))
        return [found[place] for place in range(len(ids))]

    def _by_part(self, ids: Sequence[int]) -> Iterator[tuple[ImageSource, list[int], list[int]]]:
        """Yield each source that has some of the ids, with the ids in that source and their positions in the batch."""
        first = 0
        for part in self.parts.values():
            places = [place for place, id_ in enumerate(ids) if first <= id_ < first + len(part)]
            if places:
                yield part, [ids[place] - first for place in places], places
            first += len(part)


def identity_of_parts(known: Mapping[str, str | None]) -> str | None:
    if not any(known.values()):
        return None
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def identities(source: ImageSource) -> dict[str, str | None]:
    """Return the identity of the data and, for a mixture, the identity of each source, as a run records them."""
    parts = source.parts if isinstance(source, MixtureSource) else {}
    return {"data": source.identity, **{f"data/{name}": part.identity for name, part in parts.items()}}


def columns_by_part(source: ImageSource) -> dict[str, frozenset[str]]:
    """Return the caption columns of the data, or of each source of a mixture. Keys are names for messages."""
    if isinstance(source, MixtureSource):
        return {f"the source '{name}'": part.columns for name, part in source.parts.items()}
    return {"the data": source.columns}


@dataclass(frozen=True)
class Mixed:
    """The order of a mixture. The source and the image at a position are a pure function of (seed, position).

    A batch has a fixed number of images from each source (`images_before`), and a keyed permutation shuffles the batch.
    The k-th image that training reads of a source is the k-th image in this source's own order. So each epoch of a
    source has every image once, independent of the other sources. The counts before a step and the batch's permutation
    give k, so any position is computed directly.
    """

    seed: int
    data: MixtureSettings
    batch: int
    steps: int
    sizes: Mapping[str, int]
    """Number of images of each source in `data.read`."""

    def ids(self, first: int, count: int) -> list[int]:
        begin, end = first // self.batch, -(-(first + count) // self.batch)  # whole steps
        slot_SB = ids_at(
            stream_key(self.seed, _STREAM), begin * self.batch, (end - begin) * self.batch, self.batch
        ).view(-1, self.batch)
        inside = slice(first - begin * self.batch, first - begin * self.batch + count)
        before_SN = self._before(first + count)[begin : end + 1]
        source_P, place_P = (found.flatten()[inside] for found in _dealt(before_SN, slot_SB))
        id_P = torch.empty(count, dtype=torch.int64)
        for index, (name, first_id, size) in enumerate(self._sources()):
            here = source_P == index
            if here.any():
                id_P[here] = first_id + self._own(name, size, place_P[here])
        found: list[int] = id_P.tolist()
        return found

    def once(self, first: int, end: int, chunk: int) -> Iterator[list[int]]:
        before_SN = self._before(end)
        begin_N, stop_N = before_SN[first // self.batch], before_SN[-(-end // self.batch)]
        for index, (name, first_id, size) in enumerate(self._sources()):
            begin, stop = int(begin_N[index]), int(stop_N[index])
            epoch = -(-begin // size) * size  # start of the next epoch: a whole epoch has every image
            if epoch + size <= stop:
                begin, stop = epoch, epoch + size
            for place in range(begin, stop, chunk):
                place_P = torch.arange(place, min(place + chunk, stop))
                yield (first_id + self._own(name, size, place_P)).tolist()

    def _before(self, end: int) -> Tensor:
        """Return the counts before each step. The position may lie after the end of training."""
        steps = -(-end // self.batch)
        if steps > self.steps:
            steps = -(-steps // _MORE_STEPS) * _MORE_STEPS
        return images_before(self.data.shares, self.batch, max(steps, self.steps))

    def _sources(self) -> Iterator[tuple[str, int, int]]:
        first_id = 0
        for name in self.data.read:
            yield name, first_id, self.sizes[name]
            first_id += self.sizes[name]

    def _own(self, name: str, size: int, place_P: Tensor) -> Tensor:
        """Return a source's ids at these positions of the source's own order."""
        lowest, highest = int(place_P.min()), int(place_P.max())
        ids = ids_at(stream_key(self.seed, f"{_STREAM}/{name}"), lowest, highest - lowest + 1, size)
        return ids[place_P - lowest]


def _dealt(before_SN: Tensor, slot_SB: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each position of each batch, its source and the image's number within the source, int64 [S, B].

    `before_SN` has the number of images of each source before each of these steps and after the last step. `slot_SB` is
    the permutation of each batch. The first slots go to the first source, the next slots to the second source, and so
    on. Images of a source keep their order.
    """
    count_SN = before_SN.diff(dim=0)
    source_SB = (slot_SB[:, :, None] >= count_SN.cumsum(1)[:, None, :]).sum(2)
    own_SBN = source_SB[:, :, None] == torch.arange(before_SN.shape[1])
    number_SBN = before_SN[:-1, None, :] + own_SBN.cumsum(1) - 1
    return source_SB, number_SBN.gather(2, source_SB[:, :, None])[:, :, 0]
