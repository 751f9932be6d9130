"""Pauses a run right after a check of its lease, lets another process take the run over and end it, and lets it go on.

Run as a module: the processes are forked from one that has imported torch and computed nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

from tests.fault.harness import in_child
from tests.tiny import tiny_plan
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.runtime.fence import Fence
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Leases
from tintype.train.loop import train

PLAN = tiny_plan("run.save=wait", techniques=["power-ema:snapshots=3"])
PROTOCOL = Protocol(count=8, also=(), reference_count=8, validation_count=2, metrics=("fd",))


def train_and_score(folder: Path, fence: Fence) -> None:
    train(PLAN, folder, Interrupt(), fence=fence)
    evaluate(folder, PROTOCOL, fence=fence)


def content_of(folder: Path) -> dict[str, str]:
    """The checksum of every file of a run."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def count_checks(folder: Path) -> int:
    """How often a run checks its lease."""
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1

    train_and_score(folder, Fence(check, "-1"))
    return checks


def pause_at(number: int, root: Path, fencing: str) -> dict[str, object]:
    """Let another process take over right after a check, as if this one was paused there; then go on.

    `fencing` is on, or what is left out of it: the check, or what the next holder removes.
    """
    folder, seen = root / f"{fencing}-{number}", root / f"{fencing}-{number}.json"
    leases = Leases(root / "leases")

    def holder() -> None:
        lease = leases.take(folder.name)
        assert lease is not None
        left = number

        def check() -> None:
            nonlocal left
            if fencing != "no check" or left > 0:
                lease.check()
            left -= 1
            if left == 0:
                assert in_child(successor) == 0
                seen.write_text(json.dumps(content_of(folder)))

        try:
            train_and_score(folder, replace(lease.fence, check=check))
        except Exception:  # it notices, or what it was writing to is gone
            os._exit(0)

    def successor() -> None:
        """Take the lease as if the holder had been silent for long."""
        later = Leases(root / "leases", clock=lambda: leases.clock() + 1e6)
        later._seen[folder.name] = (1, (root / "leases" / folder.name / "000001.json").read_bytes(), 0.0)
        lease = later.take(folder.name)
        assert lease is not None and lease.number == 2
        fence = lease.fence
        if fencing == "nothing removed":
            fence = replace(fence, takes_over=False)
        train_and_score(folder, fence)
        lease.end({"state": "done"})

    ended = in_child(holder)
    return {
        "check": number,
        "ended": ended == 0 and seen.exists(),
        "unchanged": seen.exists() and content_of(folder) == json.loads(seen.read_text()),
    }


CONTROLS = {"no check": 14, "nothing removed": 38}
"""The safeguard that is left out, and a check at which that shows: before a line of the log, before the score."""


def main(root: Path, every: int) -> None:
    """Print a row for every so many checks and those at which the controls fail, and one for each control."""

    def count() -> None:
        (root / "count").write_text(str(count_checks(root / "counted")))

    assert in_child(count) == 0
    checks = int((root / "count").read_text())
    chosen = sorted({*range(1, checks + 1, every), *CONTROLS.values()})
    rows = [pause_at(number, root, "on") for number in chosen]
    controls = [pause_at(number, root, fencing) for fencing, number in CONTROLS.items()]
    print(json.dumps({"checks": checks, "rows": rows, "controls": controls}))
