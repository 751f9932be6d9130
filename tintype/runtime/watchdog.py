"""End all ranks when one rank is stuck, and report the stuck rank and its place in the code.

A thread of each rank writes the rank's phase to the shared store (a beat) several times per time limit. A process ends
if its step exceeds the limit, or if the next rank stops writing beats. When a process ends, the launcher stops the
other ranks. If several ranks detect the problem, only one of them reports it.

Time during which the process itself was stopped (SIGSTOP, a closed laptop) does not count.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol

from tintype.errors import UserError
from tintype.runtime import activity
from tintype.runtime.dist import World, is_connection_error, ranks_store, someone_is_gone, store_key

EXIT_CODE = 1
_BEAT_S = 2.0
_BEATS_OF_LIMIT = 8
"""Minimum number of beats that a rank writes within the time limit."""
_REMEMBERED = 51
_ANSWER_S = 15.0
"""Seconds after which an unresponsive store counts as lost."""


class Limits(Protocol):
    """The time limit of a step: `multiple` times the median, at least `floor_minutes`. None disables the watchdog."""

    @property
    def multiple(self) -> float: ...

    @property
    def floor_minutes(self) -> float | None: ...


@dataclass(frozen=True)
class Place:
    """Phase and step of a rank at its last beat."""

    beat: int
    phase: str
    step: int
    passed: int
    stack: list[str] = field(default_factory=list)
    left: bool = False
    """Whether the rank has finished or left the training."""
    writer: int = 0
    """Number of phases that the rank's saving thread has started."""

    @property
    def words(self) -> str:
        at = f", at {self.stack[0]}" if self.stack else ""
        return f"step {self.step}, {self.phase}{at}" if self.step else f"{self.phase}{at}"


Why = Literal["no answer", "left", "behind", "store lost"]


@dataclass(frozen=True)
class Finding:
    """The ranks for which the other ranks wait, and the reason."""

    why: Why
    ranks: list[int]
    places: Mapping[int, Place | None]

    @property
    def words(self) -> str:
        if self.why == "store lost":
            return "the ranks' store does not answer: the machine of the first torchrun is gone or cut off"
        return "; ".join(self._words_of(rank) for rank in self.ranks)

    def _words_of(self, rank: int) -> str:
        place = self.places[rank]
        if place is None:
            return f"rank {rank} has not begun"
        verb = {"left": "has left the training", "behind": "is stuck"}.get(
            self.why, "does not answer (ended or stopped)"
        )
        return f"rank {rank} {verb}: {place.words}"

    @property
    def details(self) -> dict[str, Any]:
        """Return the phase of every rank, and the stacks of the ranks for which the others wait, for the event log."""
        stacks = {rank: place.stack for rank in self.ranks if (place := self.places.get(rank)) is not None}
        stands = {rank: place.words if place else "not begun" for rank, place in self.places.items()}
        return {"ranks": self.ranks, "why": self.why, "stands": stands, "stacks": stacks}


Report = Callable[[Finding, str], str]
"""Function that logs a finding with its description, and returns the full message."""


def say_again(finding: Finding, text: str) -> str:
    return f"{text}. All ranks are ended; run the same command again"


def blame(before: Mapping[int, Place | None], after: Mapping[int, Place | None], mine: int) -> Finding:
    """Find the ranks for which the others wait; compare the places of all ranks at two times a few beats apart."""
    left = [rank for rank, place in after.items() if place is None or place.left]
    silent = [
        rank for rank, place in after.items() if place and not place.left and place == before[rank] and rank != mine
    ]
    if silent:
        return Finding("no answer", silent, after)
    if left:
        return Finding("left", left, after)
    passed = {rank: (place.passed, place.writer) for rank, place in after.items() if place}
    fewest = min(passed.values())
    return Finding("behind", [rank for rank, count in passed.items() if count == fewest], after)


class Watchdog:
    """Monitor the duration of this rank's steps, and the beats of the next rank."""

    def __init__(self, world: World, settings: Limits, report: Report) -> None:
        assert settings.floor_minutes is not None
        self._world, self._report = world, report
        self._multiple, self._floor_s = settings.multiple, 60 * settings.floor_minutes
        self._beat_s = min(_BEAT_S, self._floor_s / _BEATS_OF_LIMIT)
        self._store = ranks_store().clone()
        self._store.set_timeout(timedelta(seconds=_ANSWER_S))
        self._durations_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._began_s: float | None = None
        self._neighbour_s = time.monotonic()
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="watchdog-beat", daemon=True)
        self._beats = 0

    def start(self) -> None:
        self._write()
        self._beating.start()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin_step(self) -> None:
        """Mark the end of the previous step and the start of the next. Call this method at the start of every step."""
        now = time.monotonic()
        if self._began_s is not None:
            self._durations_s.append(now - self._began_s)
        self._began_s = now

    @property
    def limit_s(self) -> float:
        usual_s = statistics.median(self._durations_s) if self._durations_s else 0.0
        return max(self._floor_s, self._multiple * usual_s)

    def leave(self) -> None:
        """Stop the watchdog, and record in the store that this rank has left."""
        self._ended.set()
        self._beating.join(_ANSWER_S)  # a later beat would say that this rank is still in training
        with _store_may_fail():
            self._write(left=True)

    def explain(self) -> str | None:
        """Report the rank that broke a connection, and return the message; empty if another rank reports it.

        Return None if all ranks answer, since the connection then broke for another reason.
        """
        finding = self._find()
        if finding.why == "behind":
            return None
        text = self._report_once(finding, "the connection to it broke")
        _in_time(lambda: self._store.set(store_key("gone"), ""))  # ranks that fail later need not report it again
        return text

    def _beat(self) -> None:
        """Write this rank's place to the store, and check that the next rank still writes its place."""
        neighbour, seen = (self._world.rank + 1) % self._world.size, -1
        while not self._ended.wait(self._beat_s):
            with _store_may_fail():
                self._write()
                place = self._read(neighbour)
                if place is not None and (place.beat != seen or place.left):
                    seen, self._neighbour_s = place.beat, time.monotonic()

    def _watch(self) -> None:
        looked_s = time.monotonic()
        while not self._ended.wait(self._beat_s):
            now = time.monotonic()
            stopped_s = max(0.0, now - looked_s - 2 * self._beat_s)  # this process itself did not run
            looked_s = now
            self._neighbour_s += stopped_s
            if self._began_s is not None:
                self._began_s += stopped_s
                limit_s = self.limit_s
                if now - self._began_s > limit_s:
                    self._end(f"a step took more than {limit_s:.3g} s ({self._rule()})")
            if now - self._neighbour_s > self._floor_s:
                self._end(f"there was no answer for {self._floor_s:.3g} s ({self._rule()})")

    def _rule(self) -> str:
        usual = f" of {statistics.median(self._durations_s):.2g} s" if self._durations_s else ""
        return (
            f"run.watchdog: {self._multiple:g} times the usual step{usual}, {self._floor_s / 60:.3g} minutes at least"
        )

    def _end(self, why: str) -> None:
        """Report and end the process without unwinding, since the main thread waits forever."""
        try:
            text = self._report_once(self._find(), why)
            if text:
                sys.stderr.write(f"error: {text}\n")
                sys.stderr.flush()
            else:
                time.sleep(
                    self._beat_s
                )  # the first exit makes the launcher stop all: let the reporting rank exit first
        finally:
            os._exit(EXIT_CODE)

    def _report_once(self, finding: Finding, why: str) -> str:
        """Report the finding and return the message; return an empty message if another rank reports it."""
        first = _in_time(lambda: bool(self._store.add(store_key("stuck"), 1) == 1))
        return "" if first is False else self._report(finding, f"{finding.words}; {why}")

    def _find(self) -> Finding:
        def look() -> Finding:
            before = self._places()
            time.sleep(3 * self._beat_s)
            return blame(before, self._places(), self._world.rank)

        return _in_time(look) or Finding("store lost", [], {})

    def _places(self) -> dict[int, Place | None]:
        return {rank: self._read(rank) for rank in range(self._world.size)}

    def _read(self, rank: int) -> Place | None:
        key = store_key("stands", str(rank))
        return Place(**json.loads(self._store.get(key))) if self._store.check([key]) else None

    def _write(self, left: bool = False) -> None:
        self._beats += 1
        now, stack = activity.here, [] if left else activity.stack()
        place = Place(self._beats, now.phase, now.step, now.passed, stack, left, activity.writer.passed)
        self._store.set(store_key("stands", str(self._world.rank)), json.dumps(vars(place)))


def _in_time(ask: Callable[[], Any]) -> Any:
    """Return the answer of the store, or None after a timeout, since a store on a dead machine may never answer."""
    answers: list[Any] = []

    def put() -> None:
        with _store_may_fail():
            answers.append(ask())

    thread = threading.Thread(target=put, name="watchdog-ask", daemon=True)
    thread.start()
    thread.join(2 * _ANSWER_S)
    return answers[0] if answers else None


@contextmanager
def _store_may_fail() -> Iterator[None]:
    """Ignore connection errors of the store. A lost store is detected because the next rank's beats stop."""
    try:
        yield
    except RuntimeError as error:
        if not is_connection_error(error):
            raise


@contextmanager
def watch_ranks(world: World, settings: Limits, report: Report = say_again) -> Iterator[Callable[[], None]]:
    """Monitor the ranks of a command; yield a function to call at the start of each step.

    If the function is never called, steps have no time limit, and only an unresponsive rank ends the others. A single
    process is not monitored.
    """
    if world.size == 1 or settings.floor_minutes is None:
        yield lambda: None
        return
    watchdog = Watchdog(world, settings, report)
    watchdog.start()
    try:
        yield watchdog.begin_step
    except Exception as error:
        if is_connection_error(error) and not someone_is_gone():
            text = watchdog.explain()
            if text is not None:
                raise (UserError(text) if text else SystemExit(EXIT_CODE)) from error
        raise
    finally:
        watchdog.leave()
