"""Kills a run at named points in fresh processes, lets it go on, and compares the end with a run that was not killed.

The children are forked from a process that has imported torch and computed nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.tiny import tiny_plan
from tests.tiny_vae import write_tiny_vae
from tintype.plan import Plan
from tintype.runtime import fault
from tintype.runtime.interrupt import Interrupt
from tintype.tokenizer_lab.fill_cache import fill_cache
from tintype.tokenizers.latent_cache import HEADER_NAME, ROWS_NAME
from tintype.train import checkpoint
from tintype.train.loop import train
from tintype.train.record import RunRecord

PLAN = tiny_plan("run.save=wait", techniques=["ema"])
SNAPSHOT_PLAN = tiny_plan("run.save=wait", techniques=["power-ema:snapshots=3"])
"""Its snapshots are of the steps of the checkpoints."""
BACKGROUND_PLAN = tiny_plan("run.save=background", techniques=["power-ema:snapshots=3"])

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
    ("step.done", 4),
    *[("snapshot.begin", n) for n in (1, 3)],
    ("snapshot.state", 3),
    ("snapshot.manifest", 2),
    *[("snapshot.rename", n) for n in (1, 3)],
    ("save.begin", 2),
]
BACKGROUND_KILLS = [
    ("step.optimizer", 3),
    ("snapshot.state", 2),
    ("snapshot.rename", 1),
    *[("save.begin", n) for n in (1, 2)],
    ("save.state", 2),
    ("save.manifest", 1),
    *[("save.rename", n) for n in (1, 2)],
    ("save.prune", 2),
]

LATENT_KILLS = [
    *[("rows.sum", n) for n in (1, 2)],
    *[("rows.done", n) for n in (1, 3)],
    ("step.data", 4),
]
"""Points of a run that fills a cache of 600 latents in chunks of 150 before its first step."""
CACHE_KILLS = [("rows.sum", 1), ("rows.sum", 10), ("rows.done", 4)]
"""Points of the command that fills it in chunks of 16."""


def latent_plan(root: Path) -> Plan:
    vae = write_tiny_vae(root / "vae")
    settings = ("data.count=600", "train.steps=4", "train.batch=150", "run.latents=disk")
    return tiny_plan(*settings, techniques=[f"tokenizer:to.kind=small-vae,to.folder={vae}"])


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


def cache_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.cache")


def train_with_cache(plan: Plan, folder: Path) -> None:
    os.environ["TINTYPE_CACHE"] = str(cache_of(folder))
    train(plan, folder, Interrupt())


def fill_with_cache(plan: Plan, folder: Path) -> None:
    os.environ["TINTYPE_CACHE"] = str(cache_of(folder))
    filled = fill_cache(plan, Interrupt())
    assert filled.there == filled.images
    folder.mkdir(exist_ok=True)
    (folder / "encoded").write_text(str(filled.encoded))


def kill_at(work: Callable[[Plan, Path], None], plan: Plan, point: str, occurrence: int, folder: Path) -> None:
    left = occurrence

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    fault.arm(point, count_down)
    work(plan, folder)


def digest(folder: Path) -> str:
    """The checksums of the last checkpoint and of all snapshots, and the losses of all steps."""
    checkpoints = RunRecord(folder).checkpoints
    last = checkpoint.folder_of(checkpoints, checkpoint.steps(checkpoints)[-1])
    lines = [(line["step"], line["loss"]) for line in RunRecord(folder).lines]
    taken = checkpoint.steps(folder / "snapshots")
    snapshots = [(checkpoint.folder_of(folder / "snapshots", step) / "manifest.json").read_text() for step in taken]
    return json.dumps([json.loads((last / "manifest.json").read_text()), taken, snapshots, lines])


def main(root: Path, wanted: Mapping[str, Sequence[tuple[str, int]]], at_random: int) -> None:
    """Prints a row for each kill in `wanted`, and for `at_random` runs that are killed at random times."""
    latents = latent_plan(root)
    plans = {"run": PLAN, "snapshots": SNAPSHOT_PLAN, "background": BACKGROUND_PLAN, "latents": latents}
    rows = [
        row for name, plan in plans.items() if wanted[name] for row in kill_and_resume(plan, wanted[name], root / name)
    ]
    rows += [fill_again(latents, point, occurrence, root / "fill") for point, occurrence in wanted["cache"]]
    rows += [kill_at_random(PLAN, root / "run" / "whole", root / f"random-{n}", n) for n in range(at_random)]
    print(json.dumps(rows))


def write_in_place() -> None:
    """Switch the safeguard off: checkpoints are written where they are looked for."""
    checkpoint._WRITING = ""
    checkpoint.remove_leftovers = lambda *given: None


def fill_again(plan: Plan, point: str, occurrence: int, root: Path) -> dict[str, object]:
    """Kills the filling of a cache, lets it go on, and compares the file with that of one that was not killed."""
    root.mkdir(exist_ok=True)
    whole, folder = root / "whole", root / f"{point}-{occurrence}"
    if not whole.exists():
        assert in_child(lambda: fill_with_cache(plan, whole)) == 0
    killed = in_child(partial(kill_at, fill_with_cache, plan, point, occurrence, folder))
    resumed = in_child(partial(fill_with_cache, plan, folder))
    files = [next(cache_of(one).glob("latents/*/latents.rows")) for one in (whole, folder)]
    kept = 600 - int((folder / "encoded").read_text())
    done = occurrence - 1 if point == "rows.sum" else occurrence
    return {
        "point": point,
        "occurrence": occurrence,
        "killed": killed == -signal.SIGKILL,
        "resumed": resumed == 0,
        "identical": files[0].read_bytes() == files[1].read_bytes() and kept == 16 * done,
        "leftovers": [one.name for one in files[1].parent.iterdir() if one.name not in (HEADER_NAME, ROWS_NAME)],
    }


def kill_and_resume(plan: Plan, kills: Sequence[tuple[str, int]], root: Path) -> list[dict[str, object]]:
    root.mkdir(exist_ok=True)
    assert in_child(lambda: train_with_cache(plan, root / "whole")) == 0
    expected = digest(root / "whole")
    rows: list[dict[str, object]] = []
    for point, occurrence in kills:
        folder = root / f"{point}-{occurrence}"
        killed = in_child(partial(kill_at, train_with_cache, plan, point, occurrence, folder))
        resumed = in_child(partial(train_with_cache, plan, folder))
        rows.append(
            {
                "point": point,
                "occurrence": occurrence,
                "killed": killed == -signal.SIGKILL,
                "resumed": resumed == 0,
                "identical": digest(folder) == expected,
                "leftovers": leftovers_of(folder),
            }
        )
    return rows


def kill_at_random(plan: Plan, whole: Path, folder: Path, seed: int) -> dict[str, object]:
    """Kills a run five times at random times, lets it end, and compares it with one that was not killed."""
    draw = random.Random(seed)
    for _ in range(5):
        child = os.fork()
        if child == 0:
            train_with_cache(plan, folder)
            os._exit(0)
        time.sleep(draw.uniform(0, 1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    resumed = in_child(partial(train_with_cache, plan, folder))
    return {
        "point": "random times",
        "occurrence": seed,
        "killed": True,
        "resumed": resumed == 0,
        "identical": digest(folder) == digest(whole),
        "leftovers": leftovers_of(folder),
    }


def leftovers_of(folder: Path) -> list[str]:
    """A save that is not all or nothing would leave a half checkpoint, to be found damaged at resume."""
    written = [*(folder / "checkpoints").iterdir(), *(folder / "snapshots").glob("*")]
    return [path.name for path in written if not path.name.startswith("step-")] + [
        event["event"] for event in RunRecord(folder).events
    ]
