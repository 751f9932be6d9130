"""Keep a process that has lost its lease from writing to the folder.

The holder of a lease (`tintype.runtime.leases`) can lose the lease without noticing, if the process is paused or its
network fails. The new holder must not see a late write of the old holder. A check of the lease before a write is not
sufficient, since a process can be paused between the check and the write. So every commit and every takeover has fixed
steps:

- To commit, write to a temporary name, or open the file to append to. After a check of the lease, rename or append.
- To take over, remove all temporary names, replace growing files by copies, and then read the folder.

Suppose the old holder checks its lease before the takeover, and writes late. The old holder's write is then either
finished before the new holder reads, or it has no effect. A late rename fails, since the takeover has removed the
temporary name. A late line is appended to the old file, which nobody reads any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Fence:
    check: Callable[[], None] = _nothing
    """Function that is called right before each commit. The function raises `LostLeaseError` if the lease is lost."""
    suffix: str = ""
    """Suffix of temporary file names. Only this holder writes to files with this suffix."""
    takes_over: bool = False
    """Whether the earlier holder did not return the lease. The holder's process may still be alive and write later."""
    taken_from: str = ""
    """Description of the earlier holder if it did not return the lease, otherwise empty."""
    passed: frozenset[int] = frozenset()
    """Ids of former holders' processes on this machine. A paused process still holds its file locks."""


OPEN = Fence()
"""A fence that never blocks a write, for processes without a lease."""
