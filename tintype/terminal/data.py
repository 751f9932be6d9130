"""What goes into a store, comes out of it, and is found in it."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from tintype.data.store.export import Form, export_store, quoted_import_options
from tintype.data.store.importing import ImportOptions, import_pictures
from tintype.data.store.importing import Progress as ImportProgress
from tintype.data.store.inspect import Asked, inspect_store, write_skip_list
from tintype.data.store.inspect_html import to_html
from tintype.data.store.layout import Split, open_store
from tintype.data.store.selection import read_skip_list, select
from tintype.data.store.writer import QUARANTINE
from tintype.errors import UserError
from tintype.evaluation.data import held_out_note
from tintype.files import write_text
from tintype.terminal.bars import bars_on
from tintype.terminal.lines import say
from tintype.train.interrupt import watch_signals


def import_with_progress(source: Path, out: Path, options: ImportOptions, console: Console) -> int:
    """Imports pictures into a store with a progress bar; returns the exit code."""
    began, first = time.monotonic(), 0
    with watch_signals() as interrupt, bars_on(console) as bars:
        bar = bars.add_task("importing", total=None, note="")

        def on_progress(progress: ImportProgress) -> None:
            nonlocal first
            first = first if bars.tasks[0].total else progress.done
            speed = (progress.done - first) / max(time.monotonic() - began, 1e-9)
            aside = f" · {progress.quarantined:,} set aside" if progress.quarantined else ""
            note = f"{progress.done:,} of {progress.total:,} · {speed:.0f} images/s{aside}"
            bars.update(bar, completed=progress.done, total=progress.total, note=note)

        outcome = import_pictures(source, out, options, interrupt, on_progress)
    if outcome.about is None:
        say(console, f"interrupted: {outcome.done:,} records are kept; run the same command to go on")
        return interrupt.exit_code
    about, seconds = outcome.about, time.monotonic() - began
    counts = ", ".join(f"{count:,} {split}" for split, count in about.counts.items())
    speed = "" if outcome.already_done else f" ({(outcome.done - first) / seconds:.0f} images/s)"
    state = "was imported before" if outcome.already_done else f"imported in {seconds:.1f} s{speed}"
    size = sum(shard.bytes for shard in about.shards) / 1e6
    known = ", ".join(f"{name} ({kind})" for name, kind in about.attributes.items())
    attributes = f"attributes {known}; " if known else ""
    text = (
        f"{out}: {state}; {counts}, {size:.1f} MB; captions {', '.join(about.captions)}; {attributes}"
        f"sha256 {about.identity[:12]}"
    )
    say(console, text)
    if about.quarantined:
        text = f"note: {about.quarantined:,} records were set aside; {out / QUARANTINE} says why of each"
        say(console, text, "yellow")
    for split, count in about.counts.items():
        if not count:
            say(console, f"note: the split {split} is empty", "yellow")
    if note := held_out_note(about.counts["eval"]):
        say(console, f"note: {note}", "yellow")
    return 0


def export_with_progress(store: Path, form: Form, out: Path, split: Split | None, console: Console) -> int:
    """Writes a store's records in another form with a progress bar; returns the exit code."""
    opened = open_store(store)
    with watch_signals() as interrupt, bars_on(console) as bars:
        bar = bars.add_task("exporting", total=None, note="")

        def on_progress(done: int, total: int) -> None:
            bars.update(bar, completed=done, total=total, note=f"{done:,} of {total:,}")

        exported = export_store(opened, form, out, split, interrupt, on_progress)
    if exported.stopped:
        say(console, "interrupted: nothing was exported")
        return interrupt.exit_code
    files = "1 file" if exported.files == 1 else f"{exported.files:,} files"
    text = (
        f"{out}: {exported.rows:,} records in {files}; `tintype data import {shlex.quote(str(out))} "
        f"{quoted_import_options(opened)} --out DIR` "
    )
    say(console, text + "brings them back")
    return 0


def inspect_with_progress(
    store: Path,
    asked: Asked,
    where: str | None,
    skip: Path | None,
    out: Path | None,
    write_skip: Path | None,
    console: Console,
    progress: Console,
) -> tuple[int, dict[str, Any]]:
    """Looks at a store and writes its page, where `out` is given; returns the exit code and the numbers."""
    opened, began = open_store(store), time.monotonic()
    selection = select(opened, where, skip, options="--")
    with watch_signals() as interrupt, bars_on(progress) as bars:
        bar = bars.add_task("looking", total=None, note="")

        def on_progress(done: int, total: int) -> None:
            bars.update(bar, completed=done, total=total, note=f"{done:,} of {total:,}")

        found = inspect_store(opened, selection, asked, lambda: interrupt.signal is not None, on_progress)
    if found is None:
        say(console, "interrupted: run the same command to go on")
        return interrupt.exit_code, {}
    if write_skip is not None:
        count = write_skip_list(write_skip, opened, found.groups)
        identity = read_skip_list(write_skip).identity
        option = f"--set {shlex.quote(f'data.skip={write_skip}')}"
        say(progress, f"{write_skip}: {count:,} entries; {option} (skip_sha256 {identity[:12]})")
    if out is None:
        return 0, found.result
    try:
        write_text(out, to_html(opened, found))
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another --out") from None
    for problem in found.result["problems"]:
        style = "red" if problem["severity"] == "alarm" else "yellow"
        say(progress, problem["title"], style)
    say(progress, f"{out}: {found.result['records']:,} records in {time.monotonic() - began:.1f} s")
    return 0, found.result
