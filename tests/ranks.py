"""Runs a function in several processes that have joined one gloo group, as `torchrun` would start them.

The processes are forked from a server that has imported torch and computed nothing: a fork of the tests' own process
could not use autograd, and a fresh interpreter takes seconds. The server is started once.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

TIMEOUT_S = 180.0

_CONTEXT = multiprocessing.get_context("forkserver")
_OF_TORCH = ["torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp"]
"""Modules that the first step of every rank would import, in two seconds."""
_OF_TINTYPE = ["tests.tiny", "tintype.evaluation.run", "tintype.sampling.sample"]
_CONTEXT.set_forkserver_preload([*_OF_TORCH, "pytest", *_OF_TINTYPE])


class RankError(AssertionError):
    """A rank failed or the ranks took too long; the text has the tracebacks."""


def run_ranks(
    size: int, function: Callable[..., Any], *args: Any, timeout_s: float = TIMEOUT_S, grace_s: float = 0.0
) -> list[Any]:
    """Return the results of `function(*args)` on each of `size` ranks, in their order.

    The function stands at the top level of a module (children find it by name); arguments and results can be pickled.
    Each child has torch's threads set to 1, the parent's environment and torchrun's variables. The first failure
    stops all ranks, after `grace_s` in which the others may end by themselves.
    """
    with tempfile.TemporaryDirectory(prefix="tintype-ranks-") as folder:
        work = pickle.dumps((function, args))
        ranks = [_start(rank, size, Path(folder) / "store", work) for rank in range(size)]
        try:
            return _collect([pipe for pipe, _ in ranks], timeout_s, grace_s)
        finally:
            for pipe, process in ranks:
                pipe.close()
                process.kill()
                process.join()
                process.close()


def _start(rank: int, size: int, store: Path, work: bytes) -> tuple[Connection, Any]:
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_child, args=(rank, size, str(store), dict(os.environ), work, theirs))
    process.start()
    theirs.close()
    return ours, process


def _collect(pipes: Sequence[Connection], timeout_s: float, grace_s: float) -> list[Any]:
    until = time.monotonic() + timeout_s
    found: dict[int, Any] = {}
    failed: list[str] = []
    while len(found) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in found], max(0.0, until - time.monotonic()))
        if not ready and failed:
            break
        if not ready:
            late = [rank for rank in range(len(pipes)) if rank not in found]
            raise RankError(f"ranks {late} have not ended in {timeout_s:g} s")
        for rank, pipe in enumerate(pipes):
            if pipe in ready:
                ended, value = _receive(pipe)
                found[rank] = value
                if not ended:
                    failed.append(f"rank {rank} of {len(pipes)}:\n{value}")
        if failed and grace_s:
            until, grace_s = time.monotonic() + grace_s, 0.0
        elif failed:
            raise RankError("\n".join(failed))
    if failed:
        raise RankError("\n".join(failed))
    return [found[rank] for rank in range(len(pipes))]


def _receive(pipe: Connection) -> tuple[bool, Any]:
    """Whether a rank came to its end, and its result or its traceback."""
    try:
        ended, value = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return False, "the process ended without a word"
    return ended, value


def _child(rank: int, size: int, store: str, environment: dict[str, str], work: bytes, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    os.environ.clear()
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank), TORCHELASTIC_RUN_ID="tests")
    os.environ.update(WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT_S)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # torch 2.10 warns of itself
            function, args = pickle.loads(work)
            answer = pickle.dumps((True, function(*args)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answer = pickle.dumps((False, traceback.format_exc()))
    pipe.send_bytes(answer)
    pipe.close()
