"""Workers that share a folder, killed and paused at random: every run is done once, and no number changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_study import STUDY, environment, tintype
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has imported torch")
def test_four_workers_that_are_killed_and_paused_do_every_run_once(
    request: pytest.FixtureRequest, file: Path, tmp_path: Path
) -> None:
    """SIGKILL and SIGSTOP beyond the expiry, at random times; in the full form 40 kills.

    The control: without fencing, a worker that wakes up writes into a run that another one has taken over.
    """
    kills = 40 if request.config.getoption("--faults") == "full" else 10
    whole = crowd(file, tmp_path / "whole", 0, 0, 0)
    found = crowd(file, tmp_path / "found", kills, kills // 2, 1)
    assert found["ended"] == [0] * 4 and not found["half"]
    assert {name: run["numbers"] for name, run in found["runs"].items()} == {
        name: run["numbers"] for name, run in whole["runs"].items()
    }
    assert [run["done"] for run in found["runs"].values()] == [1] * 3
    assert found["acts"] > kills // 2 and sum(run["claims"] for run in found["runs"].values()) > kills // 2
    report = tintype("ablate", str(file), "--out", str(tmp_path / "found"))
    assert report.returncode == 0, report.stdout + report.stderr
    unfenced = crowd(file, tmp_path / "unfenced", 0, 8, 2, "off")
    assert any(run["numbers"] != whole["runs"][name]["numbers"] for name, run in unfenced["runs"].items())
