"""Mirror runs and studies to trackers in the background. A tracker never stops a run or changes its numbers.

Each tracker has its own thread, so training does not wait for a network. At the first error, the tracker is disabled
for this process, and an event and a note are logged. The next process that works on the run sends the remaining lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from tintype.errors import UserError
from tintype.plan import Plan, settings_by_key
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.notes import note
from tintype.seams import Tracker, TrackerStatus, VerdictRow
from tintype.settings import TrackerName
from tintype.train.folder import RunFolder
from tintype.train.trackers import TRACKERS, check_trackers
from tintype.train.trackers.tracked import Tracked, TrackerState

CLOSE_S = 60.0
"""Maximum time that the end of a run waits for a tracker, in seconds."""
Action = Callable[[Tracker], None]
OnFailure = Callable[[str, str], None]


class Feed:
    """The queue and the thread of one tracker, which opens when data is sent for the first time."""

    def __init__(self, name: TrackerName, state: TrackerState, about: Tracked) -> None:
        self.name, self.failure = name, ""
        self._state, self._about = state, about
        self._queue: SimpleQueue[tuple[int | str, Action] | TrackerStatus] = SimpleQueue()
        self._thread: Thread | None = None

    def send(self, key: int | str, action: Action) -> None:
        """Send a step or a named record, unless the tracker already has it."""
        if self.failure or self._state.has(key):
            return
        if self._thread is None:
            self._thread = Thread(target=self._work, name=f"tracker {self.name}", daemon=True)
            self._thread.start()
        self._queue.put((key, action))

    def close(self, status: TrackerStatus) -> None:
        if self._thread is None:
            return
        self._queue.put(status)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self.failure = f"it did not end within {CLOSE_S:g} s"

    def _work(self) -> None:
        try:
            tracker = TRACKERS[self.name].open(self._about)
            while not isinstance(item := self._queue.get(), str):
                self._send(tracker, *item)
            tracker.close(item)
        except Exception as error:  # any tracker's error is only reported, and the run continues
            self.failure = " ".join(f"{type(error).__name__}: {error}".split())

    def _send(self, tracker: Tracker, key: int | str, action: Action) -> None:
        if self._state.has(key):
            return
        before = self._state.step, self._state.records
        self._state.note(key)
        try:
            action(tracker)
        except BaseException:
            self._state.undo(before)
            raise


class Mirror:
    """All trackers of a run or a study. Without trackers, the object does nothing."""

    def __init__(self, feeds: Sequence[Feed], on_failure: OnFailure) -> None:
        self._feeds, self._on_failure = list(feeds), on_failure

    def __bool__(self) -> bool:
        return bool(self._feeds)

    def log(self, step: int, line: Mapping[str, Any]) -> None:
        numbers = numbers_in(line)
        self._send(step, lambda tracker: tracker.log(step, numbers))

    def log_scores(self, name: str, step: int, numbers: Mapping[str, float], images: Mapping[str, Path]) -> None:
        """Log numbers and images of a step under a name, only once."""

        def send(tracker: Tracker) -> None:
            tracker.log(step, numbers)
            if images:
                tracker.log_images(step, images)

        self._send(name, send)

    def log_verdicts(self, name: str, rows: Sequence[VerdictRow]) -> None:
        """Log a table of verdicts under a name, only once."""
        if rows:
            self._send(name, lambda tracker: tracker.log_verdicts(rows))

    def close(self, status: TrackerStatus) -> None:
        for feed in self._feeds:
            feed.close(status)
        self._report()

    def _send(self, key: int | str, action: Action) -> None:
        for feed in self._feeds:
            feed.send(key, action)
        self._report()

    def _report(self) -> None:
        failed = [feed for feed in self._feeds if feed.failure]
        self._feeds = [feed for feed in self._feeds if not feed.failure]
        for feed in failed:
            note(f"the tracker {feed.name} failed ({feed.failure}) and is switched off; the run is not affected")
            self._on_failure(feed.name, feed.failure)


class RunMirror:
    """Mirror the log of a run during training, starting after the last line that the trackers have."""

    def __init__(self, folder: RunFolder, mirror: Mirror) -> None:
        self._folder, self._mirror, self._is_caught_up, self.step = folder, mirror, False, 0

    def log(self, line: Mapping[str, Any]) -> None:
        """Log a line of `metrics.jsonl`. The first call also logs all earlier lines."""
        self.step = line["step"]
        if self._is_caught_up:
            self._mirror.log(self.step, line)
        else:
            self.catch_up()

    def catch_up(self) -> None:
        if self._mirror and not self._is_caught_up:
            self._is_caught_up = True
            for line in self._folder.record.lines:
                self.step = line["step"]
                self._mirror.log(self.step, line)


@contextmanager
def mirror_run(folder: RunFolder, plan: Plan) -> Iterator[None]:
    """Mirror a run to its trackers during training. Raise UserError if a package is missing."""
    with folder.world.fail_together():
        if folder.writes:
            check_trackers(plan.run)

    def on_failure(tracker: str, reason: str) -> None:
        folder.log_event("tracker-failed", run.step, tracker=tracker, reason=reason)

    mirror = Mirror((), on_failure)
    if folder.writes:
        mirror = _mirror(plan, folder.path, folder.label, "", on_failure, folder.fence)
    run = RunMirror(folder, mirror)
    folder.on_line = run.log
    try:
        yield
        run.catch_up()
    except BaseException:
        mirror.close("failed")
        raise
    mirror.close("finished" if run.step >= plan.train.steps else "stopped")


@contextmanager
def mirror_more(
    plan: Plan,
    path: Path,
    label: str = "",
    group: str = "",
    on_failure: OnFailure = lambda tracker, reason: None,
    fence: Fence = OPEN,
) -> Iterator[Mirror]:
    """Mirror results after training. A missing package only logs a note, since the work is done."""
    try:
        check_trackers(plan.run)
    except UserError as error:
        note(error.marked)
        yield Mirror((), on_failure)
        return
    mirror = _mirror(plan, path, label, group, on_failure, fence)
    try:
        yield mirror
    finally:
        mirror.close("finished")


def _mirror(plan: Plan, path: Path, label: str, group: str, on_failure: OnFailure, fence: Fence) -> Mirror:
    """Return the trackers of a plan for a folder. In a study, the group of a run is the study's folder."""
    place = path.resolve()
    if not group and place.parent.name == "runs":
        group = place.parent.parent.name
    feeds = []
    for tracker in dict.fromkeys(plan.run.trackers):
        state = TrackerState(path, tracker, label or place.name, group, fence)
        about = Tracked(
            id=state.id,
            name=state.name,
            group=state.group,
            project=plan.run.tracker_project,
            folder=path,
            settings=settings_by_key(plan),
            text=plan.to_yaml(),
            is_new=state.is_new,
        )
        feeds.append(Feed(tracker, state, about))
    return Mirror(feeds, on_failure)


def numbers_in(line: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return all numbers of a log line except the step. Nested numbers have names such as `parts/forward`."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            found |= numbers_in(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and (prefix or name != "step"):
            found[f"{prefix}{name}"] = value
    return found
