"""Where this process stands, for the watchdog of its ranks.

All ranks of a run pass the same phases in the same order, so the one that has passed the fewest is behind the others.
Only the main thread counts.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

WAITING = "waiting for the other ranks"
_SHOWN_FRAMES = 4


@dataclass
class Standing:
    phase: str = "start"
    step: int = 0
    """The step under way, from 1; 0 before the first."""
    passed: int = 0
    """Number of phases begun."""


_here = Standing()


def here() -> Standing:
    return _here


def mark(phase: str, step: int | None = None) -> None:
    """Note that a phase begins, and which step it is of."""
    if threading.current_thread() is threading.main_thread():
        _here.phase = phase
        _here.passed += 1
        _here.step = _here.step if step is None else step


@contextmanager
def waiting() -> Iterator[None]:
    """Note that this process waits for the other ranks."""
    before = _here.phase
    mark(f"{before}, {WAITING}")
    yield
    mark(before)


def stack() -> list[str]:
    """The innermost frames of the main thread, the last called first, as `file:line function`."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found = traceback.StackSummary.extract(islice(traceback.walk_stack(frame), _SHOWN_FRAMES), lookup_lines=False)
    return [f"{'/'.join(Path(one.filename).parts[-2:])}:{one.lineno} {one.name}" for one in found]
