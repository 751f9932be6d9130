"""Kills a run at named points in fresh processes, lets it go on, and compares the end with a run that was not killed.

Run as a module: the children are forked from a process that has imported torch and computed nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.tiny import tiny_plan
from tintype.plan import Plan
from tintype.train import checkpoint, fault
from tintype.train.folder import RunFolder
from tintype.train.interrupt import Interrupt
from tintype.train.loop import train

PLAN = tiny_plan(techniques=["ema"])
SNAPSHOT_PLAN = tiny_plan(techniques=["power-ema:snapshots=3"])
"""Its snapshots are of the steps of the checkpoints."""

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
SNAPSHOT_KILLS = [
    *[("step.done", n) for n in (2, 4)],
    *[("snapshot.begin", n) for n in (1, 2, 3)],
    *[("snapshot.state", n) for n in (1, 3)],
    *[("snapshot.manifest", n) for n in (1, 2)],
    *[("snapshot.rename", n) for n in (1, 3)],
    *[("save.begin", n) for n in (1, 2)],
    *[("save.prune", n) for n in (1, 3)],
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


def kill_at(plan: Plan, point: str, occurrence: int, folder: Path) -> None:
    left = occurrence

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    fault.arm(point, count_down)
    train(plan, folder, Interrupt())


def digest(folder: Path) -> str:
    """The checksums of the last checkpoint and of all snapshots, and the losses of all steps."""
    checkpoints = RunFolder(folder).checkpoints
    last = checkpoint.folder_of(checkpoints, checkpoint.steps(checkpoints)[-1])
    lines = [(line["step"], line["loss"]) for line in RunFolder(folder).metrics()]
    taken = checkpoint.steps(folder / "snapshots")
    snapshots = [(checkpoint.folder_of(folder / "snapshots", step) / "manifest.json").read_text() for step in taken]
    return json.dumps([json.loads((last / "manifest.json").read_text()), taken, snapshots, lines])


def main(root: Path) -> None:
    rows = [row for plan, kills in PLANS for row in kill_and_resume(plan, kills, root / plan.hash)]
    print(json.dumps(rows))


PLANS = [(PLAN, KILLS), (SNAPSHOT_PLAN, SNAPSHOT_KILLS)]


def kill_and_resume(plan: Plan, kills: Sequence[tuple[str, int]], root: Path) -> list[dict[str, object]]:
    assert in_child(lambda: train(plan, root / "whole", Interrupt())) == 0
    expected = digest(root / "whole")
    rows: list[dict[str, object]] = []
    for point, occurrence in kills:
        folder = root / f"{point}-{occurrence}"
        killed = in_child(partial(kill_at, plan, point, occurrence, folder))
        resumed = in_child(partial(train, plan, folder, Interrupt()))
        # A save that is not all or nothing would leave a half checkpoint, to be found damaged at resume.
        written = [*(folder / "checkpoints").iterdir(), *(folder / "snapshots").glob("*")]
        leftovers = [path.name for path in written if not path.name.startswith("step-")]
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
    return rows


if __name__ == "__main__":
    main(Path(sys.argv[1]))
