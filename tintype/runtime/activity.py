"""Where this process stands, for the watchdog of its ranks.

All ranks of a run pass the same phases in the same order, so the one that has passed the fewest is behind the others.
The main thread counts, and where it waits for the thread that saves in the background, that one.
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


here, writer = Standing(), Standing("save")
"""Places of the main thread and of the thread that saves in the background."""
_writer_thread = 0
_waits_for_writer = False


def mark(phase: str, step: int | None = None) -> None:
    """Note that a phase begins, and which step it is of."""
    place = _place()
    place.phase = phase
    place.passed += 1
    place.step = place.step if step is None else step


def _place() -> Standing:
    global _writer_thread
    if threading.current_thread() is threading.main_thread():
        return here
    _writer_thread = threading.get_ident()
    return writer


@contextmanager
def waiting_for_writer() -> Iterator[None]:
    """Note that the main thread waits for the one that saves, which then says where this process stands."""
    global _waits_for_writer
    _waits_for_writer = True
    try:
        yield
    finally:
        _waits_for_writer = False


@contextmanager
def waiting() -> Iterator[None]:
    """Note that this process waits for the other ranks."""
    before = _place().phase
    mark(f"{before}, {WAITING}")
    yield
    mark(before)


def stack() -> list[str]:
    """Where the thread that counts is: the innermost frames of this package and what they call, as `file:line name`."""
    thread = _writer_thread if _waits_for_writer else threading.main_thread().ident
    top = sys._current_frames().get(thread or 0)
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_stack(top)]
    own = [frame for frame in frames if frame[0].startswith(_PACKAGE)][:_SHOWN_FRAMES]
    called = [frame for frame in frames[:1] if frame not in own]
    return [f"{'/'.join(Path(file).parts[-2:])}:{line} {name}" for file, line, name in own + called]
