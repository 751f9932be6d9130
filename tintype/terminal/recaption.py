"""Adding captions to a store."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from tintype.data.recaption import work as recaptioning
from tintype.data.recaption.asking import Captioner
from tintype.terminal.bars import bars_on
from tintype.terminal.lines import say
from tintype.train.interrupt import watch_signals


def recaption_with_progress(store: Path, task: recaptioning.Task, captioner: Captioner, console: Console) -> int:
    """Adds captions with a progress bar; returns the exit code."""
    began = time.monotonic()
    with watch_signals() as interrupt, bars_on(console) as bars:
        bar = bars.add_task("captioning", total=None, note="")

        def on_progress(progress: recaptioning.Progress) -> None:
            speed = progress.new / max(time.monotonic() - began, 1e-9)
            note = f"{progress.done:,} of {progress.total:,} · {speed:,.1f} images/s · {_tokens(progress)}"
            bars.update(bar, completed=progress.done, total=progress.total, note=note)

        outcome = recaptioning.recaption(store, task, captioner, interrupt, on_progress)
    progress = outcome.progress
    if outcome.already_done:
        say(console, f"{store}: the captions {task.column} were added before")
        return 0
    speed = f", {progress.new / outcome.seconds:,.1f} images/s" if progress.new else ""
    text = f"{progress.done:,} pictures, {progress.new:,} of them now{speed}; {_tokens(progress)}"
    if outcome.about is None:
        state = "interrupted" if interrupt.signal is not None else "a trial; no captions are added yet"
        go_on = "the same command" if interrupt.signal is not None else "the same command without --limit"
        say(console, f"{state}: {text}. The answers are kept; {go_on} goes on")
        for source, caption in outcome.examples.items():
            say(console, f"{source}: {caption}", "dim")
        return interrupt.exit_code if interrupt.signal is not None else 0
    added = outcome.about.find_added(task.column)
    assert added is not None
    say(console, f"{store}: captions {task.column} added; {text}; sha256 {outcome.about.identity[:12]}")
    made_by = added.made_by
    if empty := made_by["empty_captions"]:
        reasons = [f"{count:,} {reason}" for reason, count in made_by["set_aside"].items()]
        reasons += (
            [f"{made_by['not_asked']:,} not asked"] if made_by["not_asked"] and not task.choice.only_empty else []
        )
        text = (
            f"note: {empty:,} captions are empty ({', '.join(reasons)}); {store / str(added.journal)} has the answers"
        )
        say(console, text, "yellow")
    if changed := {name: made_by["counts"][name] for name in ("cleaned", "shortened") if made_by["counts"][name]}:
        text = "note: of the answers " + ", ".join(f"{count:,} were {name}" for name, count in changed.items())
        say(console, text)
    return 0


def _tokens(progress: recaptioning.Progress) -> str:
    parts = [f"{progress.input_tokens:,} + {progress.output_tokens:,} tokens"]
    parts += [f"cost {progress.cost:.4g}"] if progress.cost is not None else []
    parts += [f"{progress.retried:,} asked again"] if progress.retried else []
    parts += [f"{progress.aside:,} set aside"] if progress.aside else []
    return " · ".join(parts)
