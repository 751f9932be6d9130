"""Store token states of captions without padding, and make batches of them.

A group is a set of captions of similar length that the text encoder encodes together. The denoiser gets every batch
padded with zeros to a fixed length, and its attention masks the padding. So the denoiser is compiled once, and its
result for a sample does not depend on the other captions in the batch.

Tensor dimensions are B (captions of a batch), L (tokens of each caption that the denoiser reads), T (tokens of all
captions) and C (width of the encoder).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.runtime.transfer import send
from tintype.seams import TextTokens

_MULTIPLE = 32
"""On a GPU, the lengths of captions are rounded up to a multiple of this, which gives fewer and larger groups."""
MOST_TOKENS = 1 << 15
"""Largest number of tokens in a group, including padding."""
_EVEN = 32


@dataclass(frozen=True)
class Group:
    """Captions, as indices, that are encoded together, padded to one length; extra rows repeat the last caption."""

    members: tuple[int, ...]
    length: int
    rows: int


Grouping = Callable[[Sequence[int]], list[Group]]
"""Assigns captions of given lengths to groups; each caption is in one group."""


def alone(lengths: Sequence[int]) -> list[Group]:
    """Make one group per caption, so that its states depend only on this caption, bit for bit."""
    return [Group((place,), length, 1) for place, length in enumerate(lengths)]


def by_length(lengths: Sequence[int]) -> list[Group]:
    """Make few groups of captions of similar length, with little padding, for states that are not cached."""
    return [Group(some, length, len(some)) for some, length in _chunks(lengths, lambda n: max(1, MOST_TOKENS // n))]


def evenly(lengths: Sequence[int]) -> list[Group]:
    """Make groups with equal numbers of rows: these decide a GPU's rounding, on which cached states must not depend."""
    return [Group(some, length, _EVEN) for some, length in _chunks(lengths, lambda n: _EVEN)]


def _chunks(lengths: Sequence[int], most: Callable[[int], int]) -> list[tuple[tuple[int, ...], int]]:
    of_length: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        of_length.setdefault(-(-length // _MULTIPLE) * _MULTIPLE, []).append(place)
    return [
        (tuple(places[first : first + most(length)]), length)
        for length, places in sorted(of_length.items())
        for first in range(0, len(places), most(length))
    ]


@dataclass(frozen=True)
class Packed:
    """Token states of several captions in one tensor, with each caption's start and length; gaps are allowed."""

    token_TC: Tensor
    starts: Sequence[int]
    lengths: Sequence[int]


def spread(packed: Packed, captions: Sequence[int], length: int, device: torch.device) -> TextTokens:
    """Return a batch of some of the packed captions, in fp32 on the device, without waiting for the device."""
    token_TC = send(packed.token_TC, device)
    start_B = torch.tensor([packed.starts[one] for one in captions])
    lengths = tuple(packed.lengths[one] for one in captions)
    length_B = torch.tensor(lengths)
    place_L = torch.arange(length)
    mask_BL = place_L < length_B[:, None]
    index_BL = torch.where(mask_BL, start_B[:, None] + place_L, 0)
    mask_BL = send(mask_BL, device)
    token_BLC = token_TC[send(index_BL, device)].float()
    return TextTokens(token_BLC.masked_fill_(~mask_BL[..., None], 0.0), mask_BL, lengths)
