"""A study on a real Slurm: workers are preempted and run into their time limit, and no number changes.

`make test-slurm` runs it; it takes minutes, needs root and starts daemons (`tools/slurm_cluster.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.test_study import STUDY, environment
from tests.fault.crowd import about
from tests.tiny import TINY
from tintype.study.status import status_of
from tools.slurm_cluster import Cluster, cluster, why_not

pytestmark = pytest.mark.skipif("TINTYPE_SLURM" not in os.environ, reason="`make test-slurm` runs it")
STEPS = 400
MOST_S = 900.0


def tintype(*arguments: str, env: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-m", "tintype", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**environment(), **(env or {})})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def logs(out: Path) -> str:
    return "".join(file.read_text() for file in sorted((out / "launch").glob("worker-*.log")))


def preempt(slurm: Cluster, out: Path, stops: int) -> None:
    """Take a GPU from a worker that trains, and wait until so many have saved."""
    _until(lambda: bool(status_of(out).of("running")), slurm)
    slurm.ask("sbatch", "-p", "high", "--gpus-per-node=1", "--wrap", "sleep 5", "-o", "/dev/null")
    _until(lambda: logs(out).count("what it had begun is saved") >= stops, slurm)


def _until(there: object, slurm: Cluster) -> None:
    assert callable(there)
    deadline_s = time.monotonic() + MOST_S
    while not there():
        assert time.monotonic() < deadline_s
        slurm.begin_again()
        time.sleep(1)


def test_a_study_on_slurm_survives_preemption_and_the_time_limit(tmp_path: Path) -> None:
    """Two preemptions, and a time limit of three minutes whose signal comes after one."""
    assert not why_not()
    (tmp_path / "plan.yaml").write_text(TINY.replace("steps: 6", f"steps: {STEPS}"))
    file, out, whole = tmp_path / "study.yaml", tmp_path / "out", tmp_path / "whole"
    seeds = STUDY.replace("[0, 1]", "[0, 1, 2, 3]").replace("[5, 6]", "[5, 6, 7, 8]")
    file.write_text(seeds.replace("PLAN", str(tmp_path / "plan.yaml")))
    tintype("ablate", str(file), "--out", str(out), "--prepare")
    (tmp_path / "slurm").mkdir()
    with cluster(tmp_path / "slurm") as slurm:
        options = ["--workers", "2", "--gpus-per-worker", "1", "--time", "3m", "--partition", "low"]
        tintype("launch", str(out), "--on", "slurm", *options, env=slurm.env)
        preempt(slurm, out, 1)
        preempt(slurm, out, 2)
        _until(lambda: status_of(out).is_over and not slurm.ask("squeue", "-h"), slurm)
    tintype("ablate", str(file), "--out", str(whole), "--jobs", "1")
    found, expected = about(file, out), about(file, whole)
    assert {name: run["numbers"] for name, run in found["runs"].items()} == {  # type: ignore[attr-defined]
        name: run["numbers"]
        for name, run in expected["runs"].items()  # type: ignore[attr-defined]
    }
    assert not found["half"]
    stopped = logs(out).count("what it had begun is saved")
    print(f"{stopped} times a worker was told to stop, {logs(out).count('saved at step')} times in the middle of a run")
    assert stopped >= 3
