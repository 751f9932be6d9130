"""Stops commands by SIGTERM in each phase, lets them resume, and compares the end with a command that was not stopped.

Run as a module: the children are forked from a process that has imported torch and computed nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.fault.harness import digest, latent_plan
from tests.tiny import TINY, tiny_plan
from tintype import cli
from tintype.evaluation import run as _evaluation  # noqa: F401  (imported here, so that no child does)
from tintype.runtime import fault
from tintype.runtime import signals as program_signals
from tintype.terminal import runs as _runs  # noqa: F401
from tintype.terminal.progress import Progress
from tintype.train import loop

SMALL = ["count=8", "also=[]", "reference_count=8", "validation_count=4", "metrics=[fd]", "sampler.steps=2"]
SMALL = [word for one in [*SMALL, "sampler.batch=4"] for word in ("--set", one)]
STEPS = tiny_plan().train.steps
LATER_S = 1.05
"""After this a second signal is no echo of the first."""


@dataclass(frozen=True)
class Phase:
    """Where the signal comes: at a fault point or at a report of progress, and at which time of it."""

    name: str
    point: str
    occurrence: int = 1
    command: str = "train"
    twice: bool = False


PHASES = [
    Phase("start-up: reading the plan's parts", "build_session"),
    Phase("start-up: filling the cache of latents", "rows.sum", 2, "train latents"),
    Phase("start-up: the first row of the cache", "rows.done", 1, "train latents"),
    *(Phase("waiting for data", "step.data", n) for n in (1, 3)),
    Phase("waiting for data, twice", "step.data", 3, twice=True),
    *(Phase("backward", "step.backward", n) for n in (2, 5)),
    Phase("backward, twice", "step.backward", 5, twice=True),
    *(Phase("optimizer", "step.optimizer", n) for n in (1, 5)),
    Phase("after a step", "step.done", 3),
    Phase("writing metrics", "log.write", 2),
    *(
        Phase("saving", f"save.{stage}", n)
        for stage in ("begin", "state", "manifest", "rename", "prune")
        for n in (1, 2)
    ),
    Phase("saving, twice", "save.state", 2, twice=True),
    *(Phase("evaluation", "report", n, "evaluate") for n in (1, 2, 4, 6)),
]
CONTROL = Phase("backward", "step.backward", 5)


def arguments(command: str, root: Path, folder: Path) -> list[str]:
    if command == "evaluate":
        return ["evaluate", str(folder), *SMALL, "--json"]
    plan = root / ("latents.yaml" if command == "train latents" else "plan.yaml")
    return ["train", str(plan), "--out", str(folder)]


def run_command(words: list[str], folder: Path, said: Path, arm: Callable[[], None] = lambda: None) -> int:
    """Run a command in a forked process, its output in a file; return its exit code, or minus a signal."""
    child = os.fork()
    if child == 0:
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["TINTYPE_CACHE"] = f"{folder}.cache"
        sys.argv = ["tintype", *words]
        arm()
        try:
            cli.main()
        except SystemExit as ended:
            os._exit(int(ended.code or 0))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def stop_at(phase: Phase) -> None:
    """Send SIGTERM to this process when it comes to the phase; twice: and once more before it does anything."""
    left, steps, sent = phase.occurrence, 0, threading.Event()

    def act() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            sent.set()
            if phase.twice:
                time.sleep(LATER_S)
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)

    def wait() -> None:
        """Hold the step before the last until a save in the background has come to the signal."""
        nonlocal steps
        steps += 1
        if steps == STEPS - 1:
            sent.wait(60)

    if phase.point == "build_session":
        _before(loop, "build_session", act)
    elif phase.point == "report":
        _before(Progress, "show", act)
    else:
        fault.arm(phase.point, act)
    if phase.point.startswith("save."):
        fault.arm("step.data", wait)


def _before(owner: Any, name: str, act: Callable[[], None]) -> None:
    """Act whenever a function is called."""
    function = getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        act()
        return function(*given, **named)

    setattr(owner, name, called)


def unwatched(phase: Phase) -> None:
    """The negative control: signals do what they do to any program."""
    for module in (program_signals, cli, sys.modules["tintype.runtime.interrupt"]):
        setattr(module, "handle_signals", lambda *_: lambda: None)  # noqa: B010
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stop_at(phase)


def outcome(command: str, folder: Path, said: Path) -> str:
    """Return what a finished command leaves."""
    if command != "evaluate":
        return digest(folder)
    (result,) = folder.glob("evaluation/**/result.json")
    metrics = json.loads(result.read_text())["metrics"]
    return json.dumps({name: value for name, value in metrics.items() if not name.endswith("_per_s")})


def stop_and_resume(phase: Phase, index: str, root: Path, arm: Callable[[Phase], None] = stop_at) -> dict[str, Any]:
    whole, folder, said = root / f"whole {phase.command}", root / index, root / f"{index}.txt"
    for one in (whole, folder):
        if phase.command == "evaluate" and not one.exists():
            assert run_command(arguments("train", root, one), one, said) == 0, said.read_text()
    if not whole.exists() or (phase.command == "evaluate" and not (whole / "evaluation").exists()):
        assert run_command(arguments(phase.command, root, whole), whole, said) == 0, said.read_text()
    words = arguments(phase.command, root, folder)
    began_s = time.monotonic()
    code = run_command(words, folder, said, partial(arm, phase))
    seconds, told = time.monotonic() - began_s, said.read_text().splitlines()
    line = "ended at once by a second signal" if phase.twice else "interrupted: "
    one_line = sum(text.startswith(line) for text in told) == 1 and not any("Traceback" in text for text in told)
    resumed = run_command(words, folder, said)
    identical = resumed == 0 and outcome(phase.command, folder, said) == outcome(phase.command, whole, said)
    return {
        "phase": f"{phase.name} ({phase.point} {phase.occurrence})",
        "held": code == 128 + signal.SIGTERM and one_line and identical,
        "code": code,
        "seconds": round(seconds, 2),
        "told": told[-3:],
        "identical": identical,
    }


def main(root: Path, chosen: list[int]) -> None:
    """Print the outcome of each chosen phase, and last that of the control."""
    (root / "plan.yaml").write_text(TINY)
    (root / "latents.yaml").write_text(latent_plan(root).to_yaml())
    rows = [stop_and_resume(PHASES[index], str(index), root) for index in chosen]
    print(json.dumps([*rows, stop_and_resume(CONTROL, "control", root, unwatched)]))
