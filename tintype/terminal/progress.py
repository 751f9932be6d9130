"""Show the progress of a command on stderr, as bars on a terminal, or as lines of plain text in a log."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import TYPE_CHECKING, ClassVar, Self

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Task, TaskID
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from tintype.errors import StoppedError
from tintype.runtime.printable import visible
from tintype.terminal.interrupts import NOTHING_HARMED, Interrupted, begin_work, leave
from tintype.terminal.lines import progress_console, start_live

if TYPE_CHECKING:
    from tintype.runtime.interrupt import Interrupt

LOG_EVERY_S = 9.0
"""Seconds between lines in a log, for a line every ten seconds even if the thread wakes up one second late."""
_SPEED_WINDOW_S = 30.0
_SURE_S = 60.0
_MOST_TIMES = 30.0
"""The remaining time is shown after `_SURE_S` seconds, or if it is at most this multiple of the elapsed time.

In the first minute, start-up and compilation can take longer than all steps.
"""
_PERCENT_COLUMNS = 4
_NAME_COLUMNS, _FEWEST_COLUMNS = 24, 16
"""Columns that remain of a long name: usually, and after all other text but the remaining time was dropped."""
_ROUNDING = 1e-6
"""Tolerance for rounding: After fifty steps of 1/50, an image must count as one image."""


def shows_bars(console: Console) -> bool:
    """Return whether the console writes to a terminal. With FORCE_COLOR, rich would treat a file as a terminal."""
    return console.is_interactive and console.file.isatty()


class Heartbeat:
    """Write `line()` to a log every `LOG_EVERY_S` seconds, from a thread, even while the main thread is busy.

    Only the newest of several such threads writes, only on the first rank, and not to a terminal.
    """

    _running: ClassVar[list[Heartbeat]] = []

    def __init__(self, console: Console, line: Callable[[], str]) -> None:
        self._console, self._line, self._last = console, line, ""
        self._ended = Event()
        self._thread = Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._running.append(self)
        if not self._console.quiet and not shows_bars(self._console):
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()  # nothing is written after the end
        self._running.remove(self)

    def write(self, repeat: bool = True) -> None:
        """Write one line immediately; without `repeat`, only if it differs from the last line. Ignore write errors."""
        if self._console.quiet or shows_bars(self._console):
            return
        before, self._last = self._last, (line := self._line())
        if line == before and not repeat:
            return
        with suppress(OSError):
            self._console.file.write(visible(line) + "\n")
            self._console.file.flush()

    def _beat(self) -> None:
        while not self._ended.wait(LOG_EVERY_S):
            if self._running[-1] is self:
                self.write()


class Bar:
    """One activity: its name, progress and speed."""

    def __init__(self, doing: str, total: float | None, unit: str, interrupt: Interrupt | None = None) -> None:
        self.unit, self._interrupt = unit, interrupt
        self._begin(doing)
        self.total = total

    def _begin(self, doing: str) -> None:
        self.doing, self.note = visible(doing), ""
        self.done, self.total = 0.0, None
        self._samples: deque[tuple[float, float]] = deque()
        self._began_s = time.monotonic()
        self._first_progress_s: float | None = None

    def show(self, doing: str | None, done: float | None, total: float | None, note: str | None) -> None:
        """Update the bar. A new `doing` resets progress and speed, since two activities have different speeds."""
        if doing is not None and visible(doing) != self.doing:
            self._begin(doing)
        self.total = self.total if total is None else total
        self.note = self.note if note is None else visible(note)
        if done is not None:
            now = time.monotonic()
            if done > self.done and self._first_progress_s is None and self._samples:
                self._first_progress_s = now
            self.done = done
            self._samples.append((now, done))
            while len(self._samples) > 2 and self._samples[1][0] < now - _SPEED_WINDOW_S:
                self._samples.popleft()

    @property
    def per_s(self) -> float | None:
        """Speed over the last half minute, or between the last two updates if they are further apart."""
        if len(self._samples) < 2:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last > first and last_s > first_s else None

    @property
    def percent(self) -> str:
        return "" if not self.total else f"{math.floor(100 * min(1.0, self.done / self.total) + _ROUNDING)}%"

    @property
    def left(self) -> str:
        speed = self.per_s
        if self.total is None or speed is None or self.done > self.total - _ROUNDING:
            return ""
        left_s, now_s = (self.total - self.done) / speed, time.monotonic()
        sure = self._first_progress_s is not None and now_s - self._first_progress_s >= _SURE_S
        if not sure and left_s > _MOST_TIMES * (now_s - self._began_s):
            return ""
        return f"{duration(left_s)} left"

    @property
    def count(self) -> str:
        if not self.unit or (self.total is None and not self.done):
            return ""
        whole = f"{math.floor(self.done + _ROUNDING):,}"
        return f"{whole} {self.unit}" if self.total is None else f"{whole} of {self.total:,.0f} {self.unit}"

    @property
    def speed(self) -> str:
        """Speed in images per second; empty for other units. The trainer reports the speed of training steps itself."""
        return f"{short(self.per_s)} images/s" if self.unit == "images" and self.per_s is not None else ""

    @property
    def stopping(self) -> str:
        return "stopping" if self._interrupt is not None and self._interrupt.signal is not None else ""

    @property
    def words(self) -> str:
        return " · ".join(filter(None, [self.count, self.note, self.speed]))

    @property
    def state(self) -> list[str]:
        """Items of text after the bar, with the most important item first."""
        return [self.stopping] if self.stopping else self.words.split(" · ")


class Progress:
    """The progress of a command, shown as one or several bars on a terminal, and as lines in a log.

    A log gets one line at the start, at least one every ten seconds, and one at the end. A thread writes these lines,
    so they also appear during a step, a compilation or a download that takes minutes.

    `kept` states what an interrupted command saves and how to resume it. Pass `interrupt` for a loop that watches for
    signals itself. After a signal, the progress display then shows that the command is stopping.
    """

    def __init__(
        self,
        doing: str,
        total: float | None = None,
        unit: str = "images",
        *,
        kept: str | Callable[[], str] = NOTHING_HARMED,
        interrupt: Interrupt | None = None,
        console: Console = progress_console,
    ) -> None:
        self._console, self._kept, self._interrupt = console, kept, interrupt
        self._began_s = time.monotonic()
        self._drawn = _DrawnBars(console)
        self._rows: dict[str, tuple[Bar, TaskID]] = {}
        self._heartbeat = Heartbeat(console, self._line)
        self._add("", Bar(doing, total, unit, interrupt))

    def __enter__(self) -> Self:
        begin_work()
        if shows_bars(self._console):
            start_live(self._drawn.live)
        self._heartbeat.__enter__()
        self._heartbeat.write()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._heartbeat.__exit__()
        if self._drawn.live.is_started:  # stopping a display that was not started prints an empty line
            self._drawn.stop()
        if error is None:
            self._heartbeat.write(repeat=False)
        elif isinstance(error, Interrupted) and error.kept is None:
            error.kept = self._kept if isinstance(self._kept, str) else self._kept()

    def show(
        self,
        doing: str | None = None,
        done: float | None = None,
        total: float | None = None,
        note: str | None = None,
        *,
        row: str = "",
    ) -> None:
        """Update the bar of a row; None leaves a value unchanged. A new `row` adds a bar.

        A new `doing` resets the bar to 0, without a total.
        """
        if row not in self._rows:
            self._add(row, Bar(doing or row, None, "", self._interrupt))
        bar, task = self._rows[row]
        bar.show(doing, done, total, note)
        self._drawn.update(task, completed=bar.done, total=bar.total)

    def count(self, done: float, total: float) -> None:
        self.show(None, done, total)

    def remove(self, row: str) -> None:
        if found := self._rows.pop(row, None):
            self._drawn.remove_task(found[1])

    def console_for_lines(self, console: Console) -> Console:
        """Return the console for printing lines. If `console` is a terminal, its lines appear above the drawn bars."""
        return self._console if shows_bars(self._console) and console.is_terminal else console

    def _add(self, row: str, bar: Bar) -> None:
        self._rows[row] = bar, self._drawn.add_task("", total=bar.total, bar=bar)

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._began_s
        (first, _), *others = list(self._rows.values())
        percent = f"({first.percent})" if first.percent and first.count else first.percent
        parts = [" ".join(filter(None, [first.count, percent])), first.note, first.speed]
        parts += [f"after {duration(elapsed_s)}" if elapsed_s >= 1 else "", first.left, first.stopping]
        known = " · ".join(filter(None, parts))
        lines = [f"{first.doing}: {known}" if known else first.doing]
        return "; ".join([*lines, *(f"{bar.doing}: {bar.words}" for bar, _ in others)])


@contextmanager
def stoppable(doing: str, total: float | None = None, unit: str = "images") -> Iterator[tuple[Progress, Interrupt]]:
    """Show the progress of a loop that watches for signals itself, and saves its work when a signal comes."""
    from tintype.runtime.interrupt import watch_signals  # imports torch, which is slow

    with watch_signals() as interrupt:
        try:
            with Progress(doing, total, unit, interrupt=interrupt) as bars:
                yield bars, interrupt
        except StoppedError as stopped:
            leave(interrupt.signal, str(stopped))


class _DrawnBars(RichProgress):
    """Bars that fit the width of the terminal. If space is short, all rows leave out the least important column."""

    def __init__(self, console: Console) -> None:
        self._terminal = console
        super().__init__(
            console=console, transient=True, redirect_stdout=False
        )  # the redirected text would go to stderr

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        shown = list(tasks)
        bars: list[Bar] = [task.fields["bar"] for task in shown]
        layout = _fitting(bars, self._terminal.width)
        draw = BarColumn(bar_width=layout.bar)
        table = Table.grid(padding=(0, 1))
        for task, bar in zip(shown, bars, strict=True):
            words = [f"{bar.percent:>{_PERCENT_COLUMNS}}"]
            words += [" · ".join(bar.state[: layout.parts])] if layout.parts else []
            words += [bar.left] if layout.left else []
            cells = [Text(one, no_wrap=True) for one in (_shortened(bar.doing, layout.name), *words)]
            table.add_row(cells[0], *([draw(task)] if layout.bar else []), *cells[1:])
        return table


@dataclass(frozen=True)
class _Layout:
    """Widths of names and bars, number of shown items of the state, and whether the remaining time is shown."""

    name: int
    bar: int
    parts: int
    left: bool


def _fitting(bars: Sequence[Bar], width: int) -> _Layout:
    """Choose the layout that fits the width.

    If space is short, the bar is left out first, then the last items of the state, the remaining time, and the other
    items of the state.
    """
    longest, left = _widest(bar.doing for bar in bars), _widest(bar.left for bar in bars)
    most = max((len(bar.state) for bar in bars), default=0)
    layouts = [
        *(_Layout(_NAME_COLUMNS, bar, most, True) for bar in (16, 8)),
        *(_Layout(_NAME_COLUMNS, 0, parts, True) for parts in range(most, 0, -1)),
        *(_Layout(_FEWEST_COLUMNS, 0, 1, with_left) for with_left in (True, False)),
    ]
    for one in layouts:
        state = _widest(" · ".join(bar.state[: one.parts]) for bar in bars)
        taken = [_PERCENT_COLUMNS, state, *([one.bar] if one.bar else []), *([left] if one.left and left else [])]
        space = width - sum(taken) - len(taken)  # a column between two cells
        if space >= min(longest, one.name):
            return replace(one, name=space, left=one.left and left > 0)
    return _Layout(width - _PERCENT_COLUMNS - 1, 0, 0, False)


def _widest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _shortened(name: str, columns: int) -> str:
    """Shorten a name that is too long by removing its middle. The end distinguishes arms and seeds."""
    if cell_len(name) <= columns:
        return name
    kept = max(columns - 1, 1)
    return f"{name[: (kept + 1) // 2]}…{name[len(name) - kept // 2 :]}"


def speed_note(loss: float | None, images_per_s: float | None) -> str:
    known = [f"loss {loss:.4f}"] if loss is not None else []
    known += [f"{short(images_per_s)} images/s"] if images_per_s is not None else []
    return " · ".join(known)


def duration(seconds: float) -> str:
    """Return a duration as text, such as 45 s, 3 min 20 s or 2 h 05 min."""
    whole = math.ceil(seconds)
    minutes, left_s = divmod(whole, 60)
    if whole < 60:
        return f"{whole} s"
    if minutes < 60:
        return f"{minutes} min {left_s:02d} s" if minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
