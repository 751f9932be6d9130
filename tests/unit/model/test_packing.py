from __future__ import annotations

import pytest
import torch

from tintype.model.packing import pack
from tintype.seams import TextTokens

LENGTHS = (3, 1, 5)


@pytest.mark.parametrize("known", [True, False], ids=["lengths known", "lengths unknown"])
def test_each_sample_finds_its_tokens_and_no_padding(known: bool) -> None:
    tokens_BLC = torch.randn(3, 5, 4)
    mask_BL = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    packed = pack(TextTokens(tokens_BLC, mask_BL, LENGTHS if known else None))
    for index, (first, length) in enumerate(zip(packed.places.first_B, packed.places.length_B, strict=True)):
        assert torch.equal(packed.rows_NC[first : first + length], tokens_BLC[index][mask_BL[index]])
    assert packed.places.length_B.tolist() == list(LENGTHS) and packed.places.longest >= max(LENGTHS)
    assert packed.places.dense == (sum(LENGTHS) if known else 0)


def test_padding_before_the_tokens_is_moved_after_them() -> None:
    tokens_BLC, mask_BL = torch.randn(2, 4, 3), torch.tensor([[False, True, False, True], [True, True, True, False]])
    packed = pack(TextTokens(tokens_BLC, mask_BL))
    assert torch.equal(packed.rows_NC[:2], tokens_BLC[0][mask_BL[0]])
    assert packed.places.length_B.tolist() == [2, 3]


@pytest.mark.parametrize("sizes", [8, 16])
def test_batches_come_in_few_sizes(sizes: int) -> None:
    found = set()
    for length in range(1, 65):
        mask_BL = (torch.arange(64) < length).expand(32, -1)
        packed = pack(TextTokens(torch.zeros(32, 64, 2), mask_BL, (length,) * 32), sizes)
        found.add(len(packed.rows_NC))
        assert len(packed.rows_NC) < 32 * length + 32 * 64 // sizes
    assert len(found) <= sizes and all(size % 128 == 0 for size in found)
