"""Print the measurements of `tintype bench` and the findings of `tintype audit`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial, singledispatch
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tintype.audit.findings import Finding
from tintype.audit.run import Audit, as_json
from tintype.audit.seen import Bad, Group, Role, Seen
from tintype.bench.data import DataSpeeds, ImportSpeed, Loading
from tintype.bench.record import AnyResult, Change, Measurement, slower
from tintype.bench.run import Comparison, Row
from tintype.bench.study import RunSeconds, StudySpeeds
from tintype.metrics.throughput import tokenizer_words
from tintype.page.numerals import count, significant
from tintype.terminal import documents
from tintype.terminal.interrupts import Interrupted
from tintype.terminal.lines import number, progress_console, say, say_chosen, say_note
from tintype.terminal.progress import Progress
from tintype.terminal.studies import ShownProgress
from tintype.terminal.view import View

_SHOWN_PARTS = ("forward", "backward", "optimizer", "tokenizer", "data")
_STYLE = {"mistake": "red", "note": "yellow"}
_MOST_PLACES = 3
"""Largest number of places that the terminal names for each finding. JSON names all."""
_TYPE_COLUMNS: dict[Role, str] = {
    "weights": "weights",
    "gradients": "grads",
    "moments": "moments",
    "averages": "average",
    "buffers": "buffers",
}
_LEGEND = (
    "inputs: as they arrive at the modules; lost: steps that did not move the stored weight; stuck: averages that are "
    "apart from their weight and did not move"
)
_NOTHING_MEASURED = "nothing was measured; run the same command again"


class Speed(View[Measurement]):
    """View of `bench`, which shows progress, the measured numbers, and their comparison with recorded numbers."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        imports = self.given["import_"] is not None
        kept = "nothing was kept; run the same command again" if imports else _NOTHING_MEASURED
        with ExitStack() as stack:
            bars: Progress | None = None

            def on_begin() -> None:
                nonlocal bars
                if not self.given["study"]:
                    doing, unit = ("importing", "images") if imports else ("measuring", "parts")
                    bars = stack.enter_context(Progress(doing, unit=unit, kept=kept))

            def on_progress(part: str, done: float, total: float) -> None:
                if bars is not None:
                    bars.show(None, done, total, part or None)

            try:
                yield {
                    "argv": sys.argv[1:],
                    "on_begin": on_begin,
                    "on_progress": on_progress,
                    "on_study": ShownProgress(progress_console),
                }
            except Interrupted as stopped:
                stopped.kept = stopped.kept or kept
                raise

    def show(self, result: Measurement) -> None:
        show(result.result, self.console)
        self._compare(result)

    def document(self, result: Measurement) -> dict[str, Any]:
        return result.content

    def finish(self, result: Measurement) -> None:
        if self.as_json:
            self._compare(result)
        super().finish(result)

    def _compare(self, result: Measurement) -> None:
        if result.recorded is not None:
            show_changes(result.changes, result.tolerance, self.lines)


@singledispatch
def show(result: AnyResult, console: Console) -> None:
    """Print a measurement in its type's format, by default one line per number or mapping of numbers."""
    for name, value in (result if isinstance(result, dict) else asdict(result)).items():
        inner = value if isinstance(value, Mapping) else {"": value}
        rounded = {key: f"{v:.3g}" if isinstance(v, float) else v for key, v in inner.items()}
        say(console, f"{name}: " + ", ".join(f"{key} {v}".strip() for key, v in rounded.items()))


@show.register
def show_comparison(result: Comparison, console: Console) -> None:
    """Print the rows as a table that shows optimizers next to their lower bound, and a note for each unreliable row."""
    title = f"{result.environment['device']}, median (slowest–fastest) of {result.steps} steps"
    table = Table(title=escape(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("tokens", "px", "batch", "technique", "images/s", "× dense", "/\n".join(_SHOWN_PARTS) + " %", "GiB"):
        if name == "technique":  # a technique's options can be long, and must not push the numbers out of the table
            table.add_column(name, justify="left", overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for _, same_size in groupby(result.rows, key=lambda row: row.size):
        for row in same_size:
            table.add_row(f"{row.tokens}", f"{row.size_px}", f"{row.batch}", escape(row.technique), *_numbers(row))
        table.add_row()
    console.print(table)
    for row in result.rows:
        if row.floor_s is not None:
            say(console, _floor_line(row))
    for row in result.rows:
        if words := tokenizer_words(row.tokenizer_share, row.tuned):
            say_note(console, f"{row.title}: {words}")
    for row in result.rows:
        if row.recompiled or row.graph_breaks:
            graphs = f"{row.recompiled} graphs compiled in the timed steps, {row.graph_breaks} graph breaks"
            say_note(console, f"{row.title}: {graphs}; without these, the step could be faster")


def _floor_line(row: Row) -> str:
    assert row.optimizer_s and row.optimizer_share and row.floor_s
    return (
        f"{row.title}: the optimizer takes {1000 * row.optimizer_s:.3g} ms, {100 * row.optimizer_share:.3g}% of a "
        f"step; Newton–Schulz is {row.newton_schulz_tflop:.3g} TFLOP, {1000 * row.floor_s:.3g} ms at the "
        f"{row.ceiling_tflop_per_s:.3g} TFLOP/s of a large matrix product: {row.times_floor:.2f} × that floor"
    )


def _numbers(row: Row) -> list[str]:
    if row.images_per_s is None or row.time_split is None:
        return [row.failed or ""]
    spread = f" ({significant(row.slowest_images_per_s, 4)}–{significant(row.fastest_images_per_s, 4)})"
    ratio = "" if row.times_dense is None else f"{row.times_dense:.3f}"
    shares = "/".join(f"{100 * row.time_split[part]:.0f}" for part in _SHOWN_PARTS)
    return [
        significant(row.images_per_s, 4) + spread,
        ratio,
        shares,
        "" if row.peak_gib is None else f"{row.peak_gib:.1f}",
    ]


@show.register
def show_data_speeds(result: DataSpeeds, console: Console) -> None:
    for one in result.loader:
        workers = ("process", "processes") if one.processes else ("thread", "threads")
        speed = f"{one.images_per_s:,.0f} images/s of {result.size_px} px, {_cpu(one)}"
        say(console, f"loader, {one.threads} {workers[one.threads > 1]}: {speed}")
    trained, wait = result.training["images_per_s"], result.training["data_share"]
    say(console, f"training: {trained:,.1f} images/s without the wait for data, which is {wait:.2%} of a step")
    say(console, f"the loader is {result.loader_times_training:.2f} × as fast as training")


@show.register
def show_import_speed(result: ImportSpeed, console: Console) -> None:
    images = f"{result.images:,} images ({result.set_aside:,} set aside)"
    say(console, f"{images}: {result.images_per_s:,.0f} images/s, {_cpu(result)}")


def _cpu(one: Loading | ImportSpeed) -> str:
    return f"{one.cpu_ms_per_image:.2f} ms of CPU each ({one.images_per_s_per_core:,.0f} images/s per core)"


@show.register
def show_study_speeds(result: StudySpeeds, console: Console) -> None:
    warm = result.warm_runs_per_hour
    once_warm = "" if warm is None else f", {warm:.4g} once the workers are warm"
    say(
        console,
        f"{result.environment['device']}: {result.runs} runs with --jobs {result.jobs} took {result.wall_s:.1f} s: "
        f"{result.runs_per_hour:.4g} runs an hour{once_warm}",
    )
    say(console, f"first run of a worker: {_seconds_words(result.first)}")
    if result.later is not None:
        say(console, f"later runs: {_seconds_words(result.later)}")


def _seconds_words(run: RunSeconds) -> str:
    start = f"start {run.starting_s:.1f}, " if run.starting_s else ""
    return f"{run.whole_s:.1f} s ({start}training {run.training_s:.1f}, scoring {run.scoring_s:.1f})"


def show_changes(changes: Sequence[Change], tolerance: float, console: Console) -> None:
    """Print each speed next to the recorded speed, followed by the names of slower speeds."""
    for one in changes:
        ratio = "" if one.ratio is None else f", {one.ratio:.3f} ×"
        recorded, now = number(one.recorded) or "not", number(one.now) or "missing"
        say(console, f"{one.name}: {recorded} recorded, {now} now{ratio}")
    if names := slower(changes, tolerance):
        say(console, f"slower by more than {100 * tolerance:.3g}%: {'; '.join(names)}", "red")


class Findings(View[Audit]):
    """View of `audit`, which shows a row for each group of tensors, then the findings."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with Progress("loading", kept="an audit writes nothing; run the same command again", unit="steps") as bars:
            yield {"on_progress": partial(bars.show, "auditing", total=self.given["steps"]), "on_run": say_chosen}

    def show(self, result: Audit) -> None:
        seen = result.seen
        self.console.print(_groups_table(seen, f"precision of {result.run or self.given['recipe']}"))
        steps = f"{seen.steps} step{'' if seen.steps == 1 else 's'}"
        for line in (_LEGEND, "; ".join((steps, *result.remarks))):
            self.console.print(line, style="dim", highlight=False, markup=False)
        if seen.error is not None:
            ended = f"the steps were ended by {seen.error_words}"
            self.console.print(ended, style="yellow", highlight=False, markup=False)
        if not result.findings:
            nothing = "nothing found: no step, average or input loses precision"
            self.console.print(nothing, style="green", highlight=False)
        for finding in result.findings:
            _show_finding(finding, self.console)

    def document(self, result: Audit) -> documents.Audited:
        return documents.Audited.model_validate(as_json(result))


def _show_finding(finding: Finding, console: Console) -> None:
    share = "" if finding.share is None else f", {percent(finding.share)}"
    places = ", ".join(finding.where[:_MOST_PLACES])
    more = f" and {len(finding.where) - _MOST_PLACES} more" if len(finding.where) > _MOST_PLACES else ""
    grid = Table.grid(Column(width=8, no_wrap=True), Column(), padding=(0, 1))
    grid.add_row(f"[{_STYLE[finding.severity]}]{finding.severity}[/]", f"[bold]{finding.name}[/]{share}")
    for head, text in (("", finding.what), ("where", places + more), ("remedy", finding.remedy)):
        if text:
            grid.add_row(f"[dim]{head:>8}[/]", escape(text))
    console.print(grid, highlight=False)


Cell = Callable[[Group], str]


def _groups_table(seen: Seen, title: str) -> Table:
    """Return a table without empty columns: each component's module inputs, and below them its kinds of tensors."""
    groups = seen.in_order
    columns: list[tuple[str, Cell]] = [
        ("size", lambda g: count(g.elements).replace(" ", "")),
        *((head, _types_of(role)) for role, head in _TYPE_COLUMNS.items()),
        ("lost", lambda g: percent(g.updates.share)),
        ("stuck", lambda g: percent(g.averages.share)),
        ("not finite", lambda g: _count(g.bad.values(), lambda bad: bad.non_finite)),
        ("saturated", lambda g: _count(g.bad.values(), lambda bad: bad.saturated)),
    ]
    shown = [(head, cell) for head, cell in columns if any(cell(group) for group in groups)]
    table = Table(title=f"{escape(title)}\n", title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("group", no_wrap=True)
    for head, _ in shown:
        table.add_column(head, justify="left" if head in _TYPE_COLUMNS.values() else "right", no_wrap=True)
    table.add_column("inputs", no_wrap=True)
    for room in dict.fromkeys(group.room for group in groups):
        table.add_row(f"[bold]{escape(room)}[/]", *[""] * len(shown), " ".join(sorted(seen.input_types(room))))
        for group in (group for group in groups if group.room == room):
            table.add_row(f"  {group.kind}", *(cell(group) for _, cell in shown), "")
    return table


def _types_of(role: Role) -> Cell:
    return lambda group: " ".join(sorted(group.types.get(role, ())))


def percent(share: float | None) -> str:
    """Return a fraction as percent. A fraction above zero is never shown as zero."""
    if share is None:
        return ""
    if 0 < share < 0.001:
        return "<0.1%"
    return "100%" if share == 1 else f"{share:.1%}"


def _count(bad: Iterable[Bad], number: Callable[[Bad], int]) -> str:
    total = sum(number(one) for one in bad)
    return f"{total:,}" if total else ""
