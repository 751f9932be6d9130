"""Out-of-memory errors of a GPU, also those that an operation hides.

cuDNN has several algorithms for a convolution. torch tries one after the other: if the workspace of one does not fit
into memory, it takes the next without a word, and the process keeps that choice (`Conv_v8.cpp`, `try_configs`). The
result has other last digits, so a run beside others that fill the GPU ends with other weights than the same run alone.
If no algorithm fits, torch raises a plain `RuntimeError`. The allocator counts both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def count_failures() -> int:
    """Return how often memory ran out on the GPU of this process, whether an error was raised or not."""
    if not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_stats_as_nested_dict().get("num_ooms", 0))


@contextmanager
def checked_memory() -> Iterator[None]:
    """Raise `OutOfMemoryError` if memory ran out inside, whatever the operation made of it."""
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
            "GPU memory ran out in an operation that takes another algorithm then, with other last digits; run fewer "
            "trainings at a time on this GPU"
        ) from hidden


_RAN_OUT = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR")
"""Words of errors that libraries raise without memory, beside torch's own."""


def ran_out(error: BaseException) -> bool:
    """Return whether an error means that the memory of the host or of a GPU ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _RAN_OUT)


def lost_gpu(error: BaseException) -> bool:
    """Return whether this process can no longer use its GPU: a kernel failed, its own or a neighbour's."""
    return isinstance(error, RuntimeError) and str(error).startswith(("CUDA error", "CUDA driver error"))
