"""Update the content of each page in a thread while a browser shows the page.

All browsers that show the same page share one thread, so the cost does not grow with the number of viewers. The thread
only reads files. The thread writes no files into the served folder.
"""

from __future__ import annotations

import gc
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase

from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.results import read_per_image, result_file
from tintype.plan import Plan
from tintype.serve.curves import Curves, RunPlace, StoredCurves
from tintype.serve.find import is_stored
from tintype.serve.fragments import (
    Fragments,
    compare_fragments,
    picked_fragments,
    run_fragments,
    stored_fragments,
    study_fragments,
)
from tintype.serve.links import Links
from tintype.study.compare import collect
from tintype.study.picked import FOLDER as PICKED
from tintype.study.report.images import images_of
from tintype.study.results import Run, StudyResults, read_results_file
from tintype.study.runs import read_run
from tintype.study.side_by_side import ComparedRun, side_by_side
from tintype.study.status import LEFT, StatusReader, StudyStatus, stamps
from tintype.study.study import Study
from tintype.train.record import RunRecord

EVERY_S = 1.0
"""Seconds between two reads of the files."""
REST = 10.0
"""Pause after a comparison of all runs, as a multiple of the duration of the comparison."""
_SHORT_S = 0.02
"""Pause in seconds between two reads while more data is left to read; requests are answered in this pause."""
_IDLE_S = 20.0
"""Seconds without a request after which reading stops."""

UNREADABLE = (UserError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that can occur on reading files that tintype did not write."""


class Live(ABC):
    """The state of one page, and the thread that updates it."""

    def __init__(self, folder: Path, path: str, links: Links | None = None) -> None:
        self.folder, self.path = folder, path
        self._links = links
        self._has_more = False
        """Whether data is left to read after the last read."""
        self.curves = Curves([])
        self.fragments: Fragments = {}
        self.problem = ""
        self.is_over = False
        """Whether all runs of the study have ended."""
        self.version = 0
        self.colours: dict[str, str] = {}
        """CSS class of the colour of each arm, by the arm's label."""
        self.plans: dict[str, Plan] = {}
        """One plan of each arm, by the arm's label."""
        self.changed = threading.Condition()
        self._asked_s = 0.0
        self._waiting = 0
        self._reading = False
        self._picked_at = -1

    @abstractmethod
    def look(self) -> bool:
        """Read the new content of the files, and return whether more can be read immediately."""

    def ask(self, wait_s: float = 0.0) -> None:
        """Keep the page up to date for the next seconds. Wait at most `wait_s` seconds for its first read."""
        with self.changed:
            self._asked_s = time.monotonic()
            if not self._reading:
                self._reading = True
                threading.Thread(target=self._read, name=f"live {self.path}", daemon=True).start()
            if wait_s:
                self.changed.wait_for(lambda: self.version > 0, wait_s)

    def count_flops(self) -> None:
        """At the first request, start to count the operations of all plans; the curves get the counts later."""
        curves = self.curves

        def on_counted(arm: str) -> None:
            curves.counted(arm)
            with self.changed:
                self.version += 1
                self.changed.notify_all()

        for arm in curves.versions.keys() - self.plans:
            curves.flops.missing.setdefault(arm, ["not counted: its plan is not here"])
        curves.flops.ask({arm: plan for arm, plan in self.plans.items() if arm in curves.versions}, on_counted)

    def wait(self, version: int, timeout_s: float) -> int:
        """Wait until the page is newer than `version`, at most `timeout_s` seconds; return the page's version."""
        self.ask()
        with self.changed:
            self._waiting += 1
            try:
                self.changed.wait_for(lambda: self.version != version, timeout_s)
            finally:
                self._waiting -= 1
            return self.version

    def rest(self) -> None:
        """Stop reading until the next request, unless a request is waiting for a new version."""
        with self.changed:
            if not self._waiting:
                self._asked_s = -_IDLE_S

    def _read(self) -> None:
        try:
            while self._keep_reading():
                time.sleep(_SHORT_S if self.step() else EVERY_S)
        except BaseException:
            self._reading = False
            raise

    def _keep_reading(self) -> bool:
        """Return whether a request came recently. Otherwise this thread ends, and the next request starts a new one."""
        with self.changed:
            self._reading = time.monotonic() - self._asked_s < _IDLE_S
            return self._reading

    def step(self) -> bool:
        """Read the files of the page once. If a folder cannot be read, the page shows the error."""
        before = self._state()
        try:
            self._check_links()
            more = self.look()
            self.problem = "; ".join(self.curves.problems.values())
        except UNREADABLE as error:
            more, self.problem = False, f"{error}"
        if self._state() != before or not self.version:
            with self.changed:
                self.version += 1
                self.changed.notify_all()
        if self._has_more and not more:
            gc.collect()  # much memory was allocated; free it now rather than in a later read
        self._has_more = more
        return more

    def _check_links(self) -> None:
        """Raise if a link in the page's folders points outside of the served folder."""
        for folder in self._folders():
            if self._links is not None and not self._links.stay_inside(folder):
                raise UserError(
                    f"{folder} has a link to a place outside the served folder, so this folder is no longer read"
                )

    def _folders(self) -> list[Path]:
        return [self.folder]

    def _look_picked(self) -> None:
        """Update the images that a user picked in the playground, if the images' folder has changed."""
        place = self.folder / PICKED
        stamp = place.stat().st_mtime_ns if place.is_dir() else 0
        if stamp != self._picked_at:
            self._picked_at = stamp
            self.fragments |= picked_fragments(self.path, self.folder)

    def _state(self) -> tuple[object, ...]:
        return dict(self.fragments), self.problem, sum(self.curves.versions.values())


class LiveStudy(Live):
    """The page of a study, running or finished. If the runs were deleted, the page shows the stored results."""

    def __init__(self, folder: Path, path: str, links: Links | None = None) -> None:
        super().__init__(folder, path, links)
        self._reader = StatusReader(folder)
        self._stored_at = 0
        """Modification time of the results of a study whose runs were deleted."""
        self.kept: Mapping[str, bytes] = {}
        """Images in the report of a study whose runs were deleted, by the images' original paths."""
        self._scores: dict[str, Run] = {}
        self._images: dict[str, dict[str, list[float]]] = {}
        """Values of single images for each metric, by the run's hash."""
        self._damaged: dict[str, str] = {}
        """The error for each run with unreadable scores, by the run's hash."""
        self._study: Study | None = None
        self._ended: tuple[tuple[str, str], ...] | None = None
        self._results: StudyResults | None = None
        self._compared = ""
        self._comparing: threading.Thread | None = None
        self._events_shown = -1
        self._rested_s = 0.0

    def look(self) -> bool:
        """Read the queue, then the logs, then the verdicts, since the queue is the fastest to read."""
        self._look_picked()
        if is_stored(self.folder):
            return self._look_stored()
        status = self._reader.read()
        if self._reader.study is not self._study:
            self._begin(self._reader.study, status)
        self.is_over = status.is_over
        first = "queue" not in self.fragments
        self.fragments |= study_fragments(self.path, self.colours, status=status, folder=self.folder)
        if first:
            return True  # the queue is shown at once
        is_read = self.curves.read()
        if self.curves.events_version != self._events_shown:
            self._events_shown = self.curves.events_version
            self.fragments |= study_fragments(self.path, self.colours, curves=self.curves)
        ended = tuple((run.hash, run.state) for run in status.runs if run.state not in (*LEFT, "perhaps"))
        is_due = time.monotonic() > self._rested_s and not (self._comparing and self._comparing.is_alive())
        if ended != self._ended and (is_read or self._ended is None) and is_due:
            self._ended, study = ended, self._reader.study
            self._comparing = threading.Thread(target=self._compare, args=(study, status), name="compare", daemon=True)
            self._comparing.start()
        return not is_read

    def settle(self) -> None:
        """Wait until the current comparison of runs has finished."""
        if self._comparing is not None:
            self._comparing.join()

    def _begin(self, study: Study, status: StudyStatus) -> None:
        self._study = study
        self.colours = _colours([(arm.label, arm.name, arm.role) for arm in study.arms])
        steps = {run.hash: run.steps for run in status.runs}
        self.curves = Curves(
            [
                RunPlace(run.arm, run.seed, run.hash, self.folder / "runs" / run.hash, steps[run.hash])
                for run in status.runs
            ]
        )
        self.plans = {arm.label: arm.plans[0] for arm in study.arms}
        for run in status.runs:
            self.colours.setdefault(run.arm, "arm-control")
        self._ended = None

    def _compare(self, study: Study, status: StudyStatus) -> None:
        """Compare the finished runs. Rows remain incomplete until all runs of an interim analysis have finished.

        The comparison pauses after itself, and has its own thread, so that it does not delay the reading of files.
        """
        began_s = time.monotonic()
        names = {(run.arm, run.seed): run.hash for run in status.runs}
        states = {run.hash: run.state for run in status.runs}
        try:
            runs = {
                arm.label: [self._run(study, arm.label, index, names, states) for index in range(len(arm.plans))]
                for arm in study.arms
            }
            self._results = collect(study, self.folder, runs, self._images)
            self._compared = "; ".join(self._damaged.values())
        except UNREADABLE as error:
            self._compared = str(error)
        self.fragments |= study_fragments(
            self.path, self.colours, results=self._results, folder=self.folder, study=study, refused=self._compared
        )
        self._rested_s = time.monotonic() + REST * (time.monotonic() - began_s)
        with self.changed:
            self.version += 1
            self.changed.notify_all()

    def _run(
        self, study: Study, label: str, index: int, names: Mapping[tuple[str, int], str], states: Mapping[str, str]
    ) -> Run:
        """Read the scores of a run that has ended. A run that has not ended counts as missing."""
        plan = next(arm for arm in study.arms if arm.label == label).plans[index]
        name = names.get((label, plan.seed)) or plan.hash
        if name not in self._scores or self._scores[name].state != states.get(name):
            missing = Run(seed=plan.seed, hash=name, folder=f"runs/{name}", state="missing")
            try:
                ended = states.get(name) in ("done", "diverged", "failed")
                found = read_run(plan, study.settings.evaluation, self.folder, logs=False) if ended else missing
                file = result_file(self.folder / "runs" / name, study.settings.evaluation, plan.train.steps)
                images = read_per_image(file) if found.state == "done" else {}
                self._damaged.pop(name, None)
            except DamagedFileError as error:
                found, images, self._damaged[name] = missing, {}, str(error)
            if found.state == "missing":
                return found
            self._scores[name], self._images[name] = found, images
        return self._scores[name]

    def _look_stored(self) -> bool:
        self.is_over = True
        stamp = (self.folder / "results.json").stat().st_mtime_ns
        if stamp != self._stored_at:
            results, self._stored_at = read_results_file(self.folder / "results.json"), stamp
            self.colours = _colours([(arm.label, arm.name, arm.role) for arm in results.arms])
            places = {
                RunPlace(arm.label, run.seed, run.hash, self.folder / run.folder, 1): run
                for arm in results.arms
                for run in arm.runs
            }
            self.curves = StoredCurves(places)
            for arm in self.curves.versions:
                self.curves.versions[arm] += 1
            page = self.folder / "report.html"
            self.kept = images_of(page.read_text(encoding="utf-8"), results) if page.is_file() else {}
            self.fragments |= stored_fragments(
                self.path, self.colours, results=results, folder=self.folder, curves=self.curves, kept=self.kept
            )
        return False


class LiveRun(Live):
    def look(self) -> bool:
        """Read the plan at the first call, and new lines of the logs at every call."""
        if not self.curves.runs:
            plan = RunRecord(self.folder).plan
            label = f"seed {plan.seed}"
            self.colours = {label: "arm-0"}
            self.curves = Curves([RunPlace(label, plan.seed, plan.hash, self.folder, plan.train.steps)])
            self.plans, self.plan = {label: plan}, plan
        self._look_picked()
        is_read = self.curves.read()
        self.fragments |= run_fragments(self.path, self.folder, self.plan, self.curves)
        return not is_read


class LiveCompare(Live):
    """The page that compares runs of any studies or folders, like `tintype compare`, and shows their curves."""

    def __init__(self, runs: Sequence[tuple[str, str, Path]], links: Links | None = None) -> None:
        """Show these runs, each given as (path in the served folder, displayed name, folder)."""
        super().__init__(runs[0][2], runs[0][0], links)
        self.runs = [
            (path, f"{ascii_uppercase[index]}: {words}", folder) for index, (path, words, folder) in enumerate(runs)
        ]
        self._seen: tuple[object, ...] = ()
        """Modification stamps of the files that change when a run trains further or is scored."""
        self._rested_s = 0.0
        self._events_shown = -1

    def look(self) -> bool:
        """Read the plans once, new lines of the logs at every call, and all compared files at intervals."""
        if not self.curves.runs:
            self.plans = {label: RunRecord(folder).plan for _, label, folder in self.runs}
            self.colours = {label: f"arm-{index % 8}" for index, label in enumerate(self.plans)}
            self.curves = Curves(
                [
                    RunPlace(label, self.plans[label].seed, label, folder, self.plans[label].train.steps)
                    for _, label, folder in self.runs
                ]
            )
        is_read = self.curves.read()
        if self.curves.events_version != self._events_shown:
            self._events_shown = self.curves.events_version
            self.fragments |= study_fragments(self.path, self.colours, curves=self.curves)
        self._compare()
        return not is_read

    def _folders(self) -> list[Path]:
        return [folder for _, _, folder in self.runs]

    def _compare(self) -> None:
        runs = [ComparedRun(folder, name=label) for _, label, folder in self.runs]
        seen = tuple((*stamps([run.metrics_file]), *run.result_files) for run in runs)
        if seen == self._seen or time.monotonic() < self._rested_s:
            return
        began_s, self._seen = time.monotonic(), seen
        found = side_by_side(runs)
        self.fragments |= compare_fragments(found, [path for path, _, _ in self.runs], self.colours)
        self._rested_s = time.monotonic() + REST * (time.monotonic() - began_s)


def _colours(arms: list[tuple[str, str, str]]) -> dict[str, str]:
    """Return each arm's CSS class, as in reports, by label; `arms` are triples (label, name, role)."""
    named = list(dict.fromkeys(name for _, name, role in arms if role == "arm"))
    return {label: f"arm-{named.index(name) % 8}" if role == "arm" else f"arm-{role}" for label, name, role in arms}
