"""SIGKILL at each named point of a step, of a save and of a cache's rows: the run goes on and ends bit-identical."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fault.harness import BACKGROUND_KILLS, CACHE_KILLS, KILLS, LATENT_KILLS, SNAPSHOT_KILLS
from tests.fault.promises import Promise
from tests.fault.test_along import KEEP_KILLS
from tintype.runtime import fault

ROOT = Path(__file__).parents[2]
ALL = {
    "run": KILLS,
    "snapshots": SNAPSHOT_KILLS,
    "background": BACKGROUND_KILLS,
    "latents": LATENT_KILLS,
    "cache": CACHE_KILLS,
}
SHORT = {"run": 8, "snapshots": 2, "background": 3, "latents": 2, "cache": 1}
"""How many of each `make test-slow` tries."""

ELSEWHERE = {"text.index", *(point for point, _ in KEEP_KILLS)}
"""Points that other tests die at: tests/unit/runtime/test_segments.py, and tests/fault/test_along.py while keeping."""


def test_every_named_point_is_tried() -> None:
    assert {point for kills in ALL.values() for point, _ in kills} == set(fault.POINTS) - ELSEWHERE
    assert len(KILLS) >= 20


def rows_of(root: Path, wanted: dict[str, list[tuple[str, int]]], at_random: int, before: str = "") -> list[Any]:
    script = HARNESS.format(wanted=wanted, at_random=at_random, before=before)
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    rows: list[Any] = json.loads(done.stdout)
    assert len(rows) == sum(map(len, wanted.values())) + at_random
    assert all(row["killed"] for row in rows)
    return rows


def is_whole(row: dict[str, Any]) -> bool:
    return row["resumed"] and row["identical"] and not row["leftovers"]


@pytest.mark.slow
@pytest.mark.promise(2)
def test_a_killed_run_ends_bit_identical(promise: Promise, tmp_path: Path) -> None:
    """Kill at each named point of a step, a save, a snapshot and a cache's rows, or five times at random, and resume"""
    wanted = {name: promise.choose(kills, short=SHORT[name]) for name, kills in ALL.items()}
    for row in rows_of(tmp_path, wanted, at_random=10 if promise.full else 1):
        promise.count(is_whole(row), row)


@pytest.mark.slow
@pytest.mark.promise(2, control="checkpoints written in place")
def test_without_a_rename_a_kill_leaves_a_half_checkpoint(promise: Promise, tmp_path: Path) -> None:
    wanted: dict[str, list[tuple[str, int]]] = {name: [] for name in ALL}
    wanted["run"] = [("save.state", 2), ("save.manifest", 1)]
    for row in rows_of(tmp_path, wanted, at_random=0, before="write_in_place()"):
        promise.count(is_whole(row), row)


HARNESS = """
import sys, torch
import torch._dynamo  # an optimizer imports it, a second and a half in every child otherwise
from pathlib import Path
torch.set_num_threads(1)
from tests.fault.harness import main, write_in_place
{before}
main(Path(sys.argv[1]), {wanted!r}, {at_random})
"""
