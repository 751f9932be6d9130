"""SIGINT and SIGTERM set a flag that every long loop polls. A second signal ends the process immediately."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tintype.runtime.dist import World
from tintype.runtime.signals import handle_signals


class Interrupt:
    """The flag that a signal handler sets. `signal` is the number of the received signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def on_any_rank(self, world: World) -> bool:
        """Return whether any rank received a signal, and if so, set the flag on all ranks."""
        if number := world.all_reduce_max(self.signal or 0):
            self.signal = number
        return self.signal is not None


@contextmanager
def watch_signals(*numbers: signal.Signals) -> Iterator[Interrupt]:
    """Yield a flag that the first of the given signals sets, by default SIGINT or SIGTERM."""
    interrupt = Interrupt()

    def note(number: int) -> None:
        interrupt.signal = number

    undo = handle_signals(note, *numbers)
    try:
        yield interrupt
    finally:
        undo()
