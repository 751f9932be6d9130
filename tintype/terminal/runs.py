"""Training, scoring and the weight averages of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.data.sources import open_held_out
from tintype.evaluation.data import held_out_note
from tintype.evaluation.ema_curve import Curve, StoppedError, score_lengths
from tintype.evaluation.protocol import Definition, Protocol
from tintype.plan import Plan, plan_from_folder
from tintype.terminal.bars import bars_on, speed_note
from tintype.terminal.lines import number, say
from tintype.train.folder import RunFolder
from tintype.train.interrupt import Interrupt, watch_signals
from tintype.train.loop import Progress as TrainProgress
from tintype.train.loop import train
from tintype.world import current


def train_with_progress(plan: Plan, out: Path, console: Console) -> int:
    """Trains with a progress bar; returns the exit code."""
    show_warnings(plan, console)
    with watch_signals() as interrupt, bars_on(console) as bars:
        bar = bars.add_task("training", total=plan.train.steps, note="")

        def on_progress(progress: TrainProgress) -> None:
            speed = speed_note(progress.loss, progress.images_per_s)
            bars.update(bar, completed=progress.step, note=f"step {progress.step} of {progress.steps}{speed}")

        outcome = train(plan, out, interrupt, on_progress)
    for event in RunFolder(out).events():
        if event["event"] == "damaged-checkpoint":
            say(
                console,
                f"note: a damaged checkpoint was set aside as {event['moved_to']} ({event['reason']}); "
                "the one before was used",
                "yellow",
            )
    if outcome.already_done:
        say(console, f"{out} is done: all {outcome.step} steps were trained before")
    elif outcome.finished:
        say(console, f"trained {outcome.step} steps in {out}")
        say_next(plan, out, console)
    else:
        say(console, f"interrupted: saved at step {outcome.step}; run the same command to go on")
        return interrupt.exit_code
    return 0


def show_warnings(plan: Plan, console: Console, arm: str = "") -> None:
    """Prints what is probably not meant in a plan, with the name of the arm that has it."""
    for text in plan.warnings:
        say(console, f"warning: {f'{arm}: ' if arm else ''}{text}", "yellow")


def say_next(plan: Plan, out: Path, console: Console) -> None:
    """Name the commands that work on a trained run, and what its data is too small for."""
    folder = shlex.quote(str(out))
    note = ""
    if not plan.data.of_scenes and plan.data.at_hand:
        note = held_out_note(len(open_held_out(plan.data, 1, torch.device("cpu"))))
    if note:
        say(console, f"note: {note}", "yellow")
    say(console, f'next: tintype evaluate {folder}, or tintype sample {folder} "PROMPT" --out DIR')


def show_evaluation(title: str, result: dict[str, Any], meanings: Mapping[str, Definition], console: Console) -> None:
    real = result.get("real", {})
    columns = ["metric", "value", "± sampling", *(["on real images"] if real else []), "better"]
    table = Table(*columns, title=escape(title))
    for name, meaning in meanings.items():
        if name not in result["metrics"]:
            continue
        row = [meaning.label, f"{result['metrics'][name]:.4g}", number(result["errors"].get(name), ".2g")]
        of_real = real.get(name, {})
        table.add_row(*row, *([number(of_real.get("overall"))] if real else []), meaning.direction)
        if name != "validation_loss":
            for part, value in result.get("details", {}).get(name, {}).items():
                known = [number(of_real.get(part))] if real else []
                table.add_row(f"  {escape(part)}", f"{value:.4g}", "", *known, "", style="dim")
    console.print(table)
    console.print("± sampling: one standard error, over other images of the same making", highlight=False, style="dim")
    for name, encoder in result["encoders"].items():
        text = f"{name} {encoder['identity'][:12]}: {encoder['definition']}"
        console.print(text, highlight=False, markup=False, style="dim")
    for warning in result["warnings"]:
        console.print(f"note: {warning}", highlight=False, markup=False, style="yellow")
    if result.get("time_split"):
        shares = ", ".join(f"{part} {share:.0%}" for part, share in result["time_split"].items())
        console.print(f"training time by part: {shares}", highlight=False)


def ema_with_progress(
    run: Path, lengths: Sequence[float], protocol: Protocol, metric: str, console: Console, device: str | None
) -> tuple[Curve, int]:
    """Scores the lengths with a progress bar; returns what is known of the curve and the exit code."""
    curve = Curve(run, lengths, protocol, metric, of_scenes=plan_from_folder(run).data.of_scenes)
    # Of several ranks none may stop while others wait for it: there a signal ends them all.
    watched = watch_signals() if current().size == 1 else nullcontext(Interrupt())
    with watched as interrupt, bars_on(console) as bars:
        bar = bars.add_task("EMA lengths", total=1, note="")

        def on_step(length: float, share: float) -> None:
            if interrupt.signal is not None:
                raise StoppedError
            bars.update(bar, completed=share, note=f"scoring length {length:g}")

        try:
            score_lengths(curve, on_step, device)
        except StoppedError:
            say(
                console,
                f"interrupted: {len(curve.points)} of {len(lengths)} lengths are done; run the same command to go on",
            )
    return curve, interrupt.exit_code if interrupt.signal is not None else 0


def show_ema_curve(curve: Curve, console: Console) -> None:
    meaning = curve.meaning
    table = Table("EMA length", f"{meaning.label} ({meaning.direction} is better)", "± sampling", "residual", "")
    table.title = escape(f"{curve.run} at step {curve.step}: weight averages")
    for point in curve.points:
        best = point is curve.best
        row = [f"{point.length:g}", number(point.value(curve.metric)), number(point.error(curve.metric), ".2g")]
        note = "best" if best else "" if point.result else "not representable"
        table.add_row(*row, f"{point.residual:.2%}", note, style="green" if best else None)
    console.print(table)
    say(
        console,
        "residual: the share of the average's profile that the snapshots miss; ± sampling: one standard error",
        "dim",
    )
