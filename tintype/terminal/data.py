"""Print progress and summaries of the commands on stores (import, export, inspect, check, upgrade, caption)."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tintype.data.captions import ColumnSettings
from tintype.data.presets import read_preset
from tintype.data.recaption.work import Progress as CaptionProgress
from tintype.data.recaption.work import Recaptioned
from tintype.data.store.export import Exported, quoted_import_options
from tintype.data.store.importing import Imported
from tintype.data.store.importing import Progress as ImportProgress
from tintype.data.store.inspect import Inspection
from tintype.data.store.inspect_html import write_page
from tintype.data.store.layout import QUARANTINE, AddedColumn, StoreShown, open_store
from tintype.data.store.selection import read_skip_list
from tintype.evaluation.fit import held_out_note
from tintype.library.data import CaptionPrompt, Shapes
from tintype.terminal import documents
from tintype.terminal.interrupts import leave
from tintype.terminal.lines import progress_console, say, say_note
from tintype.terminal.progress import Progress, stoppable
from tintype.terminal.view import R, View


class ShapeSetting(View[Shapes]):
    def show(self, result: Shapes) -> None:
        say(self.console, result.setting)


class Import(View[Imported]):
    """View of an import, with its progress, the counts of the new store, and the commands to run next."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        self._began_s, self._first = time.monotonic(), -1
        with stoppable("importing") as (bars, interrupt):

            def on_progress(now: ImportProgress) -> None:
                self._first = now.done if self._first < 0 else self._first
                bars.show(None, now.done, now.total, f"{now.quarantined:,} set aside" if now.quarantined else "")

            yield {"on_progress": on_progress, "interrupt": interrupt}

    def show(self, result: Imported) -> None:
        about, seconds = result.about, time.monotonic() - self._began_s
        counts = ", ".join(f"{count:,} {split}" for split, count in about.counts.items())
        speed = f" ({(result.done - self._first) / seconds:.0f} images/s)"
        state = "was imported before" if result.already_done else f"imported in {seconds:.1f} s{speed}"
        size = sum(shard.bytes for shard in about.shards) / 1e6
        known = ", ".join(f"{name} ({kind})" for name, kind in about.attributes.items())
        content = f"captions {', '.join(about.captions)}; {f'attributes {known}; ' if known else ''}"
        say(
            self.console,
            f"{self.given['out']}: {state}; {counts}, {size:.1f} MB; {content}sha256 {about.identity[:12]}",
        )

    def finish(self, result: Imported) -> None:
        super().finish(result)
        for note in self._notes(result):
            say_note(self.lines, note)
        if result.about.counts["train"]:
            say(self.lines, next_commands(self.given["out"]))

    def _notes(self, result: Imported) -> Iterator[str]:
        about, name = result.about, self.given["preset"]
        if about.quarantined:
            why = self.given["out"] / QUARANTINE
            yield f"{about.quarantined:,} records were set aside; {why} says why of each"
        if name is not None:
            preset = read_preset(name)
            yield f"licence of {name}: {preset.license}; {preset.terms}".rstrip("; ")
            for difference in preset.unexpected(result.done, about.counts) if self.given["limit"] is None else []:
                yield f"{name} has {difference}: a part of it, another version, or records set aside"
        for split, count in about.counts.items():
            if not count:
                yield f"the split {split} is empty"
        if note := held_out_note(about.counts["eval"]):
            yield note


def next_commands(path: Path) -> str:
    """Return commands that inspect a store and train on it with the smallest recipe, which runs on any machine."""
    store = open_store(path)
    sides = np.minimum(*store.sizes())
    size_px = 32 if sides.min() >= 32 else 16
    settings = ["data.kind=store", f"data.path={path}", f"data.size_px={size_px}"]
    if sides.min() < size_px:  # images are never enlarged
        settings.append(f"data.where=min(width, height) >= {size_px}")
    if ColumnSettings().column not in store.about.captions:
        settings.append(f"captions.column={store.about.captions[0]}")
    options = " ".join(f"--set {shlex.quote(one)}" for one in settings)
    inspect = f"tintype data inspect {shlex.quote(str(path))} --out {shlex.quote(f'{path.name}.html')}"
    return f"next: {inspect}, or tintype train pocket {options} --out {shlex.quote(f'runs/{path.name}')}"


class _Images(View[R]):
    doing: ClassVar[str]

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        self._began_s = time.monotonic()
        with stoppable(self.doing) as (bars, interrupt):
            yield {"on_progress": bars.count, "interrupt": interrupt}


class Export(_Images[Exported]):
    """View of an export, with its progress, and the command that imports the exported files."""

    doing = "exporting"

    def show(self, result: Exported) -> None:
        out, files = self.given["out"], "1 file" if result.files == 1 else f"{result.files:,} files"
        options = quoted_import_options(open_store(self.given["store"]))
        command = f"tintype data import {shlex.quote(str(out))} {options} --out DIR"
        say(self.console, f"{out}: {result.rows:,} records in {files}; `{command}` brings them back")


class InspectedStore(_Images[Inspection]):
    """View of an inspection, with its progress, the problems found, and the path of the page."""

    doing = "looking"

    def finish(self, result: Inspection) -> None:
        if (skip := self.given["write_skip"]) is not None:
            entries = read_skip_list(skip)
            count, option = len(entries.whole) + len(entries.repeats), f"--set {shlex.quote(f'data.skip={skip}')}"
            say(progress_console, f"{skip}: {count:,} entries; {option} (skip_sha256 {entries.identity[:12]})")
        if (out := self.given["out"]) is not None:
            self._say_problems(result, out)
        super().finish(result)

    def _say_problems(self, result: Inspection, out: Path) -> None:
        for problem in result.result["problems"]:
            say(progress_console, problem["title"], "red" if problem["severity"] == "alarm" else "yellow")
        seconds = time.monotonic() - self._began_s
        say(progress_console, f"{out}: {result.result['records']:,} records in {seconds:.1f} s")

    def show(self, result: Inspection) -> None:
        if (out := self.given["out"]) is None:
            out = Path(f"{self.given['store'].resolve().name}-inspect.html")
            write_page(out, result)
            self._say_problems(result, out)
        say(self.console, f"page: {out.resolve()}")

    def document(self, result: Inspection) -> documents.StoreInspected:
        return documents.StoreInspected.model_validate(result.result)


class _Checking(View[R]):
    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with Progress("checking", kept="nothing was changed; run the same command again") as bars:
            yield {"on_progress": bars.count}


class StoreFacts(_Checking[StoreShown]):
    """View of a store, with lines about its content, and the progress of its check."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        if not self.given["check"]:
            yield {}
            return
        with super().calls() as calls:
            yield calls

    def show(self, result: StoreShown) -> None:
        lines = {
            "identity": result.identity + (" (checked)" if result.checked else ""),
            "records": ", ".join(f"{count:,} {split}" for split, count in result.counts.items()),
            "captions": ", ".join(result.captions),
            **({"attributes": _attributes(result.attributes, result.missing)} if result.attributes else {}),
            "set aside": f"{result.quarantined:,}",
            "size": f"{sum(shard.bytes for shard in result.shards) / 1e6:,.1f} MB in {len(result.shards)} shards",
            "imported from": result.made_from.get("source", "?"),
            **{f"captions {column.name}": _made_by(column.made_by) for column in result.added},
        }
        if result.left is not None:
            left = ", ".join(f"{count:,} {split}" for split, count in result.left.items())
            by_where, by_skip = result.left_out["where"], result.left_out["skip"]
            lines["left"] = f"{left} (--where leaves out {by_where:,}, --skip {by_skip:,})"
        if result.note:
            lines["note"] = result.note
        for name, value in lines.items():
            say(self.console, f"{name}: {value}")


def _attributes(kinds: Mapping[str, str], missing: Mapping[str, int]) -> str:
    lacking = {name: f", {count:,} missing" if count else "" for name, count in missing.items()}
    return ", ".join(f"{name} ({kind}{lacking[name]})" for name, kind in kinds.items())


def _made_by(made_by: Mapping[str, Any]) -> str:
    model, empty = made_by.get("settings", {}).get("model", "?"), made_by.get("empty_captions", 0)
    return f"added {made_by.get('date', '?')} by {model}; {empty:,} are empty"


class Recaptioning(View[Recaptioned | CaptionPrompt]):
    """View of captioning, with its progress, counts and cost."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        if self.given["show_prompt"]:
            yield {}
            return
        with stoppable("captioning") as (bars, self._interrupt):

            def on_progress(now: CaptionProgress) -> None:
                bars.show(None, now.done, now.total, _tokens(now))

            yield {"on_progress": on_progress, "interrupt": self._interrupt}

    def finish(self, result: Recaptioned | CaptionPrompt) -> None:
        if isinstance(result, Recaptioned) and result.about is None and self._interrupt.signal is not None:
            self._say_examples(result)
            text = f"{_reached(result)}; the answers are kept; run the same command to resume"
            leave(self._interrupt.signal, text)
        super().finish(result)

    def _say_examples(self, result: Recaptioned) -> None:
        for source, caption in result.examples.items():
            say(self.console, f"{source}: {caption}", "dim")

    def show(self, result: Recaptioned | CaptionPrompt) -> None:
        store = self.given["store"]
        if isinstance(result, CaptionPrompt):
            sys.stdout.write(result.text + "\n")
        elif result.already_done:
            say(self.console, f"{store}: the captions {result.column} were added before")
        elif result.about is None:
            say(self.console, f"a trial; no captions are added yet: {_reached(result)}. The answers are kept")
            self._say_examples(result)
            say(self.console, "the same command without --limit resumes")
        else:
            identity = result.about.identity[:12]
            say(self.console, f"{store}: captions {result.column} added; {_reached(result)}; sha256 {identity}")
            added = result.about.find_added(result.column)
            assert added is not None
            self._say_notes(store, added)

    def _say_notes(self, store: Path, added: AddedColumn) -> None:
        made_by = added.made_by
        if empty := made_by["empty_captions"]:
            reasons = [f"{count:,} {reason}" for reason, count in made_by["set_aside"].items()]
            if made_by["not_asked"] and not self.given["only_empty"]:
                reasons.append(f"{made_by['not_asked']:,} not asked")
            why = ", ".join(reasons)
            say_note(
                self.console,
                f"{empty:,} captions are empty ({why}); the model's answers are in {store / str(added.journal)}",
            )
        counts = made_by["counts"]
        if changed := [f"{counts[name]:,} were {name}" for name in ("cleaned", "shortened") if counts[name]]:
            say(self.console, f"note: of the answers {', '.join(changed)}")


def _reached(result: Recaptioned) -> str:
    speed = f", {result.new / result.seconds:,.1f} images/s" if result.new else ""
    return f"{result.done:,} images, {result.new:,} of them now{speed}; {_tokens(result)}"


def _tokens(progress: CaptionProgress | Recaptioned) -> str:
    counts = progress.counts
    parts = [f"{counts['input_tokens']:,} + {counts['output_tokens']:,} tokens"]
    parts += [f"cost {progress.cost:.4g}"] if progress.cost is not None else []
    parts += [f"{counts['retried']:,} asked again"] if counts["retried"] else []
    parts += [f"{counts['set_aside']:,} set aside"] if counts["set_aside"] else []
    return " · ".join(parts)
