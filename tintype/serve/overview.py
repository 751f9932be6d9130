"""The start page lists each study with its progress, verdicts, last change, and one image."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.results import result_file
from tintype.serve.find import FoundRun, FoundStudy, find, is_stored
from tintype.serve.fragments import page
from tintype.serve.images import image_at
from tintype.serve.links import Links
from tintype.serve.live import REST, UNREADABLE, Live
from tintype.study.numbers import FOUND, baseline_of, ranked_arms
from tintype.study.report.images import images_of
from tintype.study.results import StudyResults, read_results_file
from tintype.study.status import StatusReader, StudyStatus, stamps

_MOST_NAMES = 4
"""Largest number of arms that are named for each verdict of a study."""
_BUDGET_S = 0.1
"""Time budget in seconds for reading studies in one update. The next update continues with the remaining studies."""


class Overview:
    """One study on the start page. The files of the study are read again when they have changed."""

    def __init__(self, folder: Path, found: FoundStudy) -> None:
        self.folder, self.found = folder, found
        self.is_read = False
        self.problem = ""
        self.status: StudyStatus | None = None
        """The progress of the study; None if its runs were deleted."""
        self.results: StudyResults | None = None
        self.image, self.image_words = "", ""
        self.kept: Mapping[str, bytes] = {}
        """The image of the study by its path, if it is only in the study's report."""
        self._reader = StatusReader(folder)
        self._results_at: tuple[int, ...] = ()
        self._done = 0

    def read(self) -> None:
        try:
            self.status = None if is_stored(self.folder) else self._reader.read()
            self._read_results()
            if self.status is not None and not self.image and len(self.status.of("done")) != self._done:
                self._done = len(self.status.of("done"))
                self._show_first_image(self.status)
            self.problem = ""
        except UNREADABLE as error:
            self.problem = str(error)
        self.is_read = True

    def _read_results(self) -> None:
        """Read the verdicts of the last report. If the report's file is damaged, show only the progress of the runs."""
        stamp = stamps([self.folder / "results.json"])
        if stamp == self._results_at:
            return
        self._results_at, self.results = stamp, None
        if not any(stamp):
            return
        try:
            self.results = read_results_file(self.folder / "results.json")
        except DamagedFileError:
            if self.status is None:
                raise
            return
        self._show_best_image(self.results)

    def _show_best_image(self, results: StudyResults) -> None:
        first = results.by_resolution()[0]
        sampled = [(arm, run) for arm in [*ranked_arms(first), baseline_of(first)] if (run := arm.sampled_run)]
        if not sampled:
            return
        arm, run = sampled[0]
        name, report = run.previews[0], self.folder / "report.html"
        if not (self.folder / name).is_file() and report.is_file():
            images = images_of(report.read_text(encoding="utf-8"), results)
            self.kept = {name: images[name]} if name in images else {}
        self.image = image_at(self.found.path, name, self.folder, self.kept)
        self.image_words = ": ".join([arm.label, *first.resolution.prompts[:1]])

    def _show_first_image(self, status: StudyStatus) -> None:
        """For a study without a report, choose an image of the first scored run."""
        for run in status.of("done"):
            name = f"runs/{run.hash}"
            protocol = self._reader.study.settings.evaluation
            file = result_file(self.folder / name, protocol, run.steps).with_name("preview-0.png")
            if file.is_file():
                self.image = image_at(self.found.path, str(file.relative_to(self.folder)), self.folder, {})
                self.image_words = f"{run.arm}, seed {run.seed}"
                return

    @property
    def done(self) -> int:
        if self.status is not None:
            return len(self.status.of("done"))
        return sum(run.state == "done" for arm in self.results.arms for run in arm.runs) if self.results else 0

    @property
    def total(self) -> int:
        if self.status is not None:
            return len(self.status.runs) - len(self.status.of("perhaps"))
        return sum(len(arm.runs) for arm in self.results.arms) if self.results else 0

    @property
    def is_over(self) -> bool:
        return self.status is None or self.status.is_over

    @property
    def verdicts(self) -> list[tuple[str, list[str]]]:
        """Return (verdict, arms with this verdict), with decided verdicts first and undecided arms last.

        The text names the metrics if only some primary metrics have the verdict.
        """
        rows = [row for row in self.results.rows(primary=True) if row.kind == "arm"] if self.results else []
        metrics = {row.metric.name for row in rows}
        decided = {row.label for row in rows if row.verdict in FOUND}
        found: dict[str, dict[str, list[str]]] = {}
        for row in sorted(rows, key=lambda row: (row.verdict not in FOUND, row.verdict)):
            if row.verdict in FOUND or row.label not in decided:
                found.setdefault(row.verdict, {}).setdefault(row.label, []).append(row.metric.label)
        return [
            (verdict, [arm if len(of) == len(metrics) else f"{arm} ({', '.join(of)})" for arm, of in arms.items()])
            for verdict, arms in found.items()
        ]

    @property
    def activity(self) -> str:
        """Return the time since the last change of the study as text; empty if it is unknown."""
        if self.status is not None:
            changed_s = max(self._reader.changed_s, *(stamp / 1e9 for stamp in self._results_at))
            return (
                "active now" if self.status.of("running") else f"active {ago(changed_s)}" if changed_s else "not begun"
            )
        # in a copied study, the files' times are those of the copy
        dates = [command.date for command in self.results.commands] if self.results else []
        return f"last begun on {_date(datetime.fromisoformat(dates[-1]))}" if dates else ""


def ago(then_s: float) -> str:
    """Return how long ago a time was, as text; return the date if it was more than a week ago."""
    passed_s = time.time() - then_s
    for size_s, most, unit in ((60, 60, "min"), (3600, 48, "h"), (86400, 8, "days")):
        if passed_s < most * size_s:
            return f"{passed_s // size_s:.0f} {unit} ago" if passed_s >= size_s else "just now"
    return f"on {_date(datetime.fromtimestamp(then_s).astimezone())}"


def _date(when: datetime) -> str:
    return f"{when.day} {when:%B %Y}"


class LiveIndex(Live):
    """The page at the root URL, which lists the studies and runs in the served folder."""

    def __init__(self, folder: Path, links: Links) -> None:
        super().__init__(folder, "")
        self._inside = links
        self.studies: dict[str, Overview] = {}
        self._runs: list[FoundRun] = []
        self._next = 0
        self._rested_s = 0.0

    def look(self) -> bool:
        """Search for studies and runs at intervals, and read one study after another until the time budget is spent."""
        if time.monotonic() >= self._rested_s:
            self._find()
        began_s, studies = time.monotonic(), list(self.studies.values())
        for _ in studies:
            one = studies[self._next % len(studies)]
            self._next += 1
            if self._inside.stay_inside(one.folder):
                one.read()
            else:
                one.problem = "not shown: a link in it leads out of the served folder"
                one.is_read = True
            if time.monotonic() - began_s > _BUDGET_S:
                break
        shown = page("fragments.html.j2").render(block="index", studies=studies, runs=self._runs, most=_MOST_NAMES)
        self.fragments = {"index": shown}
        return not all(one.is_read for one in studies)

    def _find(self) -> None:
        began_s = time.monotonic()
        found, self._runs = find(self.folder)
        known, self.studies = self.studies, {}
        for one in found:
            before = known.get(one.path)
            try:
                self.studies[one.path] = before or Overview(self.folder / one.path, one)
            except UserError:
                continue  # it was removed since
            self.studies[one.path].found = one
        self._rested_s = time.monotonic() + REST * (time.monotonic() - began_s)
