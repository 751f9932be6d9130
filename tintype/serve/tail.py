"""Read a run's logs while they grow. Each read takes only the new bytes, and few points are stored.

If a file is long at its first read, one line is read for each point, at equal distances. All later lines are read. The
value of a point is the mean over the lines that the point represents.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tintype.runtime.files import SEAL, check_first_line, finite
from tintype.train.record import curve_numbers

POINTS = 120
"""Minimum number of points of a series once enough values were logged. The maximum is twice as large."""
_WHOLE_BYTES = 192 * 1024
"""If a file or its new part is larger than this size, only some of its lines are read."""
_LONGEST_LINE = 64 * 1024
_REMAKE = "`tintype train` with the run's plan, or its study again, sets it aside"


def _parsed(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; empty if the line cannot be parsed."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}


class Series:
    """Values of a logged number by steps and seconds, downsampled while the log grows."""

    def __init__(self) -> None:
        self.step, self.seconds, self.value, self.weight = (array("d") for _ in range(4))
        self._each = 1.0
        """Number of lines in a full point."""

    def add(self, step: float, seconds: float, value: float, weight: float = 1.0) -> None:
        """Add the value of one line, which represents `weight` lines."""
        self._each = max(self._each, weight)
        if self.weight and self.weight[-1] + weight <= self._each:
            self._merge(len(self.weight) - 1, step, seconds, value, weight)
            return
        for column, number in zip(self.columns, (step, seconds, value, weight), strict=True):
            column.append(number)
        if len(self.step) > 2 * POINTS:
            self._halve()

    @property
    def columns(self) -> tuple[array[float], ...]:
        """Return the steps, seconds and values of the points, and the number of lines that each point represents."""
        return self.step, self.seconds, self.value, self.weight

    def _merge(self, index: int, step: float, seconds: float, value: float, weight: float) -> None:
        """Add a line to a point, whose value is the mean of its lines, with the last line's step and time."""
        whole = self.weight[index] + weight
        self.value[index] += (value - self.value[index]) * weight / whole
        self.step[index], self.seconds[index], self.weight[index] = step, seconds, whole

    def _halve(self) -> None:
        old = list(zip(*self.columns, strict=True))
        for column in self.columns:
            del column[:]
        self._each *= 2
        for point in old:
            self.add(*point)


class MetricsLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        self._forget()

    def _forget(self) -> None:
        self.series: dict[str, Series] = {}
        self.last: dict[str, float] = {}
        """The logged numbers in the newest line, by name."""
        self.seconds = 0.0
        self.has_terms = False
        """Whether any line has a total loss different from the objective's loss, because the plan has more loss terms.
        """
        self._offset, self._file, self._line = 0, 0, 0

    def read(self) -> bool:
        """Read the new lines, and return whether there were any. A replaced file is read again from its beginning.

        Raise if the log belongs to another run.
        """
        try:
            about = self.path.stat()
        except OSError:
            return False
        if about.st_ino != self._file or about.st_size < self._offset:
            self._forget()
            self._file = about.st_ino
        if about.st_size == self._offset:
            return False
        if not self._offset:
            check_first_line(self.path, _REMAKE)
        with suppress(OSError), self.path.open("rb") as file:
            many = about.st_size - self._offset > _WHOLE_BYTES
            for text in self._sampled(file.fileno(), about.st_size) if many else self._new(file.fileno()):
                self._add(text)
        self.version += 1
        return True

    def _new(self, file: int) -> Iterator[bytes]:
        """Yield the complete lines after the offset. An incomplete last line is left for a later call."""
        content = os.pread(file, _WHOLE_BYTES + _LONGEST_LINE, self._offset)
        whole = content.rfind(b"\n") + 1
        self._offset += whole
        yield from content[:whole].splitlines()

    def _sampled(self, file: int, size: int) -> Iterator[bytes]:
        """Yield lines at equal distances, then the last lines of the file."""
        first, room = self._offset, size - self._offset
        width = min(_LONGEST_LINE, max(4096, 4 * (self._line_bytes or 1024)))
        for index in range(POINTS):
            content = os.pread(file, width, first + index * room // POINTS)
            begin = content.find(b"\n") + 1 if index or first else 0
            end = content.find(b"\n", begin)
            if end > begin:
                self._line_bytes = end - begin
                yield content[begin:end]
        content = os.pread(file, _LONGEST_LINE, max(first, size - _LONGEST_LINE))
        whole = content.rstrip(b"\n").rfind(b"\n") + 1
        end = content.rfind(b"\n") + 1
        self._offset = max(first, size - _LONGEST_LINE) + end
        if end > whole:
            yield content[whole:end]

    _line_bytes = 0

    def _add(self, text: bytes) -> None:
        line = {"line": self._line + 1, "seconds": 0.0} | _parsed(text)
        numbers = {name: number for name, value in line.items() if (number := finite(value)) is not None}
        if not {"step", "line", "seconds"} <= numbers.keys():
            return  # an incomplete line; training repairs the file
        number = int(numbers["line"])
        weight = max(1, number - self._line)
        if self._line and number <= self._line:
            return
        self.seconds += numbers["seconds"] * weight
        self._line, self.last = number, numbers
        self.has_terms |= numbers.get("loss") != numbers.get("flow")
        for name, value in curve_numbers(numbers).items():
            self.series.setdefault(name, Series()).add(numbers["step"], self.seconds, value, weight)


class EventsLog:
    """The newest lines of one `events.jsonl`."""

    MOST = 200

    def __init__(self, path: Path) -> None:
        self.path, self.events, self._offset, self._file = path, list[dict[str, Any]](), 0, 0

    def read(self) -> bool:
        """Read the new lines, and return whether there were new lines. Raise if the log belongs to another run."""
        try:
            about = self.path.stat()
        except OSError:
            return False
        if about.st_ino != self._file or about.st_size < self._offset:
            self.events, self._offset, self._file = [], 0, about.st_ino
        if about.st_size == self._offset:
            return False
        if not self._offset:
            check_first_line(self.path, _REMAKE)
        with suppress(OSError), self.path.open("rb") as file:
            self._offset = max(self._offset, about.st_size - 8 * _WHOLE_BYTES)
            content = os.pread(file.fileno(), about.st_size - self._offset, self._offset)
            whole = content.rfind(b"\n") + 1
            self._offset += whole
            for text in content[:whole].splitlines():
                line = _parsed(text)
                line.pop(SEAL, None)
                self.events += [line] if "event" in line else []
        del self.events[: -self.MOST]
        return True
