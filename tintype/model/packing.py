"""Text tokens of a batch without their padding, one sample after another.

B: samples, S: text tokens of a sample with padding, N: rows, C: width of a token, D: width of the denoiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from tintype.model.rows import take_rows
from tintype.runtime.transfer import send
from tintype.seams import TextTokens

_MULTIPLE = 128
FEW_SIZES, MANY_SIZES = 8, 64
"""Largest number of distinct row counts: few if each is captured as a graph. Row counts are multiples of 128."""


@dataclass(frozen=True)
class Places:
    """The rows of each sample's tokens: `length` rows from `first` on."""

    first_B: Tensor
    length_B: Tensor
    longest: int
    """Upper bound on the tokens of a sample."""
    dense: int
    """Number of leading rows that all are tokens of a sample. Rows after that may belong to no sample."""

    def join(self, other: Places, rows: int) -> Places:
        """Return the places of two batches, with the other batch's rows after `rows` rows of this batch."""
        return Places(
            torch.cat([self.first_B, other.first_B + rows]),
            torch.cat([self.length_B, other.length_B]),
            max(self.longest, other.longest),
            self.dense,
        )


@dataclass(frozen=True)
class PackedText:
    """Rows of tokens, as output by the text encoder or projected to the denoiser's width."""

    rows_NC: Tensor
    places: Places

    @property
    def longest(self) -> int:
        return self.places.longest

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows_NC, self.places.first_B, self.places.length_B

    def of(self, rows_NC: Tensor, first_B: Tensor, length_B: Tensor) -> PackedText:
        """Return a packed text of the same form from these tensors, whose values may change later."""
        return PackedText(rows_NC, Places(first_B, length_B, self.longest, dense=0))


@dataclass(frozen=True)
class PackedKeyValue:
    """Normed keys and values of a block, in the same rows as the text."""

    key_ND: Tensor
    value_ND: Tensor
    places: Places

    def join(self, other: PackedKeyValue) -> PackedKeyValue:
        return PackedKeyValue(
            torch.cat([self.key_ND, other.key_ND]),
            torch.cat([self.value_ND, other.value_ND]),
            self.places.join(other.places, len(self.key_ND)),
        )


def rows_step(batch: int, most: int, sizes: int = FEW_SIZES) -> int:
    """Return the number whose multiples are allowed as row counts.

    `most` is the token count of a padded batch's sample.
    """
    return -(-batch * most // (sizes * _MULTIPLE)) * _MULTIPLE


def pack(text: TextTokens, sizes: int = FEW_SIZES) -> PackedText:
    """Remove the padding of a batch, then fill up the rows to one of at most `sizes` row counts.

    If the host does not know the number of tokens, removing rows would make it wait for the device. Then all rows stay,
    and each sample's tokens come before its padding.
    """
    batch, most, _ = text.tokens_BLC.shape
    device = text.tokens_BLC.device
    if text.lengths is None:
        order_BS = text.mask_BL.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
        rows_BSC = take_rows(text.tokens_BLC, order_BS)
        first_B = torch.arange(batch, device=device) * most
        return PackedText(rows_BSC.flatten(0, 1), Places(first_B, text.mask_BL.sum(1), most, dense=0))
    ends = list(accumulate(text.lengths))
    first_B, length_B = send(torch.tensor([[0, *ends[:-1]], text.lengths]), device)
    real_BS = torch.arange(most) < torch.tensor(text.lengths)[:, None]
    step = rows_step(batch, most, sizes)
    index_N = torch.nn.functional.pad(real_BS.flatten().nonzero().squeeze(1), (0, -ends[-1] % step))
    rows_NC = text.tokens_BLC.flatten(0, 1).index_select(0, send(index_N, device))
    return PackedText(rows_NC, Places(first_B, length_B, most, dense=ends[-1]))
