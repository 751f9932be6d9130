"""Detect out-of-memory errors of a GPU, including errors from which an operation recovers silently.

cuDNN has several algorithms for a convolution. If the workspace of an algorithm does not fit into memory, torch
silently uses the next algorithm. torch then uses this algorithm until the process ends (`Conv_v8.cpp`, `try_configs`).
Another algorithm gives different last digits. So a run that shares a full GPU can end with different weights from a run
that has the GPU alone. If no algorithm fits, torch raises a plain `RuntimeError`. In both cases, torch's allocator
counts an out-of-memory event.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def count_failures() -> int:
    """Return how often the GPU of this process ran out of memory, with or without a raised error."""
    if not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_stats_as_nested_dict().get("num_ooms", 0))


@contextmanager
def checked_memory() -> Iterator[None]:
    """Raise `OutOfMemoryError` if memory ran out inside, even if the operation recovered."""
    before = count_failures()
    hidden: BaseException | None = None
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if count_failures() == before:
            raise
        hidden = error
    if count_failures() > before:
        raise torch.OutOfMemoryError(
            "GPU memory ran out in an operation, which then fell back to an algorithm with slightly different "
            "results; run fewer trainings at a time on this GPU"
        ) from hidden


_RAN_OUT = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR")
"""Substrings of errors that libraries raise when memory runs out, in addition to torch's own error."""


def ran_out(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _RAN_OUT)


def lost_gpu(error: BaseException) -> bool:
    """Return whether a kernel, perhaps of another process, failed and this process can no longer use its GPU."""
    return isinstance(error, RuntimeError) and str(error).startswith(("CUDA error", "CUDA driver error"))
