"""A study on a real Ray: workers are killed and a raylet is, and no number changes.

`make test-ray` runs it; it takes minutes and needs the extra `ray` (`tools/ray_cluster.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.test_study import STUDY, environment
from tests.fault.crowd import about
from tests.slurm.test_slurm import logs, tintype
from tests.tiny import TINY
from tintype.runtime.leases import Claim, Leases
from tintype.study.status import status_of
from tools.ray_cluster import cluster, why_not

pytestmark = pytest.mark.skipif("TINTYPE_RAY" not in os.environ, reason="`make test-ray` runs it")
STEPS = 200
MOST_S = 600.0


def write_study(folder: Path, seeds: int) -> Path:
    (folder / "plan.yaml").write_text(TINY.replace("steps: 6", f"steps: {STEPS}"))
    controls = [seeds + 1 + seed for seed in range(seeds)]
    text = STUDY.replace("[0, 1]", str([*range(seeds)])).replace("[5, 6]", str(controls))
    (folder / "study.yaml").write_text(text.replace("PLAN", str(folder / "plan.yaml")))
    return folder / "study.yaml"


@contextmanager
def launched(out: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tintype", "launch", str(out), "--on", "ray", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as it:
        try:
            yield it
        finally:
            it.kill()


def held(out: Path) -> list[Claim]:
    """Return the claims of workers that train now."""
    newest = [Leases(out / "leases").newest(folder.name) for folder in (out / "leases").glob("*")]
    return [one for one in newest if one and one.ended is None and not one.is_dead and one.now.get("step")]


def until(there: Callable[[], object], launch: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + MOST_S
    while not there():
        assert launch.poll() is None, launch.communicate()[0]
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def kill_one(out: Path, launch: subprocess.Popen[str], choose: Callable[[int], int]) -> None:
    """Kill the process that is chosen for a worker that trains; wait until another has taken its run over."""
    until(lambda: held(out), launch)
    victim = held(out)[0]
    os.kill(choose(victim.process.pid), signal.SIGKILL)
    until(lambda: all(one.process != victim.process for one in held(out)), launch)


def same_numbers(file: Path, out: Path, whole: Path) -> None:
    found, expected = about(file, out), about(file, whole)
    assert {name: run["numbers"] for name, run in found["runs"].items()} == {  # type: ignore[attr-defined]
        name: run["numbers"]
        for name, run in expected["runs"].items()  # type: ignore[attr-defined]
    }
    assert not found["half"]
    assert all(run["done"] == 1 for run in found["runs"].values())  # type: ignore[attr-defined]


def test_a_study_on_ray_survives_killed_workers_and_a_killed_raylet(tmp_path: Path) -> None:
    assert not why_not()
    file, out, whole = write_study(tmp_path, 4), tmp_path / "out", tmp_path / "whole"
    tintype("ablate", str(file), "--out", str(out), "--prepare")
    options = ["--workers", "2", "--gpus-per-worker", "1"]
    with cluster() as ray, launched(out, "--address", ray.address, *options) as launch:
        kill_one(out, launch, lambda worker: worker)
        kill_one(out, launch, parent_of)
        until(lambda: len(held(out)) == 2, launch)
        before = {one.process for one in held(out)}
        ray.lose_node(0)
        until(lambda: before - {one.process for one in held(out)}, launch)
        said, _ = launch.communicate(timeout=MOST_S)
        assert launch.returncode == 0, said + logs(out)
    assert "Ray has 2 CPUs and 2 GPUs" in said and status_of(out).is_over
    deaths = sum(run.deaths for run in status_of(out).runs)
    print(f"{deaths} workers died in the middle of a run")
    assert deaths >= 3
    tintype("ablate", str(file), "--out", str(whole), "--jobs", "1")
    same_numbers(file, out, whole)


def test_a_launch_on_a_local_ray_saves_when_it_is_told_to_stop(tmp_path: Path) -> None:
    file, out, whole = write_study(tmp_path, 2), tmp_path / "out", tmp_path / "whole"
    tintype("ablate", str(file), "--out", str(out), "--prepare")
    options = ["--address", "local", "--workers", "1", "--gpus-per-worker", "0"]
    with launched(out, *options) as launch:
        until(lambda: held(out), launch)
        launch.send_signal(signal.SIGINT)
        said, _ = launch.communicate(timeout=MOST_S)
        assert launch.returncode == 130, said
    assert "what it had begun is saved" in logs(out) and "the same command resumes" in said
    assert not sum(run.deaths for run in status_of(out).runs)
    tintype("launch", str(out), "--on", "ray", *options)
    tintype("ablate", str(file), "--out", str(whole), "--jobs", "1")
    same_numbers(file, out, whole)
