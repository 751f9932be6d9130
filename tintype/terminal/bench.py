"""Print the measurements of `tintype bench`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.bench.data import DataSpeeds, ImportSpeed, Loading
from tintype.bench.run import Comparison, Row
from tintype.metrics.throughput import tokenizer_words
from tintype.terminal.lines import say, say_note

_SHOWN_PARTS = ("forward", "backward", "optimizer", "tokenizer", "data")


def show_speeds(speeds: Mapping[str, object], console: Console) -> None:
    """Print each number on a line of its own; those of a mapping on one."""
    for name, value in speeds.items():
        inner = value if isinstance(value, Mapping) else {"": value}
        rounded = {key: f"{v:.3g}" if isinstance(v, float) else v for key, v in inner.items()}
        say(console, f"{name}: " + ", ".join(f"{key} {v}".strip() for key, v in rounded.items()))


def show_comparison(result: Comparison, console: Console) -> None:
    """Print the rows as a table, optimizers beside their floor, and a note for each row that is not to be trusted."""
    title = f"{result.environment['device']}, median (slowest–fastest) of {result.steps} steps"
    table = Table(title=escape(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("tokens", "px", "batch", "technique", "images/s", "× dense", "/\n".join(_SHOWN_PARTS) + " %", "GiB"):
        if name == "technique":  # its options can be long, and must not push the numbers out of sight
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
            say_note(console, f"{row.title}: {graphs}; it could be faster")


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
    spread = f" ({row.slowest_images_per_s:.4g}–{row.fastest_images_per_s:.4g})"
    ratio = "" if row.times_dense is None else f"{row.times_dense:.3f}"
    shares = "/".join(f"{100 * row.time_split[part]:.0f}" for part in _SHOWN_PARTS)
    return [f"{row.images_per_s:.4g}" + spread, ratio, shares, "" if row.peak_gib is None else f"{row.peak_gib:.1f}"]


def show_data_speeds(result: DataSpeeds, console: Console) -> None:
    for one in result.loader:
        workers = ("process", "processes") if one.processes else ("thread", "threads")
        speed = f"{one.images_per_s:,.0f} images/s of {result.size_px} px, {_cpu(one)}"
        say(console, f"loader, {one.threads} {workers[one.threads > 1]}: {speed}")
    trained, wait = result.training["images_per_s"], result.training["data_share"]
    say(console, f"training: {trained:,.1f} images/s without the wait for data, which is {wait:.2%} of a step")
    say(console, f"the loader is {result.loader_times_training:.2f} × as fast as training")


def show_import_speed(result: ImportSpeed, console: Console) -> None:
    images = f"{result.images:,} images ({result.set_aside:,} set aside)"
    say(console, f"{images}: {result.images_per_s:,.0f} images/s, {_cpu(result)}")


def _cpu(one: Loading | ImportSpeed) -> str:
    return f"{one.cpu_ms_per_image:.2f} ms of CPU each ({one.images_per_s_per_core:,.0f} images/s per core)"
