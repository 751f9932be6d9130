"""Shares of a pool of memory, on a pretend GPU: who gets one, beside whom, and what becomes of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tintype.runtime import pools
from tintype.runtime.host import Process
from tintype.runtime.pools import Host, Level
from tintype.runtime.shares import SPARE_SHARE, Shares

GIB = 1 << 30
TOTAL = 100 * GIB


@dataclass
class Pretend:
    """A GPU of a given size. What others than the test hold of it is `strangers`."""

    strangers: int = 0
    ours: int = 0
    own: int = 0
    name: str = "pretend"
    empty_share: float = 0.9

    def read(self) -> Level:
        return Level(TOTAL - self.strangers - self.ours, TOTAL)

    def own_bytes(self) -> int:
        return self.own


@pytest.fixture
def gpu() -> Pretend:
    return Pretend()


@pytest.fixture
def shares(gpu: Pretend, tmp_path: Path) -> Shares:
    return Shares(gpu, tmp_path)


def test_shares_are_given_until_the_pool_is_promised(shares: Shares) -> None:
    """Nothing is in use yet, and so no allocation could tell."""
    held = [shares.take(30 * GIB) for _ in range(4)]
    assert [one is not None for one in held] == [True, True, True, False]
    assert shares.left() == int((0.1 - SPARE_SHARE) * TOTAL)
    held[0].release()  # type: ignore[union-attr]
    assert shares.take(30 * GIB) is not None


def test_what_is_in_use_is_not_counted_twice(shares: Shares, gpu: Pretend) -> None:
    gpu.ours = gpu.own = 30 * GIB  # of the process that takes the share: it holds this already
    share = shares.take(40 * GIB)
    assert share is not None and not share.whole
    assert shares.left() == 60 * GIB - int(SPARE_SHARE * TOTAL), "ten more are promised"


def test_memory_of_strangers_is_not_given(shares: Shares, gpu: Pretend) -> None:
    gpu.strangers = 60 * GIB
    assert shares.take(38 * GIB) is None and shares.take(60 * GIB) is None, "it waits until they are gone"
    assert shares.take(36 * GIB) is not None
    gpu.strangers = 0
    assert shares.take(50 * GIB) is not None


@pytest.mark.parametrize("wanted", [None, TOTAL, 98 * GIB])
def test_what_needs_the_whole_pool_has_it_alone(wanted: int | None, shares: Shares) -> None:
    beside = shares.take(GIB)
    assert beside is not None and shares.take(wanted) is None
    beside.release()
    alone = shares.take(wanted)
    assert alone is not None and alone.whole and alone.empty and alone.bytes == TOTAL
    assert shares.take(GIB) is None and shares.left() == 0
    alone.release()
    assert shares.take(GIB) is not None


def test_a_share_that_was_taken_beside_strangers_is_not_called_empty(shares: Shares, gpu: Pretend) -> None:
    gpu.strangers = 60 * GIB
    share = shares.take(None)
    assert share is not None and share.whole and not share.empty and share.bytes == 40 * GIB


def test_a_run_is_alone_where_nobody_else_holds_anything_of_note(shares: Shares, gpu: Pretend) -> None:
    share = shares.take(20 * GIB)
    assert share is not None
    found = [share.is_alone]
    for gpu.strangers, gpu.ours in ((20 * GIB, 0), (0, 20 * GIB)):
        gpu.own = gpu.ours
        found.append(share.is_alone)
    share.release()
    assert [*found, share.is_alone] == [True, False, True, False]


def test_the_share_of_a_killed_process_counts_no_more(shares: Shares) -> None:
    child = os.fork()
    if child == 0:
        os._exit(9 if shares.take(90 * GIB) is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert list(shares.folder.glob("*.json")) and shares.take(90 * GIB) is not None


def test_a_damaged_share_promises_nothing(shares: Shares) -> None:
    shares.folder.mkdir(parents=True)
    whole = {"process": vars(Process.this()), "bytes": 90 * GIB, "used": 0, "whole": False}
    for number, text in enumerate(("", "[1]", "{", json.dumps({**whole, "bytes": "x"}), json.dumps({"bytes": 1}))):
        (shares.folder / f"{number}.json").write_text(text)
    assert shares.take(90 * GIB) is not None


def test_the_host_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    level = Host().read()
    assert 0 < level.free <= level.total and 0 < Host().own_bytes() < level.total
    for name, text in (("memory.max", f"{4 * GIB}\n"), ("memory.current", f"{3 * GIB}\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {GIB // 2}\n")
    monkeypatch.setattr(pools, "_CGROUP", tmp_path)
    assert Host().read() == Level(min(level.free, 3 * GIB // 2), 4 * GIB) or Host().read().total == 4 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert Host().read().total == level.total


def test_a_folder_that_somebody_else_has_taken_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: Pretend
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    ours, name = Shares(gpu).folder, tmp_path / f"tintype-{os.getuid()}"
    assert ours.is_relative_to(name)
    name.rmdir()
    name.symlink_to(tmp_path / "elsewhere")
    assert Shares(gpu).folder.is_relative_to(tmp_path / "cache")
