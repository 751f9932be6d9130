"""Show progress and results of the commands that train, save and compare tokenizers, and cache latents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.markup import escape
from rich.table import Table

from tintype.evaluation.train_scene_encoder import TrainedEncoder
from tintype.library.tokenizers import TrainedTokenizer
from tintype.runtime.rows import gigabytes
from tintype.terminal import answers
from tintype.terminal.interrupts import leave
from tintype.terminal.lines import number, say, say_note
from tintype.terminal.progress import Progress, speed_note, stoppable
from tintype.terminal.view import R, View
from tintype.tokenizer_lab.fill_cache import CachedLatents
from tintype.tokenizer_lab.report import TokenizerReport
from tintype.tokenizer_lab.save_tuned import SavedTokenizer
from tintype.train.steps import Progress as StepProgress


class _Steps(View[R]):
    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with stoppable("preparing", unit="steps") as (bars, interrupt):
            yield {"on_progress": partial(_show_step, bars), "interrupt": interrupt}


def _show_step(bars: Progress, now: StepProgress) -> None:
    note = speed_note(now.loss, now.images_per_s) if now.step < now.steps else "measuring"
    bars.show("training", now.step, now.steps, note)


class EncoderTraining(_Steps[TrainedEncoder]):
    """View of the scene encoder's training, whose record is written as JSON with or without `--json`."""

    def show(self, result: TrainedEncoder) -> None:
        answers.put(asdict(result))


class Training(_Steps[TrainedTokenizer]):
    """View of a tokenizer's training, with progress, and then the quality of its reconstructions."""

    def show(self, result: TrainedTokenizer) -> None:
        state = "was trained before" if result.already_done else f"trained {result.steps} steps"
        quality = f"PSNR {result.psnr_db:.2f} dB on {result.held_out} held-out images"
        say(self.console, f"{self.given['out']}: {state}; {quality}")
        for note in result.notes:
            say_note(self.console, note)


class Caching(View[CachedLatents]):
    """View of caching latents, with progress, and then the state of the cache, even after a signal."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with stoppable("encoding") as (bars, self._interrupt):
            yield {"on_progress": bars.count, "interrupt": self._interrupt}

    def finish(self, result: CachedLatents) -> None:
        if (signal := self._interrupt.signal) is not None:
            self.show(result)
            leave(signal, f"{result.there:,} images are cached; run the same command to resume")
        super().finish(result)

    def show(self, result: CachedLatents) -> None:
        is_whole = result.there == result.images
        count = f"{result.images:,}" if is_whole else f"{result.there:,} of {result.images:,}"
        parts = [f"{count} images, {gigabytes(result.size_bytes)}"]
        if result.encoded:
            parts.append(f"{result.encoded:,} encoded at {result.images_per_s:,.1f} images/s")
        else:
            parts.append("all were there" if is_whole else "none encoded")
        if self.given["verify"]:
            parts.append(f"{result.changed:,} images had changed")
        say(self.lines, f"{result.folder}: {'; '.join(parts)}")


class Saving(View[SavedTokenizer]):
    """View of a saved tokenizer, with its step, its statistics, and the settings that use it."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with Progress(f"writing {self.given['out']}"):
            yield {}

    def show(self, result: SavedTokenizer) -> None:
        say(self.console, f"{self.given['out']}: the autoencoder of step {result.step}")
        shown = {"shift": result.statistics.mean, "scale": [1 / std for std in result.statistics.std]}
        for name, numbers in shown.items():
            listed = ", ".join(f"{number:.4g}" for number in numbers)
            say(self.console, f"{name} of its latents: [{listed}]")
        say(self.console, result.words)


class Comparison(View[TokenizerReport]):
    """View of a comparison of tokenizers, with a table, and with the path of the HTML page."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with Progress("loading the tokenizers", kept="no report was written; run the same command again") as bars:
            yield {"on_progress": bars.show}

    def show(self, result: TokenizerReport) -> None:
        images, rows = result.images, result.tokenizers
        names = list(rows[0]["metrics"])
        heads = [name.replace("_", " ") for name in names]
        table = Table("tokenizer", *heads, "in / out", "encode /s", "decode /s")
        table.title = escape(f"{images['count']} images of {images['data']} at {images['size_px']} px")
        for row in rows:
            values = ["exact" if row["exact"] else number(row["metrics"][name]) for name in names]
            speeds = [
                f"{row[key]:,.{0 if row[key] >= 100 else 1}f}" for key in ("encode_images_per_s", "decode_images_per_s")
            ]
            table.add_row(escape(row["name"]), *values, f"{row['compression']:.3g}", *speeds)
        self.console.print(table)
        for row in rows:
            for note in row["notes"]:
                say_note(self.console, f"{row['name']}: {note}")
        for note in result.notes:
            say(self.console, f"note: {note}", "dim")
        for name, reason in result.left_out.items():
            say(self.console, f"left out: {name}: {reason}", "dim")
        say(self.console, str(self.given["out"] / "report.html"))
