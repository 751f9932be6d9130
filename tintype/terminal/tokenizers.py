"""Training a small-vae, filling a cache of latents, and the comparison of tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.plan import Plan
from tintype.rows import gigabytes
from tintype.terminal.bars import bars_on, speed_note
from tintype.terminal.lines import number, say
from tintype.tokenizers import train_small_vae
from tintype.tokenizers.fill_cache import fill_cache
from tintype.train.interrupt import watch_signals


def train_vae_with_progress(
    settings: train_small_vae.Training, out: Path, device: torch.device, console: Console
) -> int:
    """Trains a small-vae with a progress bar; returns the exit code."""
    with watch_signals() as interrupt, bars_on(console) as bars:
        bar = bars.add_task("training", total=settings.steps, note="")

        def on_progress(progress: train_small_vae.Progress) -> None:
            speed = speed_note(progress.loss, progress.images_per_s)
            bars.update(bar, completed=progress.step, note=f"step {progress.step} of {settings.steps}{speed}")

        outcome = train_small_vae.train(settings, out, device, interrupt, on_progress)
    if outcome.record is None:
        say(console, f"interrupted: saved at step {outcome.step}; run the same command to go on")
        return interrupt.exit_code
    trained = outcome.record.trained
    state = "was trained before" if outcome.already_done else f"trained {outcome.step} steps"
    quality = f"PSNR {trained['psnr_db']:.2f} dB on {trained['held_out']} held-out pictures"
    say(console, f"{out}: {state}; {quality}")
    if dead := trained["dead_channels"]:
        text = f"note: {len(dead)} of {settings.vae.channels} channels carry nothing; lower kl_weight or vae.channels"
        say(console, text, "yellow")
    return 0


def cache_with_progress(plan: Plan, verify: bool, console: Console, progress: Console) -> int:
    """Fills the cache of a plan's latents with a progress bar; returns the exit code."""
    with watch_signals() as interrupt, bars_on(progress) as bars:
        bar = bars.add_task("encoding", total=None, note="")

        def on_images(done: int, total: int) -> None:
            bars.update(bar, completed=done, total=total, note=f"{done:,} of {total:,} images")

        filled = fill_cache(plan, interrupt, verify, on_images)
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
        say(console, "interrupted: run the same command to go on")
        return interrupt.exit_code
    return 0


def show_tokenizers(result: dict[str, Any], console: Console) -> None:
    images = result["images"]
    names = list(result["tokenizers"][0]["metrics"])
    heads = [name.replace("_", " ") for name in names]
    table = Table("tokenizer", *heads, "in / out", "encode /s", "decode /s")
    table.title = escape(f"{images['count']} pictures of {images['data']} at {images['size_px']} px")
    for row in result["tokenizers"]:
        values = ["exact" if row["exact"] else number(row["metrics"][name]) for name in names]
        speeds = [
            f"{row[key]:,.{0 if row[key] >= 100 else 1}f}" for key in ("encode_images_per_s", "decode_images_per_s")
        ]
        table.add_row(escape(row["name"]), *values, f"{row['compression']:.3g}", *speeds)
    console.print(table)
    for row in result["tokenizers"]:
        for note in row["notes"]:
            say(console, f"note: {row['name']}: {note}", "yellow")
    for note in result["notes"]:
        say(console, f"note: {note}", "dim")
    for name, reason in result["left_out"].items():
        say(console, f"left out: {name}: {reason}", "dim")
