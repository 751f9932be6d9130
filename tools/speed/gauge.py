"""Clock and power of the GPU while something is timed: at its limit of power it lowers its clock."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime
from statistics import median
from types import TracebackType

from tintype.runtime.files import Json

_COMMAND = ["nvidia-smi", "--query-gpu=timestamp,clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "50"]
_TIME = "%Y/%m/%d %H:%M:%S.%f"


class Gauge:
    """Reads the first GPU every 50 ms, from `start` to the end of the block; nothing where there is no nvidia-smi."""

    def __init__(self) -> None:
        self.figures: dict[str, Json] = {}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Gauge:
        if shutil.which(_COMMAND[0]):
            self._process = subprocess.Popen(_COMMAND, stdout=subprocess.PIPE, text=True)
        self.start()
        return self

    def start(self) -> None:
        """Forget what was read before, as of steps that warm up."""
        self._began = datetime.now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        self.figures = figures(self._process.communicate()[0].splitlines(), self._began)


def figures(lines: list[str], began: datetime) -> dict[str, Json]:
    """Return the medians of what nvidia-smi printed of the first GPU since then."""
    rows = [line.split(", ") for line in lines]
    found = [(float(clock), float(power)) for time, clock, power in rows if datetime.strptime(time, _TIME) >= began]
    if not found:
        return {}
    clocks, powers = zip(*found, strict=True)
    return {"clock, MHz": median(clocks), "power, W": median(powers)}
