"""SIGKILL of `ablate`, again and again: its workers end with it, a restart needs nothing, and no number changes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.test_study import STUDY, environment
from tests.fault.promises import Promise
from tests.fault.test_orphans import LINUX, wait_for
from tests.tiny import TINY
from tintype.evaluation.run import evaluate
from tintype.runtime.files import read_lines
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.study.runner import Task, tasks_of
from tintype.study.study import load_study
from tintype.train.loop import train

STEPS = 30
GONE_S = 20.0
"""A worker that is killed while it imports torch ends after that; one that trains ends at once."""
LONG_STEP_S = 300.0
MARK = "TINTYPE_TEST_MARK"

COMMAND = """
import os, sys, time
if __name__ == "__mp_main__" and os.environ.get("LONG_STEP"):  # a worker
    from tintype.runtime import fault
    steps = []
    def long_step():
        steps.append(0)
        if len(steps) == 4:
            time.sleep(float(os.environ["LONG_STEP"]))
    fault.arm("step.data", long_step)
if __name__ == "__main__":
    from tintype.__main__ import main
    main()
"""


@dataclass
class Killed:
    """A study that was killed and then run to its end."""

    file: Path
    out: Path
    last: subprocess.CompletedProcess[str]
    orphans: list[list[str]]
    """Processes that were left `GONE_S` after each kill."""
    shared_memory: set[str]
    """Shared memory of its processes, which outlives them."""


def processes(mark: str) -> list[Path]:
    """The processes with a mark in their environment, as folders of /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another's
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(folder)
    return found


def shared_memory(mark: str) -> set[str]:
    found: set[str] = set()
    for process in processes(mark):
        with suppress(OSError):
            found |= {line.split()[-1] for line in (process / "maps").read_text().splitlines() if "/dev/shm/" in line}
    return found


def progress(out: Path) -> int:
    return sum(len(read_lines(file)) for file in out.glob("runs/*/metrics.jsonl"))


def kill_at(target: int, command: list[str], out: Path, env: dict[str, str]) -> tuple[list[str], set[str]]:
    """Kill the study once its runs have so many lines; what is left of it then, and what it had in shared memory."""
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    with running:
        assert wait_for(lambda: progress(out) >= target or running.poll() is not None, 300)
        shared = shared_memory(env[MARK])
        running.send_signal(signal.SIGKILL)
    wait_for(lambda: not processes(env[MARK]), GONE_S)
    return [str(process) for process in processes(env[MARK])], shared


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Once in the middle of a long step; in the full form also at 19 places over the whole study."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "plan.yaml").write_text(TINY.replace("steps: 6", f"steps: {STEPS}"))
    (folder / "command.py").write_text(COMMAND)
    file, out = folder / "study.yaml", folder / "out"
    study = STUDY.replace("PLAN", str(folder / "plan.yaml")).replace("[0, 1]", "[0]").replace("[5, 6]", "[]")
    file.write_text(study)
    command = [sys.executable, str(folder / "command.py"), "ablate", str(file), "--out", str(out)]
    env = {**environment(), MARK: uuid.uuid4().hex}
    found = [kill_at(3, command, out, env | {"LONG_STEP": str(LONG_STEP_S)})]
    if request.config.getoption("--faults") == "full":
        found += [kill_at(target, command, out, env) for target in range(4, 2 * STEPS, 3)]
    last = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return Killed(file, out, last, [left for left, _ in found], {one for _, shared in found for one in shared})


def numbers(task: Task, run: Path) -> object:
    """The checksums of the last checkpoint, the losses and the scores."""
    protocol = load_study(str(task.folder.parents[2] / "study.yaml")).settings.evaluation
    manifest = json.loads((run / "checkpoints" / f"step-{STEPS:09d}" / "manifest.json").read_text())
    losses = [(line["step"], line["loss"]) for line in read_lines(run / "metrics.jsonl")]
    scores = evaluate(run, protocol).metrics
    return manifest, losses, {name: score for name, score in scores.items() if name != "images_per_s"}


@pytest.mark.slow
@LINUX
@pytest.mark.promise(2)
def test_a_killed_study_ends_with_the_numbers_of_one_that_was_not(
    promise: Promise, killed: Killed, tmp_path: Path
) -> None:
    """SIGKILL a study, in the full form 20 times, and compare its runs with the same plans trained in one go."""
    assert killed.last.returncode == 0, killed.last.stdout + killed.last.stderr
    for task in tasks_of(load_study(str(killed.file)), killed.out):
        whole = tmp_path / task.plan.hash
        train(task.plan, whole, Interrupt())
        same = numbers(task, task.folder) == numbers(task, whole)
        for number in range(len(killed.orphans)):
            promise.count(held=same, what=f"kill {number}: {task.arm}")


@pytest.mark.slow
@LINUX
@pytest.mark.promise(24)
def test_a_killed_study_leaves_nothing_behind(promise: Promise, killed: Killed) -> None:
    """SIGKILL a study, the first time in a step of minutes: no process, shared memory, lock or temporary is left."""
    for number, left in enumerate(killed.orphans):
        promise.count(held=not left, what=f"kill {number}: {left}")
    assert "failed" not in killed.last.stdout
    promise.count(held=not killed.shared_memory, what=f"shared memory {killed.shared_memory}")
    temporaries = [
        str(path) for path in killed.out.rglob("*") if "writing" in path.name or path.name.startswith("damaged")
    ]
    promise.count(held=not temporaries, what=f"temporaries {temporaries}")
    for folder in (killed.out, *killed.out.glob("runs/*")):
        with locked(folder):
            promise.count(held=True, what=folder)
