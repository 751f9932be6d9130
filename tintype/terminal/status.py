"""How far a study is, as a table that can be watched."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from tintype.study.notes import times_words
from tintype.study.status import RunState, RunStatus, StudyStatus, status_of
from tintype.terminal.interrupts import Interrupted, begin_work
from tintype.terminal.lines import number, start_live
from tintype.terminal.progress import duration

_EVERY_S = 2.0
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
"""The words for each state in the first line, in this order; those of runs that a look may want depend on the study."""


def show_status(status: StudyStatus, console: Console) -> None:
    console.print(_shown(status), soft_wrap=True)


def watch_status(out: Path, console: Console) -> None:
    """Show the status anew every two seconds, until nothing is left to do."""
    status = status_of(out)
    live = Live(_shown(status), console=console, auto_refresh=False)
    begin_work()
    try:
        start_live(live)
        while not status.is_over:
            time.sleep(_EVERY_S)
            status = status_of(out)
            live.update(_shown(status), refresh=True)
    except Interrupted as stopped:
        stopped.kept = "a look writes nothing; run the same command again"
        raise
    finally:
        live.stop()


def _shown(status: StudyStatus) -> Group:
    named = {**_WORDS, "perhaps": status.perhaps_words}
    counts = {words: len(status.of(state)) for state, words in named.items()}
    summary = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    lines = [f"{status.name}: {len(status.runs)} runs: {summary}", _cost(status)]
    lines += [line for run in status.of("failed", "diverged") for line in _failure(run, status.folder)]
    lines += [f"{run.arm}, seed {run.seed}: {run.unread}" for run in status.runs if run.unread]
    lines += [_crowded(run) for run in status.of("waiting") if run.crowded]
    parts = [_table(status.of("running", "silent", "died"))] if status.of("running", "silent", "died") else []
    return Group(*map(escape, lines), *parts)


def _cost(status: StudyStatus) -> str:
    spent = f"{status.spent_s / 3600:.2f} {status.hours} spent"
    if status.is_over:
        return spent
    to_come = "unknown" if status.to_come_s is None else f"{status.to_come_s / 3600:.2f}"
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
