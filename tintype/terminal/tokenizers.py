"""Training a tokenizer, filling a cache of latents, and the comparison of tokenizers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.evaluation import train_scene_encoder
from tintype.evaluation.train_scene_encoder import SceneEncoderTraining
from tintype.plan import Plan
from tintype.runtime.rows import gigabytes
from tintype.terminal.interrupts import leave, leave_training
from tintype.terminal.lines import number, say, say_note
from tintype.terminal.progress import Progress, speed_note, stoppable
from tintype.tokenizer_lab import training
from tintype.tokenizer_lab.fill_cache import fill_cache
from tintype.train.steps import Progress as StepProgress


def _show_step(bars: Progress, now: StepProgress) -> None:
    note = speed_note(now.loss, now.images_per_s) if now.step < now.steps else "measuring"
    bars.show("training", now.step, now.steps, note)


def train_tokenizer_with_progress(
    settings: training.TokenizerTraining, out: Path, device: torch.device, console: Console
) -> None:
    """Train a tokenizer and show how far it is."""
    with stoppable("preparing", unit="steps") as (bars, interrupt):
        outcome = training.train_tokenizer(settings, out, device, interrupt, partial(_show_step, bars))
    if outcome.record is None:
        leave_training(interrupt.signal, outcome.step)
    trained = outcome.record.trained
    state = "was trained before" if outcome.already_done else f"trained {outcome.step} steps"
    quality = f"PSNR {trained['psnr_db']:.2f} dB on {trained['held_out']} held-out images"
    say(console, f"{out}: {state}; {quality}")
    if dead := trained["dead_channels"]:
        say_note(console, f"{len(dead)} of the latents' channels carry nothing; {settings.dead_remedy}")


def train_encoder_with_progress(
    settings: SceneEncoderTraining, out: Path, device: torch.device, console: Console
) -> dict[str, Any]:
    """Train the scene encoder, show how far it is, and return its record."""
    with stoppable("preparing", unit="steps") as (bars, interrupt):
        outcome = train_scene_encoder.train(settings, out, str(device), interrupt, partial(_show_step, bars))
    if outcome.record is None:
        leave_training(interrupt.signal, outcome.step)
    return outcome.record


def cache_with_progress(plan: Plan, verify: bool, console: Console) -> None:
    """Fill the cache of a plan's latents and show how far it is."""
    with stoppable("encoding") as (bars, interrupt):
        filled = fill_cache(plan, interrupt, verify, bars.count)
    count = f"{filled.there:,} of {filled.images:,}" if filled.there < filled.images else f"{filled.images:,}"
    parts = [f"{count} images, {gigabytes(filled.size_bytes)}"]
    if filled.encoded:
        parts.append(f"{filled.encoded:,} encoded at {filled.images_per_s:,.1f} images/s")
    else:
        parts.append("all were there" if filled.there == filled.images else "none encoded")
    if verify:
        parts.append(f"{filled.changed:,} images had changed")
    say(console, f"{filled.folder}: {'; '.join(parts)}")
    if interrupt.signal is not None:
        leave(interrupt.signal, f"{filled.there:,} images are cached; run the same command to resume")


def show_tokenizers(result: dict[str, Any], console: Console) -> None:
    images = result["images"]
    names = list(result["tokenizers"][0]["metrics"])
    heads = [name.replace("_", " ") for name in names]
    table = Table("tokenizer", *heads, "in / out", "encode /s", "decode /s")
    table.title = escape(f"{images['count']} images of {images['data']} at {images['size_px']} px")
    for row in result["tokenizers"]:
        values = ["exact" if row["exact"] else number(row["metrics"][name]) for name in names]
        speeds = [
            f"{row[key]:,.{0 if row[key] >= 100 else 1}f}" for key in ("encode_images_per_s", "decode_images_per_s")
        ]
        table.add_row(escape(row["name"]), *values, f"{row['compression']:.3g}", *speeds)
    console.print(table)
    for row in result["tokenizers"]:
        for note in row["notes"]:
            say_note(console, f"{row['name']}: {note}")
    for note in result["notes"]:
        say(console, f"note: {note}", "dim")
    for name, reason in result["left_out"].items():
        say(console, f"left out: {name}: {reason}", "dim")
