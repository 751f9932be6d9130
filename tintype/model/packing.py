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
"""Most numbers of rows that batches can have: few where each is captured as a graph. All are multiples of 128."""


@dataclass(frozen=True)
class Places:
    """Where the tokens of each sample lie: `length` rows from `first` on."""

    first_B: Tensor
    length_B: Tensor
    longest: int
    """No sample has more tokens."""
    dense: int
    """Number of rows, from the first one on, that are tokens of a sample; others may be of none."""

    def join(self, other: Places, rows: int) -> Places:
        """Return the places of two batches, where the rows of the other follow on `rows` of this one."""
        return Places(
            torch.cat([self.first_B, other.first_B + rows]),
            torch.cat([self.length_B, other.length_B]),
            max(self.longest, other.longest),
            self.dense,
        )


@dataclass(frozen=True)
class PackedText:
    """Rows of tokens, as the text encoder gave them or projected to the denoiser's width."""

    rows_NC: Tensor
    places: Places

    @property
    def longest(self) -> int:
        return self.places.longest

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows_NC, self.places.first_B, self.places.length_B

    def of(self, rows_NC: Tensor, first_B: Tensor, length_B: Tensor) -> PackedText:
        """Return such a text of these tensors, which may come to have others' numbers."""
        return PackedText(rows_NC, Places(first_B, length_B, self.longest, dense=0))


@dataclass(frozen=True)
class PackedKeyValue:
    """Normed keys and values of a block, in the rows of its text."""

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
    """Return the rows that a text's number of rows is a multiple of; `most` are the tokens of a padded sample."""
    return -(-batch * most // (sizes * _MULTIPLE)) * _MULTIPLE


def pack(text: TextTokens, sizes: int = FEW_SIZES) -> PackedText:
    """Take the tokens out of a padded batch, and fill their rows up to one of at most `sizes` numbers.

    Where the host does not know their number it would have to wait for the device: then all rows stay, the tokens of
    each sample before its padding.
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
