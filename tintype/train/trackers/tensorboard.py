"""The TensorBoard tracker writes event files in the folder of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tintype.data.image_file import open_image, read_file
from tintype.seams import Tracker, TrackerStatus, VerdictRow
from tintype.train.trackers.tracked import Tracked


class TensorBoard(Tracker):
    def __init__(self, about: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(about.folder / "tensorboard"))
        if about.is_new:
            self._writer.add_text("plan", "\n".join(f"    {line}" for line in about.text.splitlines()))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_images(self, step: int, files: Mapping[str, Path]) -> None:
        for name, file in files.items():
            with open_image(read_file(file), file.name) as image:
                self._writer.add_image(name, np.asarray(image.convert("RGB")), step, dataformats="HWC")
        self._writer.flush()

    def log_verdicts(self, rows: Sequence[VerdictRow]) -> None:
        keys = list(rows[0])
        table = [keys, ["---"] * len(keys), *([str(row[key]) for key in keys] for row in rows)]
        self._writer.add_text("verdicts", "\n".join(f"| {' | '.join(cells)} |" for cells in table))
        self._writer.flush()

    def close(self, status: TrackerStatus) -> None:
        self._writer.close()
