"""The order of the data, as a pure function of (seed, position).

The only state of the data is one integer, the position. Each epoch is a permutation of the ids, made by a keyed Feistel
network with cycle walking. No table is built, any position is computed directly, and each epoch has every id exactly
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tintype.rng import mix, stream_key

_ROUNDS = 6
_PAGE = 1 << 12


@dataclass(frozen=True)
class Shuffled:
    """The order of a single source. Each epoch has every image once, in a new random order."""

    seed: int
    source: Sized

    def ids(self, first: int, count: int) -> list[int]:
        found: list[int] = ids_at(self.seed, first, count, len(self.source)).tolist()
        return found

    def once(self, first: int, end: int, chunk: int) -> Iterator[list[int]]:
        size = len(self.source)
        epoch = -(-first // size) * size  # start of the next epoch: a whole epoch has every image
        if epoch + size <= end:
            first, end = epoch, epoch + size
        for start in range(first, end, chunk):
            yield self.ids(start, min(chunk, end - start))


def ids_at(seed: int, first: int, count: int, size: int) -> Tensor:
    """Return the ids at positions first … first + count - 1 of a data set of `size` records: int64 [count]."""
    pages = range(first // _PAGE, (first + count - 1) // _PAGE + 1)
    ids = torch.cat([_page(seed, page, size) for page in pages])
    return ids[first - pages[0] * _PAGE :][:count]


@lru_cache(maxsize=64)
def _page(seed: int, page: int, size: int) -> Tensor:
    """Return the ids of a page of positions. Pages are cached, since consecutive steps read the same page."""
    position = torch.arange(page * _PAGE, (page + 1) * _PAGE)
    epoch, place = position // size, position % size
    return _permute(place, epoch, stream_key(seed, "order"), size)


def _permute(place: Tensor, epoch: Tensor, key: int, size: int) -> Tensor:
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    round_keys = mix(mix(epoch + key) + torch.arange(_ROUNDS)[:, None])
    out = _feistel(place, round_keys, half_bits)
    while (outside := out >= size).any():  # ends, since the network permutes a domain of less than 4 × size
        out = torch.where(outside, _feistel(out, round_keys, half_bits), out)
    return out


def _feistel(value: Tensor, round_keys: Tensor, half_bits: int) -> Tensor:
    low = (1 << half_bits) - 1
    left, right = value >> half_bits, value & low
    for round_key in round_keys:
        left, right = right, left ^ (mix(right + round_key) & low)
    return (left << half_bits) | right
