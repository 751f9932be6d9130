from __future__ import annotations

import pytest
import torch

from tintype.data.buckets import Bucketed
from tintype.data.order import Shuffled, ids_at
from tintype.seams import Order


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


ORDERS = [Shuffled(3, range(23)), Bucketed(3, torch.tensor([0, 1, 1, 0, 0, 1, 0, 2] * 3)[:23], 4)]


@pytest.mark.parametrize("order", ORDERS, ids=["shuffled", "bucketed"])
@pytest.mark.parametrize("span", [(0, 9), (0, 23), (0, 40), (17, 40), (17, 45), (5, 61), (0, 120)])
def test_what_is_prepared_is_all_that_is_read(order: Order, span: tuple[int, int]) -> None:
    """Also from within an epoch on, as a resumed run reads: the rest of one epoch and the start of the next overlap."""
    first, end = span
    chunks = list(order.once(first, end, 4))
    prepared = [id_ for chunk in chunks for id_ in chunk]
    assert set(prepared) == set(order.ids(first, end - first))
    assert max(map(len, chunks)) <= 4 and len(prepared) < 2 * 23
    if span == (5, 61) and isinstance(order, Shuffled):
        assert sorted(prepared) == list(range(23)), "each once"
