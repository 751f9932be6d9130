"""SIGINT and SIGTERM set a flag that every long loop polls; a second signal ends the process at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """`signal` is the number of the signal that came, or None."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal or 0)


@contextmanager
def watch_signals() -> Iterator[Interrupt]:
    interrupt = Interrupt()

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt.signal is not None:
            os._exit(128 + number)
        interrupt.signal = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
