"""Identities on record and those of today are compared in one place, with one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tintype.errors import UserError
from tintype.runtime.identity import check_pin, check_same, in_words

FIRST, SECOND = "0a" * 32, "0b" * 32


def test_the_error_says_where_what_and_the_remedy() -> None:
    with pytest.raises(UserError) as found:
        check_same(Path("loaded.json"), "identity of 'text'", FIRST, SECOND, "put the first one back")
    assert str(found.value) == (
        "loaded.json records another identity of 'text' (0a0a0a0a0a0a… there, 0b0b0b0b0b0b… here); "
        "put the first one back"
    )


def test_nested_settings_are_compared_by_key_and_lost_ones_count() -> None:
    there, here = {"data": {"size_px": 16, "seed": 1}, "images": 3}, {"data": {"size_px": 32, "seed": 1}}
    check_same("it", "cache", there, there, "")
    with pytest.raises(UserError, match=r"\(data\.size_px: 16 there, 32 here; images: 3 there, None here\)"):
        check_same("it", "cache", there, here, "")
    check_same("it", "cache", there, here, "", unless=lambda: True)


def test_a_pin_is_the_first_digits_and_none_stands_for_any() -> None:
    for pin in (None, FIRST[:8], FIRST):
        check_pin("data.sha256", pin, "the store", FIRST, "give the right path")
    with pytest.raises(UserError, match=r"data\.sha256 records .*give the right path, or leave sha256 out"):
        check_pin("data.sha256", SECOND[:8], "the store", FIRST, "give the right path")


def test_six_changes_are_shown_and_long_values_cut() -> None:
    text = in_words({str(number): ("x" * 99, number) for number in range(9)})
    assert text.count("there") == 6 and "x" * 61 not in text
