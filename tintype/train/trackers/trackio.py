"""Trackio uses a local database; TRACKIO_DIR, TRACKIO_SPACE_ID and TRACKIO_SERVER_URL choose another place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tintype.runtime.streams import stdout_to_stderr
from tintype.seams import Tracker, TrackerStatus, VerdictRow
from tintype.train.trackers.tracked import Tracked


class Trackio(Tracker):
    def __init__(self, about: Tracked) -> None:
        import trackio

        self._trackio = trackio
        with stdout_to_stderr():  # it prints advice, and stdout is for results
            self._run = trackio.init(
                project=about.project,
                name=f"{about.name} {about.id[:8]}",  # a run is resumed by its name
                group=about.group or None,
                config=dict(about.settings),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def log_images(self, step: int, files: Mapping[str, Path]) -> None:
        self._run.log({name: self._trackio.Image(str(file)) for name, file in files.items()}, step=step)

    def log_verdicts(self, rows: Sequence[VerdictRow]) -> None:
        keys = list(rows[0])
        data = [[row[key] for key in keys] for row in rows]
        self._run.log({"verdicts": self._trackio.Table(columns=keys, data=data)})

    def close(self, status: TrackerStatus) -> None:
        with stdout_to_stderr():
            self._run.finish()
