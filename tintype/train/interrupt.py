"""SIGINT and SIGTERM set a flag that every long loop polls; a second signal ends the process at once.

`timeout` and job schedulers signal a process and then its group: what comes within a second is the same signal.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tintype.world import World

_SAME_SIGNAL_S = 1.0


class Interrupt:
    """`signal` is the number of the signal that came, or None."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def of_any(self, world: World) -> bool:
        """Whether a signal has come to any rank; then it has come to all."""
        if number := world.most(self.signal or 0):
            self.signal = number
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal or 0)


@contextmanager
def watch_signals(*numbers: signal.Signals) -> Iterator[Interrupt]:
    """By default SIGINT and SIGTERM."""
    interrupt = Interrupt()
    first_s = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first_s
        if interrupt.signal is None:
            interrupt.signal, first_s = number, time.monotonic()
        elif time.monotonic() - first_s > _SAME_SIGNAL_S:
            os._exit(128 + number)

    before = {number: signal.signal(number, note) for number in numbers or (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
