"""Threads that decode images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Condition

import torch

from tintype.runtime.machine import cores

MOST_PIXELS_AT_ONCE = 100_000_000
"""Maximum number of pixels that all threads decode at the same time. A larger image is still decoded, but alone."""
_MOST_THREADS = 16
_sharing = 1


def usual_threads() -> int:
    """Return the number of threads for this process. The number depends on the other ranks and runs on the machine."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(_MOST_THREADS, max(1, cores() // (ranks * _sharing)))


def share_cores(processes: int) -> None:
    """Set how many processes of one study share this machine."""
    global _sharing
    _sharing = processes


def decoding_pool(threads: int) -> ThreadPoolExecutor:
    """Return a thread pool whose threads run torch single-threaded.

    By default, torch would start several busy-waiting threads for each thread of the pool. All threads are started
    here, since a new thread inherits the torch thread count that any thread of the process set last.
    """
    own = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, "decode", initializer=_alone)
    all_there = Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(all_there.wait)
    all_there.wait()
    torch.set_num_threads(own)
    return pool


class PixelBudget:
    """Limits the pixels that threads decode at the same time. A larger image is still decoded, but alone."""

    def __init__(self, most: int = MOST_PIXELS_AT_ONCE) -> None:
        self._most, self._used, self._changed = most, 0, Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + pixels <= self._most)
            self._used += pixels
        try:
            yield
        finally:
            with self._changed:
                self._used -= pixels
                self._changed.notify_all()


def _alone() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # torch reads the number at its first use in a thread, and never again
