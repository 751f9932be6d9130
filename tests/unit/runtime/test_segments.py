"""Blocks by key that several processes add to one folder."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tintype.errors import UserError
from tintype.runtime import fault
from tintype.runtime.segments import KEY_BYTES, Segments

STAMP = bytes(range(32))


def opened(folder: Path, stamp: bytes = STAMP) -> Segments:
    return Segments(folder, stamp, "do without")


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "little")


def block(number: int) -> bytes:
    return bytes([number % 251]) * (8 + number)


def add(kept: Segments, *numbers: int) -> None:
    kept.add([(key(number), block(number)) for number in numbers])


def there(kept: Segments, *numbers: int) -> list[int]:
    missing = kept.missing([key(number) for number in numbers])
    found = [number for number in numbers if key(number) not in missing]
    for number in found:
        view = kept.get(key(number))
        assert view is not None and bytes(view) == block(number)
    return found


def test_blocks_come_back_and_others_are_not_there(tmp_path: Path) -> None:
    kept = opened(tmp_path / "new")
    add(kept, 1, 2)
    add(kept, 3)
    for one in (kept, opened(tmp_path / "new")):
        assert there(one, 1, 2, 3, 4) == [1, 2, 3]


def test_nothing_is_made_before_something_is_added(tmp_path: Path) -> None:
    assert there(opened(tmp_path / "new"), 1) == []
    assert not (tmp_path / "new").exists()


def test_writers_see_what_others_add(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    add(first, 1)
    assert there(second, 1) == [1]
    add(second, 2)
    add(first, 3, 2)
    assert there(first, 1, 2, 3) == there(second, 1, 2, 3) == [1, 2, 3]


def test_many_write_and_read_at_once(tmp_path: Path) -> None:
    """Each with its own view of the folder, as processes have: they share nothing but the files."""

    def write(first: int) -> list[int]:
        kept, seen = opened(tmp_path), []
        for number in range(first, 300, 3):
            add(kept, number, 500 + number % 7)
            seen.append(len(there(kept, *range(0, 300, 10))))  # what is found meanwhile is whole
        return seen

    with ThreadPoolExecutor(3) as pool:
        seen = list(pool.map(write, range(3)))
    assert all(counts == sorted(counts) for counts in seen)
    assert there(opened(tmp_path), *range(300), *range(500, 507)) == [*range(300), *range(500, 507)]
    assert len(list(tmp_path.glob("*.index"))) == 3


def test_a_process_that_was_forked_writes_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = opened(tmp_path)
    add(kept, 1)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    add(kept, 2)
    assert len(list(tmp_path.glob("*.index"))) == 2 and there(opened(tmp_path), 1, 2) == [1, 2]


def test_a_block_whose_process_died_before_its_record_is_not_there(tmp_path: Path) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    kept = opened(tmp_path)
    add(kept, 1)
    fault.arm("text.index", die)
    with pytest.raises(KeyboardInterrupt):
        add(kept, 2)
    fault.disarm()
    again = opened(tmp_path)
    assert there(again, 1, 2) == [1]
    add(again, 2)
    add(kept, 3)
    assert there(opened(tmp_path), 1, 2, 3) == [1, 2, 3]


def only(folder: Path, pattern: str) -> Path:
    (file,) = folder.glob(pattern)
    return file


def test_damage_is_found_and_mended(tmp_path: Path) -> None:
    add(opened(tmp_path), 1, 2)
    rows = only(tmp_path, "*.rows")
    content = bytearray(rows.read_bytes())
    content[0] ^= 1
    rows.write_bytes(content)
    kept = opened(tmp_path)
    assert there(kept, 1, 2) == [2]
    add(kept, 1)
    assert there(kept, 1, 2) == [1, 2]


@pytest.mark.parametrize("pattern", ["*.rows", "*.index"])
def test_a_file_that_was_cut_short_loses_its_last_block_only(tmp_path: Path, pattern: str) -> None:
    add(opened(tmp_path), 1, 2)
    file = only(tmp_path, pattern)
    os.truncate(file, file.stat().st_size - 3)
    assert there(opened(tmp_path), 1, 2) == [1]


def test_rows_that_are_gone_are_not_there(tmp_path: Path) -> None:
    add(opened(tmp_path), 1)
    only(tmp_path, "*.rows").unlink()
    assert there(opened(tmp_path), 1) == []


def test_blocks_of_another_folder_do_not_count(tmp_path: Path) -> None:
    add(opened(tmp_path), 1)
    assert there(opened(tmp_path, stamp=bytes(32)), 1) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file/inner: Not a directory.*TINTYPE_CACHE.*, or do without"):
        add(opened(tmp_path / "file" / "inner"), 1)
