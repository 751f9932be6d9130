"""The order of a mixture: which image of which source stands at a position, a pure function of (seed, position).

A batch has its counts of each source (`images_before`), its positions are shuffled by a keyed permutation of the batch,
and the k-th image of a source is the k-th of the source's own order: every image of it once in each of its own epochs,
whatever the others do. k follows from the counts before the step and the batch alone, so any position is found at once.

P: positions asked for. S: steps that they lie in. B: images of a batch. N: sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.data.mixture.settings import MixtureSettings, images_before
from tintype.data.order import ids_at
from tintype.rng import stream_key

_STREAM = "mixture"
_MORE_STEPS = 1024


@dataclass(frozen=True)
class Mixed:
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
            epoch = -(-begin // size) * size  # the next that begins: where it is whole, it has every image
            if epoch + size <= stop:
                begin, stop = epoch, epoch + size
            for place in range(begin, stop, chunk):
                place_P = torch.arange(place, min(place + chunk, stop))
                yield (first_id + self._own(name, size, place_P)).tolist()

    def _before(self, end: int) -> Tensor:
        """Return the counts before each step, up to a position that may lie after the end of training."""
        steps = -(-end // self.batch)
        if steps > self.steps:
            steps = -(-steps // _MORE_STEPS) * _MORE_STEPS
        return images_before(self.data.shares, self.batch, max(steps, self.steps))

    def _sources(self) -> Iterator[tuple[str, int, int]]:
        """Yield name, first id and size of each source."""
        first_id = 0
        for name in self.data.read:
            yield name, first_id, self.sizes[name]
            first_id += self.sizes[name]

    def _own(self, name: str, size: int, place_P: Tensor) -> Tensor:
        """Return the ids, within a source, at positions of its own order."""
        lowest, highest = int(place_P.min()), int(place_P.max())
        ids = ids_at(stream_key(self.seed, f"{_STREAM}/{name}"), lowest, highest - lowest + 1, size)
        return ids[place_P - lowest]


def _dealt(before_SN: Tensor, slot_SB: Tensor) -> tuple[Tensor, Tensor]:
    """Return the source at each position of each batch, and the number of its image: int64 [S, B] twice.

    `before_SN` has the counts before each of these steps and after the last. `slot_SB` shuffles each batch: its slots
    are dealt out source by source, and the images of a source come in the order of their places.
    """
    count_SN = before_SN.diff(dim=0)
    source_SB = (slot_SB[:, :, None] >= count_SN.cumsum(1)[:, None, :]).sum(2)
    own_SBN = source_SB[:, :, None] == torch.arange(before_SN.shape[1])
    number_SBN = before_SN[:-1, None, :] + own_SBN.cumsum(1) - 1
    return source_SB, number_SBN.gather(2, source_SB[:, :, None])[:, :, 0]
