"""The program of each rank of a study's run, started by `torchrun`; it only trains, and a worker scores later."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tintype.runtime.dist import World, joined
from tintype.runtime.fence import Fence
from tintype.runtime.host import process_name
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.runtime.leases import Lease, Leases
from tintype.runtime.parent import end_with_parent
from tintype.study.ranks import RankedRun
from tintype.study.runner import Message, Task, run_task
from tintype.study.worker import about_run, anchor_of, end_lease, report_to


def train_rank(run: RankedRun, world: World, interrupt: Interrupt) -> Message | None:
    """Train as one of the ranks; return the final status, or None if another process has the run."""
    task = run.task()
    lease = _take(run, task) if world.leads else None
    shared = world.broadcast(None if lease is None else [lease.fence.suffix, lease.fence.takes_over])
    if shared is None:
        return None
    fence = lease.fence if lease else Fence(suffix=shared[0], takes_over=shared[1])
    message = run_task(task, run.protocol, interrupt, report_to(lease) if lease else _ignore, fence, score=False)
    return end_lease(task, lease, message) if lease else message


def _take(run: RankedRun, task: Task) -> Lease | None:
    leases = Leases(run.leases, process_name(), run.expiry_s, anchor=anchor_of(run.leases))
    return leases.take(task.plan.hash, about_run(task, run.round), over=run.over)


def _ignore(message: Message) -> None:
    pass


def main() -> None:
    end_with_parent(os.getppid())
    with watch_signals(signal.SIGINT, signal.SIGTERM) as interrupt, joined() as world:
        message = train_rank(RankedRun.read(Path(sys.argv[1])), world, interrupt)
        if message is not None and message.state != "interrupted":
            raise SystemExit(f"rank {world.rank}: {message.state}: {message.text}")


if __name__ == "__main__":
    main()
