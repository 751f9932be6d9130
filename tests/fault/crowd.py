"""Lets four workers share a study's folder, kills and pauses them at random times, and tells what became of the runs.

Run as a module: the workers are forked from a process that has imported torch and computed nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.fault.harness import digest
from tintype.errors import UserError
from tintype.evaluation.results import read_result
from tintype.runtime.leases import Claim, Lease, Leases
from tintype.study import worker
from tintype.study.lab import work_on_study
from tintype.study.runner import tasks_of
from tintype.study.study import load_study

EXPIRY_S = 2.0
PAUSE_S = 6.0
"""Longer than others wait for a worker that does not answer."""
WORKERS = 4
"""More than there are runs, so that one is always waiting to take over."""
_MOST_S = 400.0


def start(out: Path, fencing: bool) -> int:
    """Fork a worker and return its process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            worker._MOST_LOOK_S = 0.3
            if not fencing:
                take_fence_away()
            code = 0 if work_on_study(out, expiry_s=EXPIRY_S).signal is None else 143
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(code)
    return child


def take_fence_away() -> None:
    """The negative control: nothing is checked, and nothing of an earlier holder is removed."""
    whole = Lease.fence.fget  # type: ignore[attr-defined]
    Lease.fence = property(  # type: ignore[assignment, method-assign]
        lambda self: replace(whole(self), check=lambda: None, takes_over=False)
    )
    Lease.check = lambda self: None  # type: ignore[method-assign]


def training(out: Path, process: int) -> bool:
    """Return whether a worker trains a run, by its last heartbeat."""
    for folder in (out / "leases").glob("*"):
        newest = Leases(out / "leases").newest(folder.name)
        if newest is not None and newest.ended is None and newest.process.pid == process:
            return newest.now.get("state") == "training"
    return False


def disturb(out: Path, kills: int, pauses: int, seed: int, fencing: bool = True) -> dict[str, object]:
    """Run a study by four workers, of which one after the other is killed or paused; return how it went."""
    draw, began_s = random.Random(seed), time.monotonic()
    acts = ["kill"] * kills + ["pause"] * pauses
    draw.shuffle(acts)
    workers = {start(out, fencing) for _ in range(WORKERS)}
    asleep: dict[int, float] = {}
    ended: list[int] = []
    next_s = time.monotonic() + 1.0
    while workers and time.monotonic() - began_s < _MOST_S:
        time.sleep(0.02)
        for child, until_s in list(asleep.items()):
            if time.monotonic() > until_s:
                os.kill(child, signal.SIGCONT)
                del asleep[child]
        for child in list(workers):
            if os.waitpid(child, os.WNOHANG)[0]:
                workers.discard(child)
                ended.append(0)
        awake = sorted(workers - set(asleep))
        if acts and awake and time.monotonic() > next_s:
            chosen = draw.choice(awake)
            if acts[-1] == "pause" and not training(out, chosen):
                continue
            act = acts.pop()
            if act == "kill":
                os.kill(chosen, signal.SIGKILL)
                os.waitpid(chosen, 0)
                workers.discard(chosen)
                workers.add(start(out, fencing))
            else:
                os.kill(chosen, signal.SIGSTOP)
                asleep[chosen] = time.monotonic() + PAUSE_S
            next_s = time.monotonic() + draw.uniform(0.2, 0.8)
    for child in workers:
        os.kill(child, signal.SIGKILL)
    return {"ended": ended + [1] * len(workers), "acts": kills + pauses - len(acts)}


def did_run(claim: Claim) -> bool:
    """Return whether the holder trained or scored the run to its end, and did not merely find that another had.

    A run of which no holder says so is done too: its holder was killed between the last score and its word.
    """
    return (claim.ended or {}).get("state") == "done" and "state" in claim.now


def about(study_file: Path, out: Path) -> dict[str, object]:
    """Return the numbers of each run, how often it was ended, and files that are half written; or what is damaged."""
    study = load_study(str(study_file))
    found: dict[str, object] = {}
    for task in tasks_of(study, out):
        claims = Leases(out / "leases").history(task.plan.hash)
        assert [one.number for one in claims] == [*range(1, len(claims) + 1)]
        try:
            (result,) = task.folder.glob("evaluation/*/result.json")
            metrics = read_result(result).metrics
            scores = {name: value for name, value in metrics.items() if name != "images_per_s"}
            numbers: object = [digest(task.folder), scores]
        except (UserError, ValueError, IndexError) as error:
            numbers = f"damaged: {error}"
        done = sum(did_run(one) for one in claims)
        found[f"{task.arm} {task.plan.seed}"] = {"numbers": numbers, "done": done, "claims": len(claims)}
    half = [str(path) for path in out.rglob("*") if "writing" in path.name or path.name.startswith("damaged")]
    return {"runs": found, "half": half}


def main(study_file: Path, out: Path, kills: int, pauses: int, seed: int, fencing: bool) -> None:
    began_s = time.monotonic()
    went = disturb(out, kills, pauses, seed, fencing)
    print(json.dumps({**about(study_file, out), **went, "seconds": time.monotonic() - began_s}))
