"""SIGKILL at each named point of a step, of a save and of a cache's rows: the run goes on and ends bit-identical."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.harness import CACHE_KILLS, KILLS, LATENT_KILLS, SNAPSHOT_KILLS
from tests.fault.promises import Promise
from tintype.train import fault

ROOT = Path(__file__).parents[2]
ALL = KILLS + SNAPSHOT_KILLS + LATENT_KILLS + CACHE_KILLS


ELSEWHERE = {"text.index"}
"""Points that tests/unit/text/test_segments.py dies at: what is lost there is encoded again."""


def test_every_named_point_is_tried() -> None:
    assert {point for point, _ in ALL} == set(fault.POINTS) - ELSEWHERE
    assert len(KILLS) >= 20


@pytest.mark.promise(2)
def test_a_killed_run_ends_bit_identical(promise: Promise, tmp_path: Path) -> None:
    """Kill at each named point of a step, a save, a snapshot and a cache's rows, then resume in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == len(ALL)
    for row in rows:
        promise.count(row["killed"] and row["resumed"] and row["identical"] and not row["leftovers"], row)


HARNESS = """
import sys, torch
import torch._dynamo  # an optimizer imports it, a second and a half in every child otherwise
from pathlib import Path
torch.set_num_threads(1)
from tests.fault.harness import main
main(Path(sys.argv[1]))
"""
