"""Print the progress of a study as a table, once or updated in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from tintype.study.notes import times_words
from tintype.study.status import RunState, RunStatus, StudyStatus
from tintype.terminal.interrupts import Interrupted, begin_work
from tintype.terminal.lines import number, start_live
from tintype.terminal.progress import duration
from tintype.terminal.view import View

_WORDS: dict[RunState, str] = {
    "done": "done",
    "running": "running",
    "silent": "silent",
    "died": "died and to be resumed",
    "waiting": "waiting",
    "perhaps": "",
    "failed": "failed",
    "diverged": "diverged",
}
"""Description of each state of runs in the first line, in this order.

The study decides how runs that an interim analysis may still need are described.
"""


class Runs(View[StudyStatus]):
    """View of `status`, which shows a table of the study's progress, once or updated in place."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        if not self.given["watch"]:
            yield {}
            return
        live = Live(console=self.lines, auto_refresh=False)

        def on_status(status: StudyStatus) -> None:
            live.update(shown(status), refresh=live.is_started)
            if not live.is_started:
                start_live(live)

        begin_work()
        try:
            yield {"on_status": on_status}
        except Interrupted as stopped:
            stopped.kept = "a look writes nothing; run the same command again"
            raise
        finally:
            live.stop()

    def show(self, result: StudyStatus) -> None:
        if not self.given["watch"]:
            self.console.print(shown(result), soft_wrap=True)


def shown(status: StudyStatus) -> Group:
    """Return the counts of runs, the remaining time, the failures, and a table of the current runs."""
    named = {**_WORDS, "perhaps": status.perhaps_words}
    counts = {words: len(status.of(state)) for state, words in named.items()}
    summary = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    lines = [f"{status.name}: {len(status.runs)} runs: {summary}"]
    lines += [_cost(status)] if status.spent_s or not status.is_over else []  # a stored study has no claims
    lines += [line for run in status.of("failed", "diverged") for line in _failure(run, status.folder)]
    lines += [f"{run.arm}, seed {run.seed}: {run.unread}" for run in status.runs if run.unread]
    lines += [_crowded(run) for run in status.of("waiting") if run.crowded]
    parts = [_table(status.of("running", "silent", "died"))] if status.of("running", "silent", "died") else []
    return Group(*map(escape, lines), *parts)


def _cost(status: StudyStatus) -> str:
    device = "GPU" if status.hours == "GPU-hours" else "worker"
    spent = f"{duration(status.spent_s)} of {device} time spent"
    if status.is_over:
        return spent
    to_come = "unknown" if status.to_come_s is None else duration(status.to_come_s)
    left = "no worker is running" if not status.of("running") else "unknown"
    left = left if status.left_s is None else f"about {duration(status.left_s)} left"
    return f"{spent}, {to_come} to come; {left}"


def _failure(run: RunStatus, folder: str) -> list[str]:
    again = f"tintype work {quote(folder)} --run {run.hash}"
    return [f"{run.state}: {run.arm}, seed {run.seed}: {run.error}", f"  again: {again}"]


def _crowded(run: RunStatus) -> str:
    times = times_words(run.crowded)
    return f"{run.arm}, seed {run.seed}: waiting; its memory ran out, or the GPU failed, {times} beside other runs"


def _table(runs: list[RunStatus]) -> Table:
    table = Table("run", "state", "where", "step", "loss", "images/s", "left", "deaths", box=None, pad_edge=False)
    for run in runs:
        where = " ".join(filter(None, [run.machine, run.gpu and f"GPU {run.gpu}", run.worker.rpartition("-")[2]]))
        cells = [
            f"{run.arm}, seed {run.seed}",
            run.state,
            where,
            f"{run.step:,} of {run.steps:,}",
            number(run.loss),
            number(run.images_per_s, ".3g"),
            "" if run.left_s is None else duration(run.left_s),
            str(run.deaths or ""),
        ]
        table.add_row(*map(escape, cells))
    return table
