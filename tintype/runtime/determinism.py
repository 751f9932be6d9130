"""Bit-identical runs on a GPU.

Deterministic algorithms are used, and operations without a deterministic form are recorded. torch's `warn_only` mode is
not sufficient. In this mode, torch still uses cuDNN's attention, and the memory-efficient attention splits its keys.
Both kinds of attention add partial sums in a random order. The strict mode uses deterministic forms, and raises for
operations without a deterministic form. Training then records the operation's name, allows the operation and repeats
the step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from tintype.runtime.memory import count_failures

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_EXACT_WORKSPACES = (":4096:8", ":16:8")
"""Workspaces with which cuBLAS is deterministic. With any other, the strict mode refuses matrix products."""
_WITHOUT = re.compile(r"(.+?) does not have a deterministic implementation")
_LATE = "it uses CuBLAS"
"""Part of torch's error for matrix products. torch reads the workspace variable only once, at the first product."""


def why_inexact(device: torch.device, wanted: bool, ranks: int) -> list[str]:
    """Return why two runs of a plan on this device may differ in some bits; empty if they are bit-identical."""
    if device.type != "cuda":
        return []
    workspace = os.environ.get(_WORKSPACE, _EXACT_WORKSPACES[0])
    reasons = {
        "run.deterministic is false": not wanted,
        f"the gradients of {ranks} ranks are added up": ranks > 1,
        f"the environment variable {_WORKSPACE} is {workspace}": workspace not in _EXACT_WORKSPACES,
        "GPU memory ran out earlier in this process, which can change the algorithms of convolutions": count_failures()
        > 0,
    }
    return [reason for reason, holds in reasons.items() if holds]


@contextmanager
def deterministic(device: torch.device, inexact: Sequence[str]) -> Iterator[None]:
    """Use only deterministic algorithms on a GPU, unless `inexact` has reasons why a run cannot be exact anyway."""
    if device.type != "cuda" or inexact:
        yield
        return
    given = _WORKSPACE in os.environ
    os.environ.setdefault(_WORKSPACE, _EXACT_WORKSPACES[0])
    cudnn = torch.backends.cudnn
    mode, filled = torch.get_deterministic_debug_mode(), torch._C._get_deterministic_fill_uninitialized_memory()
    flags = cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch._C._set_deterministic_fill_uninitialized_memory(False)  # a pass over each new tensor; none is read unset
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        # Not by `set_deterministic_debug_mode`, which would leave the compiler in its deterministic mode.
        torch.use_deterministic_algorithms(mode != 0, warn_only=mode == 1)
        torch._C._set_deterministic_fill_uninitialized_memory(filled)
        cudnn.deterministic, cudnn.benchmark = flags
        if not given:
            os.environ.pop(_WORKSPACE, None)


def inexact_operation(error: RuntimeError) -> str | None:
    """Return the operation that torch refused because it has no deterministic form; None for other errors."""
    if not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled():
        return None
    if _LATE in str(error):
        return f"products of cuBLAS, as this process made some before {_WORKSPACE} was set"
    found = _WITHOUT.search(str(error))
    return found[1] if found else None


def allow_inexact() -> None:
    """Until `deterministic` ends, allow operations without a deterministic form. torch warns once per operation."""
    torch.use_deterministic_algorithms(True, warn_only=True)
