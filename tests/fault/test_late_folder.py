"""Workers on two machines that see a shared folder late: every run is done once, and no number changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_study import STUDY, environment, tintype
from tests.fault.crowd import about
from tests.fault.promises import Promise
from tests.late_view import late_view, why_not
from tests.tiny import TINY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TINTYPE_MACHINES" not in os.environ, reason="`make test-machines` runs it"),
]
ROOT = Path(__file__).parents[2]
EXPIRY_S = 4.0
LAG_S = 1.5
"""Less than half the expiry, which is what leases allow."""
CODE = f"""
import json, sys
from pathlib import Path
from tests.fault import crowd
crowd.EXPIRY_S, crowd.PAUSE_S, crowd.WORKERS = {EXPIRY_S}, 3 * {EXPIRY_S}, 3
print(json.dumps(crowd.disturb(Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5] == "on")))
"""
APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""A machine of its own, as far as mounts and process numbers go."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A study file, and the numbers of each run where one worker runs all."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("late")
    (folder / "plan.yaml").write_text(TINY.replace("steps: 6", "steps: 400"))
    text = STUDY.replace("PLAN", str(folder / "plan.yaml")).replace("[0, 1]", "[0]").replace("[5, 6]", "[5]")
    (folder / "study.yaml").write_text(f"{text}retries: 1000\n")
    done = tintype("ablate", str(folder / "study.yaml"), "--out", str(folder / "whole"), "--jobs", "1")
    assert done.returncode == 0, done.stderr
    return folder / "study.yaml", runs_of(folder / "study.yaml", folder / "whole")


def runs_of(file: Path, out: Path) -> dict[str, Any]:
    found: Any = about(file, out)
    assert not found["half"], found["half"]
    return dict(found["runs"])


def on_two_views(file: Path, root: Path, kills: int, pauses: int, fencing: str) -> dict[str, Any]:
    """Run the study by three workers on each of two views, killed and paused; return its runs."""
    server, shared = root / "server", root / "shared"
    shared.mkdir(parents=True)
    server.mkdir()
    assert tintype("ablate", str(file), "--out", str(server / "out"), "--prepare").returncode == 0
    with ExitStack() as mounted:
        machines = []
        for seed in (1, 2):
            view = mounted.enter_context(late_view(server, root / f"view-{seed}", LAG_S))
            inner = [sys.executable, "-c", CODE, str(shared / "out"), str(kills), str(pauses), str(seed), fencing]
            bound = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(view), str(shared)]
            machines.append(
                subprocess.Popen(
                    [*APART, *bound, *inner], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment()
                )
            )
        for machine in machines:
            said, _ = machine.communicate(timeout=500)
            assert machine.returncode == 0
            went = json.loads(said.splitlines()[-1])
            assert went["ended"] == [0, 0, 0] or fencing == "off", went
    return runs_of(file, server / "out") if fencing == "on" else dict(about(file, server / "out")["runs"])  # type: ignore[call-overload]


@pytest.mark.promise(28)
def test_workers_that_see_the_folder_late_do_every_run_once(
    promise: Promise, study: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Kill and pause workers on two FUSE views of a folder, in which writes of one appear late in the other."""
    file, whole = study
    kills = 12 if promise.full else 4
    runs = on_two_views(file, tmp_path, kills, kills // 2, "on")
    for name, run in runs.items():
        same = run["numbers"] == whole[name]["numbers"]
        promise.count(same and run["done"] <= 1, (name, same, run["done"], run["claims"]))


@pytest.mark.promise(28, control="no fencing")
def test_control_without_fencing_late_workers_write_into_the_run_of_another(
    study: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Pause workers on the two views, which check no lease and remove nothing of earlier holders.

    A pause does harm only where it falls into a write, so there are three tries, of which one must differ.
    """
    file, whole = study
    tries = (on_two_views(file, tmp_path / str(number), 0, 2, "off") for number in range(3))
    assert any(run["numbers"] != whole[name]["numbers"] for runs in tries for name, run in runs.items())
