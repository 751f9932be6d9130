"""Progress and results of training and scoring a run, and of its weight averages."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.data.sources import open_held_out
from tintype.evaluation.ema_curve import Curve, score_lengths
from tintype.evaluation.fit import FEWEST_SAMPLES, held_out_note
from tintype.evaluation.progress import Scoring
from tintype.evaluation.protocol import Definition
from tintype.evaluation.results import EvaluationResult, MetricValues
from tintype.library.runs import train
from tintype.plan import Plan
from tintype.plugins.load import given_files
from tintype.terminal.answers import answer
from tintype.terminal.interrupts import leave_training
from tintype.terminal.lines import number, progress_console, say, say_note
from tintype.terminal.progress import Progress, duration, short, speed_note, stoppable
from tintype.train.divergence import SKIPS
from tintype.train.record import RunRecord
from tintype.train.session import training_device
from tintype.train.speed import images_per_s
from tintype.train.steps import Progress as TrainProgress

_SCENE_PROMPT = "a red ball"


def train_with_progress(plan: Plan, out: Path, console: Console) -> None:
    """Train, show how far it is, and print what was reached and what to do next."""
    show_warnings(plan, console)
    if not RunRecord(out, plan).is_trained:
        training_device(plan)  # refuses before a line says that it trains
    began_s, first_step = time.monotonic(), plan.train.steps  # where it was done before, nothing is reported
    with stoppable("preparing", unit="steps") as (bars, interrupt):

        def on_progress(now: TrainProgress) -> None:
            nonlocal first_step
            first_step = now.step if now.loss is None else first_step
            bars.show("training", now.step, now.steps, speed_note(now.loss, now.images_per_s))

        def on_wait(text: str) -> None:
            say(progress_console, text, "yellow")

        run = train(plan, out, on_progress=on_progress, on_wait=on_wait, interrupt=interrupt)
    record = RunRecord(out, plan)
    if skipped := sum(event["event"] in SKIPS for event in record.events):
        say_note(console, f"{skipped} of {run.step} steps were skipped: {record.events_file.name} says which")
    for event in record.events:
        if event["event"] == "damaged-checkpoint":
            aside = f"a damaged checkpoint was set aside as {event['moved_to']} ({event['reason']})"
            say_note(console, f"{aside}; the one before was used")
        elif event["event"] == "damaged-file":
            restored = "was damaged and is restored as far as it can be"
            say_note(console, f"{event['file']} {restored}: {event['reason']}")
    if not run.finished:
        leave_training(interrupt.signal, run.step)
    answer(folder=str(out), plan=plan.hash, step=run.step, already_done=first_step == run.step)
    if first_step == run.step:
        say(console, f"{out} is done: all {run.step} steps were trained before")
    else:
        lines = [line for line in record.lines if line["step"] > first_step]
        say(console, _trained_words(out, run.step, lines, time.monotonic() - began_s))
    say_next(plan, out, console)


def _trained_words(out: Path, steps: int, lines: Sequence[dict[str, Any]], seconds: float) -> str:
    """`lines` are those of this command: the speed of an earlier one may be another machine's."""
    last = lines[-1] if lines else {}
    loss = f"final loss {last['loss']:.4f}" if last.get("loss") is not None else ""
    speed = f"{short(images_per_s(lines))} images/s" if lines else ""
    return ", ".join(filter(None, [f"trained {steps:,} steps in {out}: {loss}", duration(seconds), speed]))


def show_warnings(plan: Plan, console: Console) -> None:
    for text in plan.warnings:
        say(console, f"warning: {text}", "yellow")


def say_next(plan: Plan, out: Path, console: Console) -> None:
    """Name the commands that work on a trained run, and what its data is too small for."""
    command = " ".join(["tintype", *(f"--plugin {shlex.quote(str(file))}" for file in given_files())])
    run, evaluate = shlex.quote(str(out)), f", or {command} evaluate {shlex.quote(str(out))}"
    if not plan.data.of_scenes and plan.data.at_hand:
        held_out = len(open_held_out(plan.data, 1, torch.device("cpu"), shaped=True))
        if note := held_out_note(held_out):
            say_note(console, note)
        evaluate = evaluate if held_out >= FEWEST_SAMPLES else ""
    prompt = _SCENE_PROMPT if plan.data.of_scenes else "PROMPT"
    say(console, f'next: {command} sample {run} "{prompt}"{evaluate}')


def show_evaluation(title: str, result: MetricValues, meanings: Mapping[str, Definition], console: Console) -> None:
    of_run = result if isinstance(result, EvaluationResult) else None
    real = of_run.real if of_run else {}
    columns = ["metric", "value", "± sampling", *(["on real images"] if real else []), "better"]
    table = Table(*columns, title=escape(title))
    for name, meaning in meanings.items():
        if name not in result.metrics:
            continue
        row = [meaning.label, f"{result.metrics[name]:.4g}", number(result.errors.get(name), ".2g")]
        of_real = real.get(name, {})
        table.add_row(*row, *([number(of_real.get("overall"))] if real else []), meaning.direction)
        details = of_run.details.get(name, {}) if of_run else {}
        if meaning.metric.shows_parts or (of_run and of_run.protocol.shaped):
            for part, value in details.items():
                known = [number(of_real.get(part))] if real else []
                table.add_row(f"  {escape(part)}", f"{value:.4g}", "", *known, "", style="dim")
    console.print(table)
    console.print("± sampling: one standard error, over other images of the same making", highlight=False, style="dim")
    for name, encoder in result.encoders.items():
        text = f"{name} {encoder.identity[:12]}: {encoder.definition}"
        console.print(text, highlight=False, markup=False, style="dim")
    for name, copies in of_run.copies.items() if of_run else ():
        where = Path(copies.pairs[0].image).parent if copies.pairs else ""
        text = f"copies ({name}): {copies.words}; {copies.captions} training captions asked"
        say(console, f"{text}; nearest pairs: {where}/copy-{name}-*.png" if copies.pairs else text)
    for warning in result.warnings:
        console.print(f"note: {warning}", highlight=False, markup=False, style="yellow")
    if of_run and of_run.time_split:
        shares = ", ".join(f"{part} {share:.0%}" for part, share in of_run.time_split.items())
        console.print(f"training time by part: {shares}", highlight=False)


def score_lengths_with_progress(curve: Curve, device: str | None, threads: int | None = None) -> None:
    """Score the lengths of a curve and show how far it is."""

    def kept() -> str:
        return f"{len(curve.points)} of {len(curve.lengths)} lengths are scored; run the same command to resume"

    with Progress("scoring EMA lengths", len(curve.lengths), "lengths", kept=kept) as bars:

        def on_progress(length: float, now: Scoring) -> None:
            images = f", {now.done:.0f} of {now.total} images" if now.total else ""
            bars.show(None, now.share * len(curve.lengths), note=f"length {length:g}: {now.doing}{images}")

        score_lengths(curve, on_progress, device, threads)


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
    residual = "the share of the average's profile that the snapshots miss"
    say(console, f"residual: {residual}; ± sampling: one standard error", "dim")
