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
from pathlib import Path

WAITING = "waiting for the other ranks"
_SHOWN_FRAMES = 4
_PACKAGE = str(Path(__file__).parent)


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
    """Where the main thread is: the innermost frames of this package, then what they call, as `file:line function`."""
    top = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_stack(top)]
    own = [frame for frame in frames if frame[0].startswith(_PACKAGE)][:_SHOWN_FRAMES]
    called = [frame for frame in frames[:1] if frame not in own]
    return [f"{'/'.join(Path(file).parts[-2:])}:{line} {name}" for file, line, name in own + called]
