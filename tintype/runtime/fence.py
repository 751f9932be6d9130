"""Keep a process that has lost its lease from writing to the folder.

The holder of a lease (`tintype.runtime.leases`) can lose the lease without noticing: the process was paused, or its
network failed. The new holder must not see a late write of the old holder. A check alone cannot ensure that, since a
process can be paused between the check and the write. So every commit has three steps, and every takeover two:

- Commit: write to a separate name, or open the file to append to; check the lease; rename, or append.
- Takeover: remove all such names, and replace growing files by copies; then read the folder.

Suppose the old holder checked its lease before the takeover. Then its write is finished before the new holder reads, or
the write has no effect. A rename fails, since its temporary name is gone. An appended line goes to a replaced file that
nobody reads.
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
    """Function called right before each commit. The function raises `LostLeaseError` if the lease is lost."""
    suffix: str = ""
    """Suffix of the temporary names that only this holder writes to."""
    takes_over: bool = False
    """Whether an earlier holder did not give the lease back, and so may wake up."""
    taken_from: str = ""
    """The earlier holder that did not give the lease back, in words; empty if the lease was given back."""
    passed: frozenset[int] = frozenset()
    """Processes of this machine that held the lease before. A paused process still holds its locks."""


OPEN = Fence()
"""A fence that stops nothing, for processes without a lease."""
