"""The sources of a mixture as one: their ids follow each other in the order of their names.

B: images asked for. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from tintype.runtime.transfer import send
from tintype.seams import ImageSource, Record


class MixtureSource:
    def __init__(self, parts: Mapping[str, ImageSource], device: torch.device) -> None:
        self.parts, self._device = dict(parts), device
        self.columns = frozenset.intersection(*(part.columns for part in self.parts.values()))

    @property
    def identity(self) -> str | None:
        """A hash of the identities of all sources; None where the settings define each."""
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
        """Yield each source that has some of these ids, its own ids of them, and their positions in the batch."""
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
    """Return the identities that a run records: of the whole, and of each source by its name."""
    parts = source.parts if isinstance(source, MixtureSource) else {}
    return {"data": source.identity, **{f"data/{name}": part.identity for name, part in parts.items()}}


def columns_by_part(source: ImageSource) -> dict[str, frozenset[str]]:
    """Return the caption columns of the data, or of each source by its name in messages."""
    if isinstance(source, MixtureSource):
        return {f"the source '{name}'": part.columns for name, part in source.parts.items()}
    return {"the data": source.columns}
