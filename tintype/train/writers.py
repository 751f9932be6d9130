"""Optional mirrors of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tintype.errors import UserError

Write = Callable[[dict[str, Any]], None]


@contextmanager
def open_writer(folder: Path, tensorboard: bool) -> Iterator[Write]:
    if not tensorboard:
        yield lambda line: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("run.tensorboard needs the extra: pip install 'tintype[tensorboard]'") from None
    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def write(line: dict[str, Any]) -> None:
            for name, value in line.items():
                if isinstance(value, int | float) and name != "step":
                    writer.add_scalar(name, value, line["step"])

        yield write
