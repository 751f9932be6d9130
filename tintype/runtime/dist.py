"""The ranks of one command that `torchrun` started, and collectives between them.

Decisions to stop, skip or save are collective, so all ranks agree before any rank acts. Ranks exchange JSON and tensors
through gloo on the CPU. Gradients and weights use separate process groups (`runtime.gradients`, `runtime.layout`).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tintype.errors import UserError
from tintype.runtime import activity
from tintype.runtime.identity import shown
from tintype.wording import again

T = TypeVar("T")

_TIMEOUT_S = 2 * 3600
"""Timeout of a collective within a step, in seconds. The watchdog (`watchdog`) ends blocked ranks much earlier."""
_PATIENCE_S = 24 * 3600
"""Timeout, in seconds, while ranks wait for the work of a single rank. The failure of a rank is noticed at once."""
_SHOWN = 6
_AGREE_S = 2.0
"""Seconds within which all ranks must report an error for it to count as the same error."""

_talk: dist.ProcessGroup | None = None
"""The gloo process group for messages between ranks; None if the default group is used."""
_aside: dist.ProcessGroup | None = None
"""The process group for each rank's second thread (`World.for_thread`)."""


@dataclass(frozen=True)
class World:
    """This process as one of several ranks. With only one rank, collectives do not communicate."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Number of this process among the ranks on this machine. The process uses the GPU with the same number."""
    joined: bool = False
    """Whether a process group exists, even with one rank."""
    in_thread: bool = False
    """Whether the collectives use the process group of the background thread that saves."""

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group of these collectives; None for the default group."""
        return _aside if self.in_thread else _talk

    def for_thread(self) -> World:
        """Return the same ranks with a separate process group for a second thread. Every rank must call this method.

        If two threads shared a group, their collectives would be mixed up.
        """
        global _aside
        if self.size == 1:
            return self
        if _aside is None:
            _aside = dist.new_group(backend="gloo", timeout=timedelta(seconds=_PATIENCE_S))
        return replace(self, in_thread=True)

    @property
    def leads(self) -> bool:
        """Return whether this rank writes the logs and reports."""
        return self.rank == 0

    def shard(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return every `size`-th item, beginning at the rank's number."""
        return items[self.rank :: self.size]

    def all_reduce_max(self, value: int) -> int:
        if self.size == 1:
            return value
        values = torch.tensor(value)
        with activity.waiting():
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
        return int(values)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on at least one rank."""
        return bool(self.all_reduce_max(int(flag)))

    def barrier(self) -> None:
        self.all_reduce_max(0)

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Raise a `UserError` on all ranks if one rank raises it, so either all ranks succeed, or all fail."""
        if self.size == 1:
            yield
            return
        found: tuple[str, str] | None = None
        try:
            yield
        except UserError as error:
            found = error.parts
        errors = [parts for parts in self.all_gather(found) if parts is not None]
        if errors:
            raise UserError(*errors[0])

    def all_gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros((), dtype=torch.int64) for _ in range(self.size)]
        with activity.waiting():
            dist.all_gather(sizes, torch.tensor(len(text)), group=self.group)
        found = [torch.zeros(max(map(int, sizes)), dtype=torch.uint8) for _ in range(self.size)]
        padded = torch.zeros_like(found[0])
        padded[: len(text)] = text
        dist.all_gather(found, padded, group=self.group)
        return [json.loads(bytes(one[:size].tolist())) for one, size in zip(found, sizes, strict=True)]

    def agree(self, values: Mapping[str, Any]) -> None:
        """Raise on every rank unless all have the same JSON values. The error names the ranks and keys that differ."""
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        if self.size > 1 and len(set(self.all_gather(digest))) > 1:
            raise UserError(_differences(self.all_gather(dict(values))))

    def broadcast(self, value: Any = None) -> Any:
        """Return the first rank's JSON value on all ranks."""
        return self.all_gather(value if self.leads else None)[0]

    def share(self, items: Sequence[T], work: Callable[[T], Tensor]) -> Tensor | None:
        """Share the items among the ranks in turn, and compute rows from each item with `work`.

        The first rank returns the rows of all items, in order, on the CPU. Other ranks return None.
        """
        found = self.share_named(items, lambda item: {"rows": work(item)})
        return None if found is None else found["rows"]

    def share_named(self, items: Sequence[T], work: Callable[[T], Mapping[str, Tensor]]) -> dict[str, Tensor] | None:
        """Like `share`, for several named tensors per item. `items` must not be empty."""
        done = [{name: rows.cpu() for name, rows in work(item).items()} for item in self.shard(items)]
        mine = {name: torch.cat([one[name] for one in done]) for name in done[0]} if done else {}
        if self.size == 1:
            return mine
        lengths = self.all_gather([len(next(iter(one.values()))) for one in done])
        if not self.leads:
            for rows in mine.values():
                dist.send(rows, 0, group=self.group)
            return None
        pieces = {name: [rows.split(lengths[0])] for name, rows in mine.items()}
        for rank in range(1, self.size):
            for name, rows in mine.items() if lengths[rank] else ():
                theirs = rows.new_empty(sum(lengths[rank]), *rows.shape[1:])
                dist.recv(theirs, rank, group=self.group)
                pieces[name].append(theirs.split(lengths[rank]))
        turns = [divmod(index, self.size) for index in range(len(items))]
        return {name: torch.cat([by_rank[rank][turn] for turn, rank in turns]) for name, by_rank in pieces.items()}

    def all_gather_tensor(self, mine: Tensor) -> Tensor:
        """Gather all ranks' rows in rank order, on the rows' device. Every rank must have the same number of rows.

        The gradients of a row go back to the rank from which the row came. So a loss over the rows of all ranks has the
        same gradient as in one process with the whole batch. If one rank calls backward, every rank must call it.
        """
        if self.size == 1:
            return mine
        found: Tensor = _AllGather.apply(mine)  # type: ignore[no-untyped-call]
        return found

    def all_reduce_mean(self, mine: Tensor) -> Tensor:
        """Return the mean of `mine` over the ranks, on its device. Gradients flow as in `all_gather_tensor`."""
        return mine if self.size == 1 else self.all_gather_tensor(mine[None]).mean(0)

    def say_once(self, text: str, say: Callable[[str], None]) -> None:
        """Report an error that ends this process. The other ranks then know that this rank is gone.

        If every rank has the error, it is reported once. Otherwise, the error is reported with the rank's number.
        """
        if self.size == 1:
            say(text)
            return
        store, digest = ranks_store(), hashlib.sha256(text.encode()).hexdigest()
        store.set(store_key("gone"), "")
        first = store.add(store_key("found", digest), 1) == 1
        until = time.monotonic() + _AGREE_S
        while (found := store.add(store_key("found", digest), 0)) < self.size and time.monotonic() < until:
            time.sleep(0.02)
        if first:
            say(text if found == self.size else f"rank {self.rank}: {text}")
            store.set(store_key("said", digest), "")
        else:  # the launcher stops all ranks when the first rank has ended
            store.wait([store_key("said", digest)], timedelta(seconds=2 * _AGREE_S))


class _AllGather(torch.autograd.Function):
    """An all_gather with a backward pass. The backward pass sums the gradients of a row over the losses of all ranks.

    This class does not divide the sum by the number of ranks. The loss of the whole batch is the mean of the ranks'
    losses, and `runtime.gradients` later averages the gradients of weights over the ranks.
    """

    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        size = dist.get_world_size()
        ctx.rows = len(mine)
        found = mine.new_empty(size * len(mine), *mine.shape[1:])
        with activity.waiting():
            dist.all_gather(list(found.chunk(size)), mine.contiguous())
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].contiguous().clone()
        dist.all_reduce(summed)
        return summed[dist.get_rank() * ctx.rows :][: ctx.rows]


def _differences(by_rank: Sequence[Mapping[str, Any]]) -> str:
    """Describe which ranks differ from the most common value of each key; on a tie, from the first rank's value."""
    keys = list(dict.fromkeys(key for values in by_rank for key in values))
    found: dict[str, list[str]] = {}
    for key in keys:
        texts = [json.dumps(values.get(key), sort_keys=True) for values in by_rank]
        usual = max(texts, key=texts.count)
        for text in dict.fromkeys(text for text in texts if text != usual):
            ranks = ", ".join(str(rank) for rank, one in enumerate(texts) if one == text)
            found.setdefault(ranks, []).append(f"{key} {shown(text)} and not {shown(usual)}")
    words = [
        f"rank {ranks} has {', '.join(some[:_SHOWN])}{' …' if len(some) > _SHOWN else ''}"
        for ranks, some in found.items()
    ]
    return (
        f"the ranks do not agree: {'; '.join(words[:_SHOWN])}. Nothing was begun; start all ranks with the same "
        "command, version and files"
    )


def ranks_store() -> Any:
    """Return the key-value store through which the ranks joined, which answers even while ranks wait for each other."""
    return dist.distributed_c10d._get_default_store()


def store_key(*words: str) -> str:
    """Return a store key that includes the restart count. So restarted ranks do not read keys of earlier processes."""
    return "/".join(["tintype", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), *words])


def someone_is_gone() -> bool:
    """Return whether a rank has reported its own failure. Only the failed rank prints the reason."""
    try:
        return bool(ranks_store().check([store_key("gone")]))
    except RuntimeError:  # the store is gone too
        return True


ALONE = World()


def current() -> World:
    """Return the world that this process has joined, or a world with one rank."""
    if not dist.is_initialized():
        return ALONE
    return World(dist.get_rank(), dist.get_world_size(), _number("LOCAL_RANK"), joined=True)


@contextmanager
def joined() -> Iterator[World]:
    """Join the process group if `torchrun` started this process. Leave the group at the end.

    A failed process does not leave the group, since leaving would wait for the other ranks. Ranks that waited for a
    failed rank end without a message, since the failed rank has already reported the error.
    """
    if not launched() or dist.is_initialized():
        yield current()
        return
    _meet()
    try:
        yield current()
    except SystemExit:
        if not someone_is_gone():
            _part()
        raise
    except BaseException as error:
        if is_connection_error(error) and someone_is_gone():
            time.sleep(_AGREE_S)  # the launcher names the rank that ends first, which must be the failed rank
            raise SystemExit(1) from None
        ranks_store().set(store_key("gone"), "")
        raise
    _part()


def is_connection_error(error: BaseException) -> bool:
    """Return whether an error comes from the connection to other ranks. gloo has no class for such errors."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def launched() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _meet() -> None:
    global _talk
    gpus = torch.cuda.device_count()
    local = _number("LOCAL_RANK")
    if gpus and _number("LOCAL_WORLD_SIZE", 1) > gpus:
        if local:  # the machine's first rank reports the error
            raise SystemExit(2)
        raise UserError(
            f"torchrun started {_number('LOCAL_WORLD_SIZE')} processes on this machine, which has {gpus} GPUs",
            f"start torchrun with `--nproc-per-node {gpus:d}`",
        )
    if gpus:
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=_TIMEOUT_S))
    _talk = dist.new_group(backend="gloo", timeout=timedelta(seconds=_PATIENCE_S))


def _part() -> None:
    global _talk, _aside
    _talk = _aside = None
    dist.destroy_process_group()


def alone(what: str) -> None:
    """Raise under `torchrun`, for commands that start their own processes or must run as a single process."""
    if _number("WORLD_SIZE", 1) > 1 and launched():
        raise UserError(f"`{what}` runs only as a single process", "start the command without torchrun")


def refuse_other_steps(steps: Sequence[int], run: Path) -> None:
    """Raise if the ranks loaded checkpoints of different steps of a run.

    The ranks do not load at the same time, and a run that still trains may write a new checkpoint in between.
    """
    if len(set(steps)) > 1:
        raise UserError(
            f"{run} was saved again, at step {max(steps)}, while this process was loading it", f"{again()} again"
        )


def _number(name: str, usual: int = 0) -> int:
    return int(os.environ.get(name, usual))
