"""Clock and power of the GPU while something is timed: at its limit of power it lowers its clock."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from statistics import median
from types import TracebackType

import torch

from tintype.runtime.files import Json

_PROGRAM = "nvidia-smi"
_OPTIONS = ("--query-gpu=timestamp,clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "50")
_TIME = "%Y/%m/%d %H:%M:%S.%f"


class Gauge:
    """Clock and power of a GPU, read every 50 ms from `start` to the end of the block; none without nvidia-smi."""

    def __init__(self, device: torch.device) -> None:
        self.figures: dict[str, Json] = {}
        self._device, self._open = device, ExitStack()

    def __enter__(self) -> Gauge:
        self._output = self._open.enter_context(tempfile.TemporaryFile("w+"))  # a pipe would fill up
        if self._device.type == "cuda" and shutil.which(_PROGRAM):
            command = [_PROGRAM, "-i", uuid(self._device), *_OPTIONS]
            process = self._open.enter_context(subprocess.Popen(command, stdout=self._output))
            self._open.callback(process.terminate)
        self.start()
        return self

    def start(self) -> None:
        """Drop earlier readings, such as those of warm-up steps."""
        self._began = datetime.now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._output.seek(0)
        self.figures = figures(self._output.read().splitlines(), self._began)
        self._open.close()


def uuid(device: torch.device) -> str:
    """Return the name by which nvidia-smi knows the device, whatever CUDA_VISIBLE_DEVICES says."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def figures(lines: Sequence[str], began: datetime) -> dict[str, Json]:
    """Return the medians of what nvidia-smi has printed since `began`; lines that are no readings do not count."""
    clocks, powers = list[float](), list[float]()
    for line in lines:
        try:
            time, clock, power = line.split(", ")
            reading = float(clock), float(power)
            late = datetime.strptime(time, _TIME) >= began
        except ValueError:  # an error in words, or [N/A]
            continue
        if late:
            clocks.append(reading[0])
            powers.append(reading[1])
    return {"clock, MHz": median(clocks), "power, W": median(powers)} if clocks else {}
