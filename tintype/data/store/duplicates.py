"""Find equal and nearly equal images: by perceptual hashes that differ in few bits, and by colours.

U: distinct hashes. P: pairs of hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tintype.data.store.fingerprints import Looks

_BANDS, _BAND_BITS = 4, 16
MOST_BITS = 11
"""Largest supported hash distance in bits. A larger distance needs too many lookups of 16-bit parts."""
_MOST_COLOUR, _MOST_BRIGHTNESS = 14.0, 40.0
"""Largest mean differences, of 255 levels, in colour and brightness between equal images. Hashes ignore both."""
_PAIRS_TOGETHER = 1 << 22


@dataclass(frozen=True)
class Group:
    """Rows of similar images. `rows[0]` is the copy to keep: the first evaluation record, else the first record."""

    rows: tuple[int, ...]
    distinct: int
    """Number of distinct images by their pixels: 1 if all are exact copies."""
    leaks: bool
    """Whether the group has records of both splits."""


def find_groups(
    rows: NDArray[np.int64], looks: Looks, pixels: NDArray[np.str_], is_eval: NDArray[np.bool_], most_bits: int
) -> list[Group]:
    """Group each ungrouped image with all later ungrouped images near it. Groups are not chained.

    Evaluation records come first, then the other rows in order. `pixels` and `is_eval` have a value for each row of the
    store. The result lists groups with leaks first, and sorts by first rows. The time grows with the number of images
    with a near hash. Long chains of similar images do not make the time grow quadratically.
    """
    rows = rows[np.lexsort((rows, ~is_eval[rows]))]
    near_hash = _Near(looks.hash[rows], most_bits)
    taken = np.zeros(len(rows), dtype=np.bool_)
    groups = []
    for first in near_hash.with_others.tolist():
        if taken[first]:
            continue
        others = near_hash.to(first)
        others = others[(others > first) & ~taken[others]]
        others = others[_like_in_colour(looks.colours[rows[others]], looks.colours[rows[first]])]
        if len(others):
            taken[others] = True
            groups.append(_group(rows[[first, *np.sort(others)]].tolist(), pixels, is_eval))
    return sorted(groups, key=lambda group: (not group.leaks, group.rows))


def _group(rows: list[int], pixels: NDArray[np.str_], is_eval: NDArray[np.bool_]) -> Group:
    return Group(tuple(rows), len(np.unique(pixels[rows])), len(np.unique(is_eval[rows])) == 2)


class _Near:
    """Finds the hashes that differ from a given hash in at most `most_bits` bits, including the hash itself."""

    def __init__(self, hash_N: NDArray[np.uint64], most_bits: int) -> None:
        hash_U, of_place = np.unique(hash_N, return_inverse=True)
        count = len(hash_U)
        self._hash_of: NDArray[np.int64] = of_place.reshape(-1)
        """For each place, the index of the place's hash among the distinct hashes."""
        self._places: NDArray[np.int64] = np.argsort(self._hash_of, kind="stable")
        """Places sorted by their hashes."""
        self._counts_U = np.bincount(self._hash_of, minlength=count)
        self._ends_U = np.cumsum(self._counts_U)
        pair_P2 = near_pairs(hash_U, most_bits)
        itself = np.arange(count)
        first = np.concatenate([pair_P2[:, 0], pair_P2[:, 1], itself])
        second = np.concatenate([pair_P2[:, 1], pair_P2[:, 0], itself])
        self._linked = second[np.argsort(first, kind="stable")]
        links_U = np.bincount(first, minlength=count)
        self._link_ends_U = np.cumsum(links_U)
        self.with_others = np.flatnonzero(((self._counts_U > 1) | (links_U > 1))[self._hash_of])
        """Places that have another place near them."""

    def to(self, place: int) -> NDArray[np.int64]:
        hash_ = self._hash_of[place]
        linked = self._linked[self._link_ends_U[hash_ - 1] if hash_ else 0 : self._link_ends_U[hash_]]
        count = self._counts_U[linked]
        shift = np.repeat(self._ends_U[linked] - np.cumsum(count), count)
        near: NDArray[np.int64] = self._places[np.arange(len(shift)) + shift]
        return near


def _like_in_colour(colours_NK: NDArray[np.uint8], first_K: NDArray[np.uint8]) -> NDArray[np.bool_]:
    difference_NK = colours_NK.astype(np.float32) - first_K
    shift_N = difference_NK.mean(axis=1)
    rest_N = np.abs(difference_NK - shift_N[:, None]).mean(axis=1)
    like: NDArray[np.bool_] = (rest_N <= _MOST_COLOUR) & (np.abs(shift_N) <= _MOST_BRIGHTNESS)
    return like


def bit_counts(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Count the set bits. NumPy 2.0 and later have a function for it, which is four times as fast."""
    if hasattr(np, "bitwise_count"):
        return np.asarray(np.bitwise_count(hashes), np.int64)
    return np.asarray(np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1), np.int64)


def near_pairs(hash_U: NDArray[np.uint64], most_bits: int) -> NDArray[np.int64]:
    """Return indices [P, 2] of the hashes that differ in at most `most_bits` bits, by multi-index hashing.

    If two hashes differ in at most b bits, one of their four 16-bit parts differs in at most b // 4 bits. So instead of
    all pairs, only hashes with such a similar part are compared, found in a sorted table. (Norouzi, Punjani and Fleet,
    2012, section 3.)
    """
    if not 0 <= most_bits <= MOST_BITS:
        raise ValueError(f"most_bits must be 0 to {MOST_BITS}, not {most_bits}")
    flips = [
        np.uint64(sum(1 << bit for bit in bits))
        for count in range(most_bits // _BANDS + 1)
        for bits in combinations(range(_BAND_BITS), count)
    ]
    found = [np.zeros(0, dtype=np.int64)]
    for band in range(_BANDS):
        part = (hash_U >> np.uint64(band * _BAND_BITS)) & np.uint64((1 << _BAND_BITS) - 1)
        order = np.argsort(part, kind="stable")
        table = part[order]
        for flip in flips:
            low, high = np.searchsorted(table, part ^ flip, "left"), np.searchsorted(table, part ^ flip, "right")
            for first, place in _ranges(low, high):
                second = order[place]
                ours = first < second
                first, second = first[ours], second[ours]
                near = bit_counts(hash_U[first] ^ hash_U[second]) <= most_bits
                found.append(first[near] * len(hash_U) + second[near])
    return np.stack(np.divmod(np.unique(np.concatenate(found)), max(len(hash_U), 1)), axis=1)


def _ranges(low: NDArray[np.int64], high: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield all (i, place) with low[i] <= place < high[i], some millions at a time."""
    ends = np.cumsum(high - low)
    begin = 0
    while begin < len(low):
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _PAIRS_TOGETHER, "right")))
        count = (high - low)[begin:end]
        index = np.repeat(np.arange(begin, end), count)
        within = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
        yield index, low[index] + within
        begin = end
