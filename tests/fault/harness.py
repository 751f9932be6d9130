"""Kills a run at named points in fresh processes, lets it go on, and compares the end with a run that was not killed.

Run as a module: the children are forked from a process that has imported torch and computed nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.tiny import tiny_plan
from tintype.train import checkpoint, fault
from tintype.train.folder import RunFolder
from tintype.train.interrupt import Interrupt
from tintype.train.loop import train

PLAN = tiny_plan(techniques=["ema"])

KILLS = [
    *[("step.data", n) for n in (1, 4)],
    *[("step.backward", n) for n in (2, 5)],
    *[("step.optimizer", n) for n in (1, 3, 6)],
    *[("step.done", n) for n in (2, 4)],
    *[("log.write", n) for n in (1, 3, 6)],
    *[("save.begin", n) for n in (1, 3)],
    *[("save.state", n) for n in (1, 2)],
    *[("save.manifest", n) for n in (1, 3)],
    *[("save.rename", n) for n in (1, 2, 3)],
    *[("save.prune", n) for n in (1, 2, 3)],
]


def in_child(work: Callable[[], object]) -> int:
    """Runs `work` in a forked process and returns how it ended: 0, or minus the number of the signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(point: str, occurrence: int, folder: Path) -> None:
    left = occurrence

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    fault.arm(point, count_down)
    train(PLAN, folder, Interrupt())


def digest(folder: Path) -> str:
    """The checksums of the last checkpoint, and the losses of all steps."""
    checkpoints = RunFolder(folder).checkpoints
    last = checkpoint.folder_of(checkpoints, checkpoint.steps(checkpoints)[-1])
    lines = [(line["step"], line["loss"]) for line in RunFolder(folder).metrics()]
    return json.dumps([json.loads((last / "manifest.json").read_text()), lines])


def main(root: Path) -> None:
    assert in_child(lambda: train(PLAN, root / "whole", Interrupt())) == 0
    expected = digest(root / "whole")
    rows = []
    for point, occurrence in KILLS:
        folder = root / f"{point}-{occurrence}"
        killed = in_child(partial(kill_at, point, occurrence, folder))
        resumed = in_child(partial(train, PLAN, folder, Interrupt()))
        # A save that is not all or nothing would leave a half checkpoint, to be found damaged at resume.
        leftovers = [path.name for path in (folder / "checkpoints").iterdir() if not path.name.startswith("step-")]
        leftovers += [event["event"] for event in RunFolder(folder).events()]
        rows.append(
            {
                "point": point,
                "occurrence": occurrence,
                "killed": killed == -signal.SIGKILL,
                "resumed": resumed == 0,
                "identical": digest(folder) == expected,
                "leftovers": leftovers,
            }
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
