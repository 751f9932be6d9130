from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.gaussian import NoText
from tintype.data.captions import (
    NULL_CAPTION,
    Captions,
    ColumnSettings,
    captions_of,
    first_words,
    keep_some,
    parts_of,
    pick_weighted,
)
from tintype.seams import Draws, Record

RECORDS = [Record({"long": f"long {i}", "short": f"short {i}"}, None) for i in range(2000)]
CLAUSES = "A red ball, a blue cube; and a ring. It is lit from above!"
PARTS = ["A red ball,", "a blue cube;", "and a ring.", "It is lit from above!"]


def pick(dropout: float, seed: int = 0, count: int = 2000) -> list[str]:
    settings = ColumnSettings(column="short", dropout=dropout)
    return captions_of(RECORDS[:count], settings, Draws(seed, torch.arange(count)), 0, NoText()).texts


def test_the_column_is_read_and_each_sample_is_dropped_by_itself() -> None:
    assert pick(0.0) == [f"short {i}" for i in range(2000)]
    dropped = [caption == NULL_CAPTION for caption in pick(0.1)]
    assert 150 < sum(dropped) < 250
    assert dropped != [caption == NULL_CAPTION for caption in pick(0.1, seed=1)]


def test_what_is_drawn_depends_on_the_position_and_not_on_the_batch() -> None:
    """The text beside them has more parts, so more is drawn for the batch."""
    settings = ColumnSettings(dropout=0.5, keep_parts=0.5, max_words=9)
    records = [Record({"long": CLAUSES * (1 + i % 5)}, None) for i in range(40)]
    every = captions_of(records, settings, Draws(0, torch.arange(40)), 0, NoText()).texts
    alone = captions_of(records[5:7], settings, Draws(0, torch.tensor([5, 6])), 0, NoText()).texts
    assert alone == every[5:7]


def test_an_image_without_the_caption_reads_none_and_is_counted() -> None:
    records = [Record({"long": text} if text is not None else {}, None) for text in ("a", "", None, " \n", "b")]
    found = captions_of(records, ColumnSettings(dropout=0.0), Draws(0, torch.arange(5)), 0, NoText())
    assert found == Captions(["a", "", "", "", "b"], lacking=3)
    everything_dropped = captions_of(records, ColumnSettings(dropout=1.0), Draws(0, torch.arange(5)), 0, NoText())
    assert everything_dropped == Captions([""] * 5, lacking=3)


def test_weights_are_the_shares_of_the_captions() -> None:
    captions = {"long": "l", "short": "s", "other": "o"}
    grid = [(index + 0.5) / 1000 for index in range(1000)]
    shares = Counter(pick_weighted(captions, {"short": 3.0, "long": 7.0}, u) for u in grid)
    assert shares == {"l": 700, "s": 300}
    assert pick_weighted(captions, {"short": 0.1, "other": 0.1, "long": 0.1}, 1 - 2**-24) == "s"  # the last by name


def test_the_order_in_which_weights_are_listed_draws_the_same() -> None:
    captions, weights = {"long": "l", "short": "s"}, {"long": 0.4, "short": 0.6}
    other = dict(reversed(weights.items()))
    grid = [index / 100 for index in range(100)]
    assert [pick_weighted(captions, weights, u) for u in grid] == [pick_weighted(captions, other, u) for u in grid]


@pytest.mark.parametrize("empty", ["", "  ", None])
def test_the_others_share_the_weight_of_a_caption_that_is_not_there(empty: str | None) -> None:
    captions = {"long": "l", "short": "s"} | ({"tags": empty} if empty is not None else {})
    weights = {"long": 1.0, "short": 3.0, "tags": 96.0}
    grid = [(index + 0.5) / 1000 for index in range(1000)]
    assert Counter(pick_weighted(captions, weights, u) for u in grid) == {"l": 250, "s": 750}
    assert pick_weighted({"tags": "t"}, {"long": 1.0}, 0.5) == NULL_CAPTION


def test_captions_are_parted_at_sentences_and_clauses() -> None:
    assert parts_of(CLAUSES) == PARTS
    assert parts_of("3,000 balls of 1.5 cm") == ["3,000 balls of 1.5 cm"]
    assert parts_of("one\n two") == ["one", "two"]
    assert parts_of("红球，蓝色。") == ["红球，", "蓝色。"]
    assert parts_of("  ") == []


def test_parts_are_kept_by_themselves_in_order_and_one_at_least() -> None:
    n, p = 40_000, 0.3
    texts = keep_some([CLAUSES] * n, p, Draws(0, torch.arange(n)))
    kept = [[part.rstrip(",;") in text for part in PARTS] for text in texts]
    assert all(any(one) for one in kept)
    assert all(text.find("ball") < text.find("lit") for text in texts if "ball" in text and "lit" in text)
    expected = p + (1 - p) ** 4 / 4
    for part in zip(*kept, strict=True):
        assert sum(part) / n == pytest.approx(expected, abs=0.01)
    both = sum(one[0] and one[1] for one in kept) / n
    assert both == pytest.approx(p * p, abs=0.01)
    assert CLAUSES in texts and not any(text.endswith((",", ";")) for text in texts)


def test_a_caption_without_parts_stays() -> None:
    assert keep_some(["", "one"], 0.01, Draws(0, torch.arange(2))) == ["", "one"]


def test_a_caption_is_truncated_after_its_words_as_they_are_written() -> None:
    assert first_words("a  red, ball on", 3) == "a  red, ball"
    assert first_words(" a red ball ", 3) == " a red ball "
    assert first_words("", 1) == ""


def test_the_parts_go_before_the_words_are_counted() -> None:
    settings = ColumnSettings(keep_parts=0.5, max_words=2, dropout=0.0)
    records = [Record({"long": CLAUSES}, None)] * 200
    texts = set(captions_of(records, settings, Draws(0, torch.arange(200)), 0, NoText()).texts)
    assert texts == {"A red", "a blue", "and a", "It is"}
