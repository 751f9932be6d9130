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
"""Pixels decoded at a time, by all threads. One image is always decoded, however large."""
_MOST_THREADS = 16
_sharing = 1


def usual_threads() -> int:
    """Return how many threads this process may run, beside others that do the same work."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(_MOST_THREADS, max(1, cores() // (ranks * _sharing)))


def share_cores(processes: int) -> None:
    """Set how many processes of one study share this machine."""
    global _sharing
    _sharing = processes


def decoding_pool(threads: int) -> ThreadPoolExecutor:
    """Return threads that compute alone: torch would start a busily waiting team for each.

    All are started here, since a thread that begins takes the number that was set last, by whichever thread.
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
    """Bounds the pixels that threads decode at a time. One image is always decoded, however large."""

    def __init__(self, most: int = MOST_PIXELS_AT_ONCE) -> None:
        self._most, self._used, self._changed = most, 0, Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for an image of so many pixels."""
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
    torch.get_num_threads()  # settles it: a thread looks for the number when it first needs it, and then never again
