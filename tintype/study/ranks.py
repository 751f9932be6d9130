"""Train a run on several ranks (`run.ranks`), which `torchrun` starts; the worker itself scores the run.

The first rank holds the run's lease (`tintype.study.rank`), so that the process that writes files also detects a lost
lease. The output of the ranks is in `launch/` in the study's folder.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from tintype.evaluation.protocol import Protocol
from tintype.plan import plan_from_yaml
from tintype.runtime.files import write_text
from tintype.runtime.parent import command_with_parent
from tintype.study.runner import Task
from tintype.study.study import Along

_LOGS = "launch"


@dataclass(frozen=True)
class RankedRun:
    """Information that the ranks of a run need, in a form that is written to a file."""

    arm: str
    plan: str
    folder: Path
    keep_at: tuple[int, ...]
    retries: int
    protocol: Protocol
    leases: Path
    round: str
    expiry_s: float
    over: int
    """The number of the newest claim, which the worker observed until the claim ended; 0 if there was no claim."""

    @classmethod
    def of(cls, task: Task, protocol: Protocol, leases: Path, round: str, expiry_s: float, over: int = 0) -> RankedRun:
        kept = task.along.steps if task.along else ()
        plan, folder = task.plan.to_yaml(), task.folder.resolve()
        return cls(task.arm, plan, folder, kept, task.retries, protocol, leases.resolve(), round, expiry_s, over)

    @classmethod
    def read(cls, file: Path) -> RankedRun:
        return TypeAdapter(cls).validate_json(file.read_bytes())

    def task(self) -> Task:
        along = Along(self.keep_at, self.protocol) if self.keep_at else None
        return Task(self.arm, plan_from_yaml(self.plan, "the run's plan"), self.folder, along, self.retries)


def start_ranks(run: RankedRun) -> subprocess.Popen[bytes]:
    """Start the ranks of a run, which end when this process ends."""
    task = run.task()
    place = run.leases.parent / _LOGS / f"ranks-{task.plan.hash}"
    place.parent.mkdir(exist_ok=True)
    write_text(place.with_suffix(".json"), TypeAdapter(RankedRun).dump_json(run, indent=1).decode())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [*torchrun, str(task.plan.run.ranks), "-m", "tintype.study.rank", str(place.with_suffix(".json"))]
    script = ["bash", "-c", 'exec "${@:2}" >> "$1" 2>&1 < /dev/null', "bash", str(place.with_suffix(".log")), *command]
    # In a session of its own: Ctrl-C then signals only the worker, which asks the ranks once to stop.
    return subprocess.Popen(command_with_parent(script), start_new_session=True)
