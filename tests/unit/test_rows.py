"""Files of rows: how they are made, and what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tintype.errors import UserError
from tintype.rows import Content, DiskRows, make_file

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
    assert (tmp_path / "x.rows").stat().st_size == 32 + 5 * (8 + 4 * 6)


def test_rows_of_nothing_but_zeros_are_known_to_be_there(tmp_path: Path) -> None:
    rows = DiskRows(tmp_path / "x.rows", content())
    rows.write(torch.tensor([2]), torch.zeros(1, 2, 3))
    assert DiskRows(tmp_path / "x.rows", content()).has(torch.tensor([1, 2])).tolist() == [False, True]


def test_a_file_with_another_stamp_is_refused(tmp_path: Path) -> None:
    DiskRows(tmp_path / "x.rows", content())
    with pytest.raises(UserError, match=r"x\.rows holds the numbers of something else; delete it"):
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
    with pytest.raises(UserError, match=rf"cannot make .*\({1 << 61} bytes\): .*TINTYPE_CACHE.*, or do without"):
        make_file(tmp_path / "x.rows", large)
    assert list(tmp_path.iterdir()) == []
