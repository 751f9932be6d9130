"""Runs of two ranks beside runs of one in a study: a worker lets torchrun train them, and scores them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.test_ranks import launch
from tests.end_to_end.test_study import STUDY, environment, tintype
from tests.tiny import TINY
from tintype.runtime.leases import Leases
from tintype.study.folder import stored_study
from tintype.study.runner import Task, tasks_of
from tintype.study.status import status_of

RESOLUTIONS = """
resolutions:
  - {name: small}
  - {name: large, set: [data.size_px=32, run.ranks=2]}
"""


def prepare(folder: Path, steps: int) -> Path:
    """Make a study of two runs, one of them with two ranks."""
    (folder / "plan.yaml").write_text(TINY.replace("steps: 6", f"steps: {steps}"))
    text = STUDY.replace("PLAN", str(folder / "plan.yaml")).replace(
        "\nseeds: [0, 1]\ncontrol_seeds: [5, 6]", "\nseeds: [0]"
    )
    text = text.replace("arms:\n  - techniques: [x-prediction]", "arms: []")
    (folder / "study.yaml").write_text(text + RESOLUTIONS)
    done = tintype("ablate", str(folder / "study.yaml"), "--out", str(folder / "out"), "--prepare")
    assert done.returncode == 0, done.stderr
    return folder / "out"


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def by_hand(task: Task, folder: Path) -> list[float]:
    """Train the plan of a run by torchrun alone; return its losses."""
    (folder / "alone.yaml").write_text(task.plan.to_yaml())
    done = launch("-m", "tintype", "train", str(folder / "alone.yaml"), "--out", str(folder / "alone"))
    assert done.returncode == 0, done.stderr
    return losses(folder / "alone")


@pytest.mark.slow
def test_a_run_of_two_ranks_has_the_losses_of_torchrun_by_hand(tmp_path: Path) -> None:
    out = prepare(tmp_path, 6)
    small, large = tasks_of(stored_study(out), out)
    done = tintype("work", str(out))
    assert done.returncode == 0 and len(status_of(out).of("done")) == 2, done.stderr
    made_on = [json.loads((task.folder / "environment.json").read_text())["ranks"] for task in (small, large)]
    assert made_on == [1, 2]
    assert losses(large.folder) == by_hand(large, tmp_path)
    states = [(one.ended or {})["state"] for one in Leases(out / "leases").history(large.plan.hash)]
    assert states == ["interrupted", "done"], "the ranks give the lease back, and the worker scores"


@pytest.mark.slow
def test_a_killed_rank_and_a_stopped_worker_change_no_loss(tmp_path: Path) -> None:
    out = prepare(tmp_path, 60)
    _, large = tasks_of(stored_study(out), out)
    command = [sys.executable, "-m", "tintype", "work", str(out)]

    def until_training(work: subprocess.Popen[bytes], claims: int) -> int:
        """Return the first rank's process, once the run has so many claims and the last one trains."""
        deadline_s = time.monotonic() + 300
        while time.monotonic() < deadline_s and work.poll() is None:
            history = Leases(out / "leases").history(large.plan.hash)
            if len(history) == claims and history[-1].ended is None and list(large.folder.glob("checkpoints/step-*")):
                return history[-1].process.pid
            time.sleep(0.05)
        raise AssertionError((out / "launch" / f"ranks-{large.plan.hash}.log").read_text())

    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as work:
        os.kill(until_training(work, 1), signal.SIGKILL)
        until_training(work, 2)
        work.terminate()
    assert work.returncode == 143
    assert [run.state for run in status_of(out).runs] == ["done", "waiting"]
    done = tintype("work", str(out))
    assert done.returncode == 0 and status_of(out).is_over, done.stderr
    assert losses(large.folder) == by_hand(large, tmp_path)
