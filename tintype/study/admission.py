"""Decide whether a run can start beside the runs in progress because it fits into the free memory of the GPU and the
host.

The memory need of a run was measured on an earlier run of the same shape (`tintype.study.shapes`), or is estimated
(`tintype.cost`). A run with an unknown memory need gets the GPU to itself.

torch's allocator is limited to the run's share of memory. So if a run needs more than its share, only this run runs out
of memory, and not the other runs on the GPU. The run then gets a larger share and goes back to the queue. The run
counts as failed only if it was alone on an empty GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch

from tintype.cost.memory import peak_of
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.runtime.leases import Claim
from tintype.runtime.machine import choose_device, environment
from tintype.runtime.pools import CONTEXT_BYTES, Gpu, Host
from tintype.runtime.shares import Share, Shares
from tintype.study.runner import GPU_LOST, HOST_KILLED, NO_ROOM, OUT_OF_MEMORY, STUCK, Message, Task
from tintype.study.shapes import ShapeFacts, note_shape, read_shapes, shape_of

MARGIN = 1.05
"""The memory measured for a run's shape is multiplied by this factor, since captions and scores differ between runs."""
GROWTH = 1.5
"""If a run used its whole share and ran out of memory, its next share is larger by this factor."""
REACHED = 0.8
"""A run used up its share if this fraction was in use, since memory in use excludes the failed allocation."""
MOST_CROWDED = 3
"""After this many consecutive attempts that ran out of memory beside other runs, a run gets the GPU to itself."""
HOST_BYTES, CPU_BYTES = 3 << 30, 1 << 30
"""Host memory in bytes for torch, its libraries and the data of a run that was not measured, on a GPU and on a CPU."""
_FIRST_WAIT_S, _MOST_WAIT_S = 10.0, 300.0
"""First and longest wait in seconds before a crowded run is retried; each further attempt doubles the wait."""


@dataclass(frozen=True)
class Need:
    """Memory that a run needs, in bytes."""

    gpu: int | None
    """Bytes on each GPU of the run. None if unknown: the run then gets its GPUs to itself."""
    host: int | None
    words: str
    """Source of the number of GPU bytes, as text for messages."""


def end_of(claim: Claim) -> str:
    """Return how an attempt at a run ended; without a state of its own, the cause that another process recorded."""
    if claim.ended is not None:
        return str(claim.ended.get("state", "died"))
    died = str(claim.now.get("died", ""))
    return "full" if died == NO_ROOM else "crowded" if died.startswith((HOST_KILLED, STUCK)) else "died"


def crowds_in(claims: Sequence[Claim], step: object) -> list[Claim]:
    """Return the attempts since the last training progress that ran out of memory beside other runs, oldest first."""
    found: list[Claim] = []
    for claim in reversed(claims):
        state = end_of(claim)
        if claim.about.get("step") != step or state not in ("crowded", "died", "interrupted", "continued", "full"):
            break
        found += [claim] if state == "crowded" else []
    return found[::-1]


def kills_in(claims: Sequence[Claim]) -> list[Claim]:
    """Return the attempts that the kernel killed for lack of host memory."""
    return [claim for claim in claims if claim.ended is None and str(claim.now.get("died")).startswith(HOST_KILLED)]


def wait_s(crowds: int) -> float:
    return min(_FIRST_WAIT_S * 2.0 ** (crowds - 1), _MOST_WAIT_S) if crowds else 0.0


def with_corrections(need: Need, crowds: Sequence[Claim]) -> Need:
    """Return the memory that a run needs, with an increase if earlier attempts (`crowds`) ran out of memory."""
    told = [int(known) for one in crowds if isinstance(known := (one.ended or {}).get("needs_bytes"), int) and known]
    gpu, host = need.gpu, need.host
    if told:
        gpu = max(gpu, *told) if gpu is not None else None
    if len(crowds) >= MOST_CROWDED:
        gpu = None
    if (kills := len(kills_in(crowds))) and host is not None:
        host = None if kills >= MOST_CROWDED else math.ceil(host * GROWTH**kills)
    return replace(need, gpu=gpu, host=host, words=f"{need.words}, corrected" if crowds else need.words)


class Grant:
    """The shares of memory that a run reserves while it runs."""

    def __init__(self, gpus: Sequence[Share], host: Share, need: Need, hold: bool) -> None:
        self.gpus, self.host, self.need = gpus, host, need
        self._hold = hold

    @property
    def is_empty(self) -> bool:
        """Return whether the run has its GPUs to itself, and the GPUs were almost empty when the run began."""
        return all(one.whole and one.empty for one in self.gpus)

    @property
    def is_alone(self) -> bool:
        """Return whether no other process uses the run's GPUs at present."""
        return bool(self.gpus) and all(one.is_alone for one in self.gpus)

    def begin(self) -> None:
        """Limit the memory of this process to its share of the GPU."""
        if self._hold:
            total = torch.cuda.get_device_properties(0).total_memory
            share = 1.0 if self.gpus[0].whole else (self.gpus[0].bytes - CONTEXT_BYTES) / total
            torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, share)))

    def release(self) -> None:
        for share in (*self.gpus, self.host):
            share.release()

    def judge(self, message: Message) -> Message:
        """Return the final status of a run that ran out of memory, or whose GPU failed.

        If the run shared the GPU or the host with others, its state is `crowded` and it is tried again. A run that was
        alone has failed.
        """
        ran_out, lost = message.text.startswith(OUT_OF_MEMORY), message.text.startswith(GPU_LOST)
        if message.state != "died" or not (ran_out or lost):
            return message
        if not self.gpus:
            return message if self.host.empty else replace(message, state="crowded")
        if not self.is_empty:
            reached = ran_out and self.gpus[0].most >= REACHED * self.gpus[0].bytes
            needs = math.ceil(GROWTH * self.gpus[0].bytes) if reached and not self.gpus[0].whole else 0
            return replace(message, state="crowded", needs_bytes=needs)
        if lost:
            return message
        advice = (
            "it was alone on the GPU, so it needs more memory than that has: raise train.accumulate, set "
            "model.activation_checkpointing=true, take a smaller train.batch or evaluation.sampler.batch, or shard it "
            "(run.distribution.kind=fsdp)"
        )
        return replace(message, state="failed", text=f"{message.text}; {advice}")


class Admission:
    """Rules by which this process starts runs of a study."""

    def __init__(
        self,
        out: Path,
        protocol: Protocol,
        gpus: Sequence[Shares],
        host: Shares,
        device: str,
        estimate: Callable[[Task, Protocol], Need] | None = None,
    ) -> None:
        self.out, self.protocol, self.gpus, self.host, self.device = out, protocol, gpus, host, device
        self._estimate = estimate or estimated_need
        self._estimates: dict[str, Need] = {}
        self._hold = False
        self._known: dict[str, ShapeFacts] = {}

    @classmethod
    def here(cls, out: Path, protocol: Protocol, gpus: Sequence[int] | None = None) -> Admission:
        """Return the admission rules of this process, for all visible GPUs or for some of them by index."""
        seen = range(torch.cuda.device_count()) if gpus is None else gpus
        found = cls(
            out,
            protocol,
            [Shares(Gpu(index)) for index in seen],
            Shares(Host()),
            str(environment(choose_device("auto"))["device"]),
        )
        found._hold = True
        return found

    def refresh(self) -> None:
        """Read the stored measurements again."""
        self._known = read_shapes(self.out, self.device)

    def need_of(self, task: Task, claims: Sequence[Claim] = (), step: object = 0) -> Need:
        """Return the memory that a run needs, from measurements or an estimate, corrected by earlier attempts."""
        if not self.gpus_of(task):
            return with_corrections(Need(0, CPU_BYTES, "an allowance"), crowds_in(claims, step))
        shape = shape_of(task.plan)
        if shape not in self._estimates:
            self._estimates[shape] = self._estimate(task, self.protocol)
        need, facts = self._estimates[shape], self._known.get(shape) or ShapeFacts(self.device)
        if facts.peak_bytes:
            need = replace(need, gpu=math.ceil(MARGIN * facts.peak_bytes) + CONTEXT_BYTES, words="measured")
        if facts.host_bytes:
            need = replace(need, host=math.ceil(MARGIN * facts.host_bytes))
        return with_corrections(need, crowds_in(claims, step))

    def gpus_of(self, task: Task) -> Sequence[Shares]:
        """Return the GPUs of a run's ranks; empty if the run trains on the CPU."""
        return self.gpus[: task.plan.run.ranks] if task.plan.run.device != "cpu" else ()

    def admit(self, task: Task, claims: Sequence[Claim] = (), step: object = 0) -> Grant | None:
        """Reserve the memory shares of a run; return None if they do not fit beside the runs in progress."""
        need, taken = self.need_of(task, claims, step), list[Share]()
        wanted = [(gpu, need.gpu) for gpu in self.gpus_of(task)] + [(self.host, need.host)]
        for shares, size in wanted:
            if (share := shares.take(size)) is None:
                for one in taken:
                    one.release()
                return None
            taken.append(share)
        return Grant(taken[:-1], taken[-1], need, self._hold and len(taken) > 1 and task.plan.run.ranks == 1)

    def count_fitting(self, tasks: Sequence[Task]) -> int:
        """Return how many of these runs, in the given order, would fit beside the runs in progress, each on one GPU."""
        free, host, count = [gpu.left() for gpu in self.gpus], self.host.left(), 0
        idle = [not gpu.promises() for gpu in self.gpus]
        for task in tasks:
            need = self.need_of(task)
            if count and (need.host is None or need.host > host):
                continue
            if self.gpus_of(task):
                fitting = [n for n, left in enumerate(free) if idle[n] or (need.gpu is not None and need.gpu <= left)]
                if not fitting:
                    continue
                place = max(fitting, key=lambda n: free[n])
                free[place] = max(0, free[place] - (free[place] if need.gpu is None else need.gpu))
                idle[place] = False
            host -= host if need.host is None else need.host
            count += 1
        return count

    def note(self, task: Task, message: Message, grant: Grant) -> None:
        """Store the measured GPU and host memory of a run that was trained and scored."""
        if message.state == "done" and task.plan.run.ranks == 1 and message.peak_bytes:
            facts = ShapeFacts(self.device, message.peak_bytes, grant.host.most)
            note_shape(self.out, shape_of(task.plan), facts)

    def note_step(self, task: Task, step_s: float, steps: int) -> None:
        """Store the seconds of a training step that were measured while the run was alone on the GPU."""
        note_shape(self.out, shape_of(task.plan), ShapeFacts(self.device, step_s=step_s, steps=steps))

    def step_s_of(self, task: Task) -> float | None:
        """Return the seconds of a step alone on the GPU; for an untimed shape, the mean of timed shapes."""
        known = [facts.step_s for facts in self._known.values() if facts.step_s is not None]
        facts = self._known.get(shape_of(task.plan))
        if facts is not None and facts.step_s is not None:
            return facts.step_s
        return fmean(known) if known else None

    def words(self) -> str:
        """Describe the amount of memory that is free now."""
        free = [f"{max(0, one.left()) / 1e9:.1f} GB of {one.pool.name}" for one in (*self.gpus, self.host)]
        return f"free: {', '.join(free)}"

    def has_step(self, task: Task) -> bool:
        """Return whether a step of the run's shape was timed on this kind of device."""
        facts = self._known.get(shape_of(task.plan))
        return facts is not None and facts.step_s is not None


def estimated_need(task: Task, protocol: Protocol) -> Need:
    """Return the estimated memory of a run, without memory that all processes of the machine share."""
    try:
        peak = peak_of(task.plan, protocol, task.along.protocol if task.along else None, task.plan.run.ranks)
    except UserError:
        return Need(None, HOST_BYTES, "not known")
    return Need(peak.bytes, peak.host_bytes, "estimated") if peak.known else Need(None, peak.host_bytes, "not known")
