"""Files of rows: how they are made, and what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tintype.errors import UserError
from tintype.runtime.rows import Content, DiskRows, make_file

STAMP = bytes(range(32))


def content(count: int = 5, stamp: bytes = STAMP) -> Content:
    return Content("numbers", (count, 2, 3), torch.float32, "do without", stamp)


def some(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.float32)[:, None, None].expand(-1, 2, 3) + torch.rand(2, 3)


def test_a_row_comes_back_to_the_last_bit_and_others_are_not_there(tmp_path: Path) -> None:
    rows, written = DiskRows(tmp_path / "x.rows", content()), some(1, 4)
    rows.write(torch.tensor([1, 4]), written)
    again = DiskRows(tmp_path / "x.rows", content())
    assert again.has(torch.arange(5)).tolist() == [False, True, False, False, True] and again.count == 2
    assert torch.equal(again.read(torch.tensor([4, 1])), written.flip(0))
    assert (tmp_path / "x.rows").stat().st_size == 16 + 32 + 5 * (8 + 4 * 6)


def test_rows_of_nothing_but_zeros_are_known_to_be_there(tmp_path: Path) -> None:
    rows = DiskRows(tmp_path / "x.rows", content())
    rows.write(torch.tensor([2]), torch.zeros(1, 2, 3))
    assert DiskRows(tmp_path / "x.rows", content()).has(torch.tensor([1, 2])).tolist() == [False, True]


def test_a_file_with_another_stamp_is_refused(tmp_path: Path) -> None:
    DiskRows(tmp_path / "x.rows", content())
    with pytest.raises(UserError, match=r"x\.rows contains other numbers; delete this file"):
        DiskRows(tmp_path / "x.rows", content(stamp=bytes(32)))


def test_of_two_that_make_a_file_the_first_wins(tmp_path: Path) -> None:
    """Else the first would go on writing into a file that no one else can find."""
    file = tmp_path / "x.rows"
    first = DiskRows(file, content())
    make_file(file, content())
    first.write(torch.tensor([3]), some(3))
    assert DiskRows(file, content()).count == 1
    assert [one.name for one in tmp_path.iterdir()] == ["x.rows"]


def test_a_file_system_without_links_has_caches_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    DiskRows(tmp_path / "x.rows", content()).write(torch.tensor([3]), some(3))
    assert DiskRows(tmp_path / "x.rows", content()).count == 1
    assert [one.name for one in tmp_path.iterdir()] == ["x.rows"]


def test_room_that_cannot_be_had_after_all_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 63))
    large = Content("numbers", (1 << 57,), torch.int64, "do without")
    with pytest.raises(
        UserError, match=rf"cannot create .*\({(1 << 61) + 16} bytes\): .*TINTYPE_CACHE.*, or do without"
    ):
        make_file(tmp_path / "x.rows", large)
    assert list(tmp_path.iterdir()) == []


def test_swapped_numbers_and_swapped_rows_are_noticed(tmp_path: Path) -> None:
    """Also where the checksums are swapped with the rows: each is of its own place."""
    DiskRows(tmp_path / "x.rows", content()).write(torch.arange(5), some(0, 1, 2, 3, 4))
    good = (tmp_path / "x.rows").read_bytes()
    sums, rows = 48, 48 + 5 * 8

    def swapped(*pairs: tuple[int, int, int]) -> list[bool]:
        bad = bytearray(good)
        for one, other, size in pairs:
            bad[one : one + size], bad[other : other + size] = good[other : other + size], good[one : one + size]
        (tmp_path / "x.rows").write_bytes(bad)
        return DiskRows(tmp_path / "x.rows", content()).has(torch.arange(5)).tolist()

    assert swapped() == [True] * 5
    assert swapped((rows + 24, rows + 28, 4)) == [True, False, True, True, True]
    assert swapped((rows + 24, rows + 72, 24)) == [True, False, True, False, True]
    assert swapped((rows + 24, rows + 72, 24), (sums + 8, sums + 24, 8)) == [True, False, True, False, True]


def test_a_row_of_another_file_is_noticed(tmp_path: Path) -> None:
    for name, stamp in (("one", STAMP), ("two", bytes(32))):
        DiskRows(tmp_path / name, content(stamp=stamp)).write(torch.arange(5), some(0, 1, 2, 3, 4))
    one, two = bytearray((tmp_path / "one").read_bytes()), (tmp_path / "two").read_bytes()
    one[48:] = two[48:]
    (tmp_path / "one").write_bytes(one)
    assert not DiskRows(tmp_path / "one", content()).has(torch.arange(5)).any()


def test_a_file_of_the_earlier_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "x.rows").write_bytes(STAMP + bytes(5 * (8 + 24)))
    with pytest.raises(UserError, match=r"x\.rows is damaged .*written by an earlier version.*; delete this file"):
        DiskRows(tmp_path / "x.rows", content())
