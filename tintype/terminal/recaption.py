"""Adding captions to a store."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tintype.data.recaption import work as recaptioning
from tintype.data.recaption.asking import Captioner
from tintype.runtime.interrupt import watch_signals
from tintype.terminal.interrupts import leave
from tintype.terminal.lines import say
from tintype.terminal.progress import Progress


def recaption_with_progress(store: Path, task: recaptioning.Task, captioner: Captioner, console: Console) -> None:
    """Add captions and show how far it is."""
    with watch_signals() as interrupt, Progress("captioning", interrupt=interrupt) as bars:

        def on_progress(now: recaptioning.Progress) -> None:
            bars.show(None, now.done, now.total, _tokens(now))

        outcome = recaptioning.recaption(store, task, captioner, interrupt, on_progress)
    reached = outcome.progress
    if outcome.already_done:
        say(console, f"{store}: the captions {task.column} were added before")
        return
    speed = f", {reached.new / outcome.seconds:,.1f} images/s" if reached.new else ""
    text = f"{reached.done:,} images, {reached.new:,} of them now{speed}; {_tokens(reached)}"
    if outcome.about is None:
        if interrupt.signal is None:
            say(console, f"a trial; no captions are added yet: {text}. The answers are kept")
        for source, caption in outcome.examples.items():
            say(console, f"{source}: {caption}", "dim")
        if interrupt.signal is not None:
            leave(interrupt.signal, f"{text}; the answers are kept, run the same command to resume")
        say(console, "the same command without --limit resumes")
        return
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


def _tokens(progress: recaptioning.Progress) -> str:
    parts = [f"{progress.input_tokens:,} + {progress.output_tokens:,} tokens"]
    parts += [f"cost {progress.cost:.4g}"] if progress.cost is not None else []
    parts += [f"{progress.retried:,} asked again"] if progress.retried else []
    parts += [f"{progress.aside:,} set aside"] if progress.aside else []
    return " · ".join(parts)
