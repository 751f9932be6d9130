"""Rows that the processes of a machine share in its memory: made once, whoever is killed, and gone with the last."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.runtime import fault, notes, shared
from tintype.runtime.rows import Content, DiskRows, Rows
from tintype.runtime.shared import open_rows

COUNT = 96
CONTENT = Content("numbers", (COUNT, 3, 5), torch.float16, "do without", bytes(range(32)))
IDS = list(range(COUNT))
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shared, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(notes, "_noted", set[str]())
    return tmp_path / "cache" / f"shared-{os.getuid()}"


def records(folder: Path) -> list[str]:
    return [one.name for one in folder.glob("*.*.*.*.*")]


def made(ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids, dtype=torch.float16)[:, None, None] + torch.arange(15).view(3, 5)


def running(work: Callable[[], None]) -> BaseProcess:
    process = FORK.Process(target=work, daemon=True)
    process.start()
    return process


def all_of(rows: Rows) -> Tensor:
    assert rows.missing(IDS) == []
    return rows.read(torch.arange(COUNT))


def filled_by(count: int, open_them: Callable[[], Rows], folder: Path) -> list[str]:
    """Fill the rows in several processes, and return `ID-PID` of each row that one of them made."""
    folder.mkdir()
    together = FORK.Barrier(count)

    def fill(ids: list[int]) -> None:
        rows = open_them()
        together.wait(30)

        def noted(some: Sequence[int]) -> Tensor:
            for id_ in some:
                (folder / f"{id_}-{os.getpid()}").touch()
            time.sleep(0.01)
            return made(some)

        rows.fill(ids, noted, portion=16)
        assert torch.equal(all_of(rows), made(IDS))
        together.wait(30)  # the memory is there as long as one of them is

    processes = [running(lambda ids=ids: fill(ids)) for ids in (IDS, IDS[::-1], IDS)[:count]]  # type: ignore[misc]
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * count
    return [one.name for one in folder.iterdir()]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_processes_make_each_row_once_and_read_the_same(kind: str, tmp_path: Path) -> None:
    def open_them() -> Rows:
        return open_rows(CONTENT) if kind == "memory" else DiskRows(tmp_path / "x.rows", CONTENT)

    names = filled_by(3, open_them, tmp_path / "made")
    assert sorted(int(name.partition("-")[0]) for name in names) == IDS, "each of them, by one process"
    assert len({name.partition("-")[2] for name in names}) > 1, "not all by the first"


def test_without_locks_each_process_makes_all_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    rows = DiskRows(tmp_path / "x.rows", CONTENT)
    assert rows.fill(IDS, made) == COUNT and torch.equal(all_of(rows), made(IDS))
    (note,) = caplog.messages
    assert "processes cannot share the work on numbers" in note and "No locks available" in note


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_what_a_killed_process_left_is_made_by_another(kind: str, tmp_path: Path) -> None:
    """It dies with its locks after it wrote rows and before their checksums."""

    def open_them() -> Rows:
        return open_rows(CONTENT) if kind == "memory" else DiskRows(tmp_path / "x.rows", CONTENT)

    def die() -> None:
        rows = open_them()
        fault.arm("rows.sum", lambda: os.kill(os.getpid(), signal.SIGKILL))
        rows.fill(IDS, lambda some: made(some) + 1)

    rows = open_them()
    rows.fill(IDS[:10], made)
    process = running(die)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert rows.fill(IDS, made) == COUNT - 10
    assert torch.equal(all_of(rows), made(IDS))


def test_a_row_that_is_being_made_is_waited_for(tmp_path: Path) -> None:
    rows, begun = open_rows(CONTENT), FORK.Event()

    def slowly(some: Sequence[int]) -> Tensor:
        begun.set()
        time.sleep(0.2)
        return made(some)

    process = running(lambda: (open_rows(CONTENT).fill([7], slowly), None)[1])
    assert begun.wait(30)
    assert rows.fill([7], made) == 0 and torch.equal(rows.read(torch.tensor([7])), made([7]))
    process.join(30)


def holding(folder: Path) -> Iterator[BaseProcess]:
    """Hold filled rows in another process until it is killed."""
    ready = FORK.Event()

    def hold() -> None:
        rows = open_rows(CONTENT)
        rows.fill(IDS, made)
        ready.set()
        time.sleep(60)

    process = running(hold)
    assert ready.wait(30)
    try:
        yield process
    finally:
        process.kill()
        process.join(30)


def test_memory_goes_with_the_last_process_though_it_was_killed(folder: Path) -> None:
    before = sorted(os.listdir("/dev/shm"))  # noqa: PTH208
    holder = holding(folder)
    number = next(holder).pid
    rows = open_rows(CONTENT)
    assert torch.equal(all_of(rows), made(IDS)) and len(records(folder)) == 2
    next(holder, None)  # killed
    again = open_rows(CONTENT)
    assert torch.equal(all_of(again), made(IDS)), "another process still has it"
    assert not any(f".{number}." in str(record) for record in records(folder)), "the killed process was found out"
    del rows, again
    next(holder := holding(folder))
    next(holder, None)
    assert sorted(os.listdir("/dev/shm")) == before  # noqa: PTH208
    assert open_rows(CONTENT).missing(IDS) == IDS, "all who had it are dead"


def test_rows_that_nobody_uses_are_closed_and_withdrawn(folder: Path) -> None:
    def memories() -> int:
        descriptors = Path("/proc/self/fd")
        return sum("/memfd:tintype" in os.readlink(one) for one in descriptors.iterdir() if one.is_symlink())  # noqa: PTH115

    rows = open_rows(CONTENT)
    rows.fill(IDS, made)
    assert memories() == 2 and len(records(folder)) == 1, "the memory, and its locks"
    assert "memfd:tintype" in Path("/proc/self/maps").read_text()
    del rows
    assert memories() == 0 and records(folder) == []
    assert "memfd:tintype" not in Path("/proc/self/maps").read_text()


def test_a_record_of_a_number_that_another_process_has_by_now_is_removed(folder: Path) -> None:
    rows = open_rows(CONTENT)
    rows.fill(IDS, made)
    (record,) = records(folder)
    machine, name, pid, started, number = record.split(".")
    reused = f"{machine}.{name}.{pid}.{int(started) - 1}.{number}"
    (folder / record).rename(folder / reused)
    assert open_rows(CONTENT).missing(IDS) == IDS and reused not in records(folder)


@pytest.mark.parametrize("damage", ["row", "sum", "swap", "last"])
def test_a_damaged_row_in_memory_is_made_again(damage: str) -> None:
    """`swap`: two rows with their checksums."""
    rows = open_rows(CONTENT)
    rows.fill(IDS, made)
    other = open_rows(CONTENT)
    if damage == "row":
        rows._byte_NK[5, 7] ^= 1
    elif damage == "last":
        rows._byte_NK[5, -1] ^= 0x80
    elif damage == "sum":
        rows._sum_N[5] ^= 1 << 40
    else:
        rows._byte_NK[[5, 9]] = rows._byte_NK[[9, 5]]
        rows._sum_N[[5, 9]] = rows._sum_N[[9, 5]]
    assert other.missing(IDS) == ([5, 9] if damage == "swap" else [5])
    other.fill(IDS, made)
    assert torch.equal(all_of(open_rows(CONTENT)), made(IDS))


def test_without_checksums_damage_in_memory_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.MemoryRows, "_sums", lambda self, id_M: torch.ones(len(id_M), dtype=torch.int64))
    rows = open_rows(CONTENT)
    rows.fill(IDS, made)
    rows._byte_NK[5, 7] ^= 1
    assert open_rows(CONTENT).missing(IDS) == []


def test_rows_in_memory_shared_or_not_and_on_the_disk_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [open_rows(CONTENT), DiskRows(tmp_path / "x.rows", CONTENT)]
    monkeypatch.setattr(shared, "SMALLEST_BYTES", 1 << 30)
    for rows in (*both, open_rows(CONTENT)):
        rows.fill(IDS, made)
        assert torch.equal(all_of(rows), made(IDS))
        found = torch.empty(3, 3, 5, dtype=torch.float16)
        assert rows.read_into([4, 1, 4], found) and torch.equal(found, made([4, 1, 4]))


def test_small_rows_write_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "SMALLEST_BYTES", 16 << 20)
    open_rows(CONTENT).fill(IDS, made)
    assert not folder.exists()


def test_memory_that_is_not_there_is_said_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(shared, "free_bytes", lambda: shared._RESERVE_BYTES + 1000)
    monkeypatch.setattr(os, "posix_fallocate", taken)
    with pytest.raises(
        UserError, match=r"the numbers need 3.89e-06 GB of memory, but only 1e-06 GB are free.*; do without"
    ):
        open_rows(CONTENT)


def test_memory_that_another_process_has_taken_needs_no_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = holding(folder)
    next(holder)
    monkeypatch.setattr(shared, "free_bytes", lambda: 0)
    assert torch.equal(all_of(open_rows(CONTENT)), made(IDS))
    next(holder, None)
    with pytest.raises(UserError, match="do without"):
        open_rows(CONTENT)


def test_where_memory_cannot_be_shared_rows_are_the_processs_own_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    for _ in range(2):
        rows = open_rows(CONTENT)
        assert rows.fill(IDS, made) == COUNT and torch.equal(all_of(rows), made(IDS))
    assert records(folder) == []
    assert caplog.messages == [
        "processes do not share the numbers, and each process makes its own copy: [Errno 38] Function not implemented"
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_counts(version: int, tmp_path: Path) -> None:
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    limit, usage, file_cache = names[version]
    (tmp_path / limit).write_text("1000\n")
    (tmp_path / usage).write_text("700\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\n{file_cache} 200\n")
    assert shared._free_in(tmp_path) == 500
    (tmp_path / limit).write_text("max\n")
    assert shared._free_in(tmp_path) > 1 << 60
    assert 0 < shared.free_bytes() < 1 << 50
