"""Keep a process that has lost its lease from writing to the folder.

The holder of a lease (`tintype.runtime.leases`) can lose the lease without noticing: the process was paused, or its
network failed. The new holder must not see a late write of the old holder. Checking the lease before a write cannot
ensure this, since a process can be paused between the check and the write. So every commit has three steps, and every
takeover two:

- Commit: write to a temporary name, or open the file to append to. Check the lease. Then rename or append.
- Takeover: remove all temporary names, and replace growing files by copies. Then read the folder.

Suppose the old holder checked its lease before the takeover. Then the old holder's write is either finished before the
new holder reads, or has no effect. A late rename fails, since the takeover removed the temporary name. A late line is
appended to the replaced file, which nobody reads.
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
    """Whether an earlier holder did not give the lease back. That process may wake up and write."""
    taken_from: str = ""
    """Description of the earlier holder that did not give the lease back; empty if the lease was given back."""
    passed: frozenset[int] = frozenset()
    """Ids of this machine's processes that held the lease before. A paused process still holds its file locks."""


OPEN = Fence()
"""A fence that stops nothing, for processes without a lease."""
