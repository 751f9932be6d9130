"""A run or a study under its name in a tracker, and the data that the tracker has already received."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintype.errors import DamagedFileError
from tintype.runtime import files
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.notes import note

FOLDER = "trackers"
"""Subfolder of a run or a study for the state of trackers and their local files."""


@dataclass(frozen=True)
class Tracked:
    id: str
    """Identity that does not change when the run resumes."""
    name: str
    group: str
    project: str
    folder: Path
    settings: Mapping[str, Any]
    text: str
    is_new: bool
    """Whether the tracker has received no data yet."""

    @property
    def place(self) -> Path:
        return self.folder / FOLDER


class TrackerState:
    """The data of a run that a tracker has received: the tracker's id for the run, the last step, and named records.

    A line is recorded before it is sent. If a process is killed between the two, the tracker misses this line, but
    never gets a line twice. A tracker that buffers its writes also loses its buffered lines.
    """

    def __init__(self, folder: Path, tracker: str, name: str, group: str, fence: Fence = OPEN) -> None:
        self._file, self._fence = folder / FOLDER / f"{tracker}.json", fence
        found = self._read()
        self.is_new = not found
        self.id: str = found.get("id", uuid.uuid4().hex[:16])
        self.name: str = found.get("name", name)
        self.group: str = found.get("group", group)
        self.step: int = found.get("step", 0)
        self.records: list[str] = found.get("records", [])

    def _read(self) -> dict[str, Any]:
        try:
            return files.read_checked(self._file, "the tracker begins a new run")
        except DamagedFileError as error:
            files.set_aside(self._file)
            note(f"{error.marked}; the tracker starts a new run")
            return {}

    def has(self, key: int | str) -> bool:
        return key <= self.step if isinstance(key, int) else key in self.records

    def note(self, key: int | str) -> None:
        """Record that a step or a named record is about to be sent."""
        self._keep(*((key, self.records) if isinstance(key, int) else (self.step, [*self.records, key])))

    def _keep(self, step: int, records: list[str]) -> None:
        self.step, self.records = step, records
        self._file.parent.mkdir(exist_ok=True)
        content = {"id": self.id, "name": self.name, "group": self.group, "step": step, "records": records}
        files.write_checked(self._file, content, fence=self._fence)

    def undo(self, before: tuple[int, list[str]]) -> None:
        """Restore the state from before a failed send, so that the next process tries again."""
        self._keep(*before)
