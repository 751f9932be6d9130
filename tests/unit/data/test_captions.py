from __future__ import annotations

import torch

from tintype.data.captions import NULL_CAPTION, Column, captions_of
from tintype.seams import Draws, Record

RECORDS = [Record({"long": f"long {i}", "short": f"short {i}"}, None) for i in range(2000)]


def pick(dropout: float, seed: int = 0, count: int = 2000) -> list[str]:
    return captions_of(RECORDS[:count], Column("short"), dropout, Draws(seed, torch.arange(count)))


def test_the_column_is_read_and_each_sample_is_dropped_by_itself() -> None:
    assert pick(0.0) == [f"short {i}" for i in range(2000)]
    dropped = [caption == NULL_CAPTION for caption in pick(0.1)]
    assert 150 < sum(dropped) < 250
    assert dropped != [caption == NULL_CAPTION for caption in pick(0.1, seed=1)]


def test_dropout_depends_on_the_position_and_not_on_the_batch() -> None:
    alone = captions_of(RECORDS[5:7], Column("short"), 0.5, Draws(0, torch.tensor([5, 6])))
    assert alone == pick(0.5)[5:7]
