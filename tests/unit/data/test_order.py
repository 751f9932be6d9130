from __future__ import annotations

import pytest
import torch

from tintype.data.order import ids_at


@pytest.mark.parametrize("size", [1, 2, 3, 10, 64, 1000])
def test_each_epoch_is_a_permutation(size: int) -> None:
    for epoch in range(3):
        assert sorted(ids_at(5, epoch * size, size, size).tolist()) == list(range(size))


def test_epochs_and_seeds_differ_and_are_shuffled() -> None:
    first, second = ids_at(0, 0, 500, 500), ids_at(0, 500, 500, 500)
    other_seed = ids_at(1, 0, 500, 500)
    for other in (second, other_seed, torch.arange(500)):
        assert int((first == other).sum()) < 10


def test_any_cut_of_the_stream_gives_the_same_order() -> None:
    whole = ids_at(9, 0, 250, 97)
    for batch in (1, 7, 50):
        cut = torch.cat([ids_at(9, start, batch, 97) for start in range(0, 250, batch)])[:250]
        assert torch.equal(cut, whole)
