"""Trackers, which mirror `metrics.jsonl` elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tintype.errors import UserError
from tintype.seams import Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Tracker):
    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def log(self, step: int, line: Mapping[str, object]) -> None:
        for name, value in line.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(name, value, step)


@contextmanager
def open_tracker(folder: Path, tensorboard: bool) -> Iterator[Tracker | None]:
    """Open the tracker that the settings ask for, if any."""
    if not tensorboard:
        yield None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("run.tensorboard needs the extra: pip install 'tintype[tensorboard]'") from None
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        yield TensorBoard(writer)
