"""The processes of one command, as `torchrun` starts them: who they are, and how they agree.

Decisions are collective: stop, skip and save are agreed on before anyone acts. What ranks tell each other goes as JSON
or as tensors, through gloo on the CPU; gradients and weights go their own ways (`train.distribute`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tintype.errors import UserError

_TIMEOUT_S = 600


@dataclass(frozen=True)
class World:
    """This process among the others. Alone, every question is answered without asking anyone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the processes of this machine, whose GPUs are numbered alike."""
    joined: bool = False
    """Whether there is a process group, be it of one."""

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes logs and talks."""
        return self.rank == 0

    def mine(self, items: Sequence[Any]) -> Sequence[Any]:
        """This rank's items: every size-th."""
        return items[self.rank :: self.size]

    def most(self, value: int) -> int:
        """The largest value of all ranks."""
        if self.size == 1:
            return value
        values = torch.tensor(value)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return int(values)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return bool(self.most(int(flag)))

    def wait(self) -> None:
        """Returns when every rank has come here."""
        self.most(0)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is done inside succeeds on every rank or on none: a mistake that one of them finds is raised by all."""
        if self.size == 1:
            yield
            return
        found = ""
        try:
            yield
        except UserError as error:
            found = str(error) or "failed"
        errors = list(filter(None, self.tell(found)))
        if errors:
            raise UserError(errors[0])

    def tell(self, value: Any) -> list[Any]:
        """What every rank has, in the order of ranks: anything that JSON holds."""
        if self.size == 1:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(one.tolist())) for one in self._exchange(text)]

    def gather(self, rows: Tensor) -> Tensor:
        """All ranks' rows, in the order of ranks, on the CPU. Ranks may have different numbers of them."""
        return rows.cpu() if self.size == 1 else torch.cat(self._exchange(rows.detach().cpu()))

    def _exchange(self, rows: Tensor) -> list[Tensor]:
        counts = [torch.zeros((), dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor(len(rows)))
        most = max(map(int, counts))
        padded = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded)
        return [one[: int(count)] for one, count in zip(found, counts, strict=True)]

    def rows(self, mine: Tensor) -> Tensor:
        """All ranks' rows, in the order of ranks, where they are. Every rank has the same number."""
        if self.size == 1:
            return mine
        found = mine.new_empty(self.size * len(mine), *mine.shape[1:])
        dist.all_gather(list(found.chunk(self.size)), mine.detach().contiguous())
        return found

    def mean(self, mine: Tensor) -> Tensor:
        """The mean over the ranks, where it is."""
        return mine if self.size == 1 else self.rows(mine[None]).mean(0)

    def first_to_say(self, text: str) -> bool:
        """Whether no other rank has said the same: a mistake that all of them find is told once."""
        if self.size == 1:
            return True
        key = f"said/{hashlib.sha256(text.encode()).hexdigest()}"
        return bool(dist.distributed_c10d._get_default_store().add(key, 1) == 1)


ALONE = World()


def current() -> World:
    """The world that this process has joined, or itself alone."""
    if not dist.is_initialized():
        return ALONE
    return World(dist.get_rank(), dist.get_world_size(), _number("LOCAL_RANK"), joined=True)


@contextmanager
def joined() -> Iterator[World]:
    """Meets the other processes where `torchrun` started this one, and parts from them at the end."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or dist.is_initialized():
        yield current()
        return
    gpus = torch.cuda.device_count()
    local = _number("LOCAL_RANK")
    if gpus and local >= gpus:
        raise UserError(
            f"torchrun started {_number('LOCAL_WORLD_SIZE')} processes on this machine, which has {gpus} GPUs; "
            f"start it with --nproc-per-node {gpus}"
        )
    if gpus:
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=_TIMEOUT_S))
    try:
        yield current()
    finally:
        dist.destroy_process_group()


def alone(what: str) -> None:
    """Refuses a command that starts its own processes, or has no use for several."""
    if _number("WORLD_SIZE", 1) > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError(f"`{what}` runs as one process; start it without torchrun")


def _number(name: str, usual: int = 0) -> int:
    return int(os.environ.get(name, usual))
