"""The fence between a process that may write to a folder and one that no longer may.

Whoever holds a lease (`tintype.runtime.leases`) can lose it without a sign: it is paused, or its network is gone.
Whoever takes it over must not find a late write of the other. No check alone gives that, since a process can be paused
between the check and the write. So every commit has three steps, and whoever takes over has two:

- write to a name of one's own, or open the file that a line is appended to; check the lease; rename, or append;
- remove all such names, and put copies in the place of files that grow; then read what is there.

A write whose check came before the takeover was then begun before it too: either it is done before the other reads, or
its name is gone and it fails, or its line lands in a file that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Fence:
    """The fence of one holder of a lease."""

    check: Callable[[], None] = _nothing
    """Raises `LostLeaseError` where the lease is lost. It is called right before each commit."""
    suffix: str = ""
    """End of the names that this holder alone writes to."""
    takes_over: bool = False
    """Whether a holder before did not give the lease back: it may wake up."""
    taken_from: str = ""
    """The last such holder, in words; empty where the last one gave the lease back."""
    passed: frozenset[int] = frozenset()
    """Processes of this machine that held the lease before. One that is paused still holds its locks."""


OPEN = Fence()
"""Stops nothing: for who holds no lease."""
