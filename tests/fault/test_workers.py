"""Workers that share a folder, killed and paused at random: every run is done once, and no number changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_study import STUDY, environment, tintype
from tests.fault.promises import Promise
from tests.tiny import TINY

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from pathlib import Path
from tests.fault.crowd import main
main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6]), sys.argv[6] == "on")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd")
    (folder / "plan.yaml").write_text(TINY.replace("steps: 6", "steps: 120"))
    text = STUDY.replace("PLAN", str(folder / "plan.yaml")).replace("[0, 1]", "[0]").replace("[5, 6]", "[5]")
    (folder / "study.yaml").write_text(f"{text}retries: 1000\n")
    return folder / "study.yaml"


def crowd(file: Path, out: Path, kills: int, pauses: int, seed: int, fencing: str = "on") -> dict[str, Any]:
    assert tintype("ablate", str(file), "--out", str(out), "--prepare").returncode == 0
    command = [sys.executable, "-c", CODE, str(file), str(out), str(kills), str(pauses), str(seed), fencing]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def whole(file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The numbers of each run of the study, run by workers that nothing happens to."""
    return numbers_of(crowd(file, tmp_path_factory.mktemp("whole") / "out", 0, 0, 0))


def numbers_of(found: dict[str, Any]) -> dict[str, Any]:
    return {name: run["numbers"] for name, run in found["runs"].items()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has imported torch")
@pytest.mark.promise(28)
def test_four_workers_that_are_killed_and_paused_do_every_run_once(
    promise: Promise, file: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    """SIGKILL and SIGSTOP four workers at random times, in the full form 60 times: each run is done once, the same."""
    kills = 40 if promise.full else 10
    found = crowd(file, tmp_path / "found", kills, kills // 2, 1)
    assert found["ended"] == [0] * 4 and not found["half"]
    assert found["acts"] > kills // 2 and sum(run["claims"] for run in found["runs"].values()) > kills // 2
    held = numbers_of(found) == whole and all(run["done"] <= 1 for run in found["runs"].values())
    for act in range(found["acts"]):
        promise.count(held, f"one of the acts up to {act}")
    report = tintype("ablate", str(file), "--out", str(tmp_path / "found"))
    assert report.returncode == 0, report.stdout + report.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has imported torch")
@pytest.mark.promise(28, control="no fencing")
def test_control_without_fencing_a_worker_that_wakes_up_writes_into_the_run_of_another(
    file: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    """Pause four workers, which check no lease and remove nothing of earlier holders."""
    unfenced = crowd(file, tmp_path / "unfenced", 0, 8, 2, "off")
    assert numbers_of(unfenced) != whole
