"""Text tokens of a batch without padding, concatenated sample by sample.

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
"""Maximum number of row counts, which are multiples of 128: few if each row count is captured as a graph."""


@dataclass(frozen=True)
class Places:
    """The rows of each sample's tokens. A sample has `length` rows, beginning at row `first`."""

    first_B: Tensor
    length_B: Tensor
    longest: int
    """Upper bound on the number of tokens of a sample."""
    dense: int
    """All rows before this number are tokens of a sample. Later rows may belong to no sample."""

    def join(self, other: Places, rows: int) -> Places:
        """Return the places of two batches. The other batch's rows come after the `rows` rows of this batch."""
        return Places(
            torch.cat([self.first_B, other.first_B + rows]),
            torch.cat([self.length_B, other.length_B]),
            max(self.longest, other.longest),
            self.dense,
        )


@dataclass(frozen=True)
class PackedText:
    """Rows of tokens, either as the text encoder returns them, or projected to the denoiser's width."""

    rows_NC: Tensor
    places: Places

    @property
    def longest(self) -> int:
        return self.places.longest

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows_NC, self.places.first_B, self.places.length_B

    def of(self, rows_NC: Tensor, first_B: Tensor, length_B: Tensor) -> PackedText:
        """Return a packed text with these tensors. The tensors' values may change later."""
        return PackedText(rows_NC, Places(first_B, length_B, self.longest, dense=0))


@dataclass(frozen=True)
class PackedKeyValue:
    """Keys (after their norm) and values of a block, in the same rows as the text."""

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
    """Return the step between allowed row counts. `most` is the number of tokens of a sample in a padded batch."""
    return -(-batch * most // (sizes * _MULTIPLE)) * _MULTIPLE


def pack(text: TextTokens, sizes: int = FEW_SIZES) -> PackedText:
    """Remove the padding of a batch, then append rows up to an allowed row count.

    At most `sizes` row counts are allowed. To remove rows without knowing the number of tokens, the host would have to
    wait for the device. If the host does not know this number, all rows are kept, and each sample's tokens come before
    its padding.
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
