"""Record the current phase of this process. The watchdog compares the phases of the ranks.

All ranks of a run go through the same phases in the same order. So the rank with the fewest phases delays the others.
The main thread's phases count. While the main thread waits for the saving thread, the saving thread's phases count
instead.
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
    """The current step, counted from 1; 0 before the first step."""
    passed: int = 0


here, writer = Standing(), Standing("save")
"""The phases of the main thread and of the background thread that saves."""
_writer_thread = 0
_waits_for_writer = False


def mark(phase: str, step: int | None = None) -> None:
    """Record that a phase begins, and the step to which the phase belongs."""
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
    """Record that the main thread waits for the saving thread. During this wait, the saving thread's phases count."""
    global _waits_for_writer
    _waits_for_writer = True
    try:
        yield
    finally:
        _waits_for_writer = False


@contextmanager
def waiting() -> Iterator[None]:
    before = _place().phase
    mark(f"{before}, {WAITING}")
    yield
    mark(before)


def stack() -> list[str]:
    """Return `file:line name` of this package's innermost frames, and of frames they call, in the counted thread."""
    thread = _writer_thread if _waits_for_writer else threading.main_thread().ident
    top = sys._current_frames().get(thread or 0)
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_stack(top)]
    own = [frame for frame in frames if frame[0].startswith(_PACKAGE)][:_SHOWN_FRAMES]
    called = [frame for frame in frames[:1] if frame not in own]
    return [f"{'/'.join(Path(file).parts[-2:])}:{line} {name}" for file, line, name in own + called]
