"""Progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


def bars_on(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )


def speed_note(loss: float | None, images_per_s: float | None) -> str:
    if loss is None or images_per_s is None:
        return ""
    return f" · loss {loss:.4f} · {images_per_s:.0f} images/s"


@contextmanager
def sampling_progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    with bars_on(console) as bars:
        bar = bars.add_task("sampling and scoring", total=None, note="")
        yield lambda done, total: bars.update(bar, completed=done, total=total)


@contextmanager
def image_progress(console: Console) -> Iterator[Callable[[int], None]]:
    with bars_on(console) as bars:
        bar = bars.add_task("reading pictures", total=None, note="")
        yield lambda images: bars.advance(bar, images)


@contextmanager
def step_progress(console: Console, steps: int) -> Iterator[Callable[[int, float], None]]:
    with bars_on(console) as bars:
        bar = bars.add_task("training", total=steps, note="")
        yield lambda step, loss: bars.update(bar, completed=step + 1, note=f"loss {loss:.4f}")
