"""Show progress and results of the commands that train, sample and score a run, and score its weight averages."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.data.sources import open_held_out
from tintype.evaluation.ema_curve import Curve
from tintype.evaluation.fit import FEWEST_SAMPLES, held_out_note
from tintype.evaluation.images import image_definitions
from tintype.evaluation.progress import Scoring
from tintype.evaluation.protocol import Definition, definitions
from tintype.evaluation.results import EvaluationResult, ImageSetResult, MetricValues
from tintype.library.runs import protocol_for
from tintype.plan import Plan, plan_from_folder
from tintype.plugins.load import given_files
from tintype.terminal import documents
from tintype.terminal.interrupts import leave_training
from tintype.terminal.lines import number, progress_console, say, say_note
from tintype.terminal.progress import Progress, duration, short, speed_note, stoppable
from tintype.terminal.view import View
from tintype.train.divergence import SKIPS
from tintype.train.record import RunRecord
from tintype.train.session import training_device
from tintype.train.speed import images_per_s
from tintype.train.steps import Progress as TrainProgress

if TYPE_CHECKING:
    from tintype.library.runs import Run, Sampled

_SCENE_PROMPT = "a red ball"


class Training(View["Run"]):
    """View of `train`, which shows progress, the results of the training, and the commands to run next."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        plan, out = self.given["plan"], self.given["out"]
        show_warnings(plan, self.lines)
        if not RunRecord(out, plan).is_trained:
            training_device(plan)  # raises errors before a line says that training begins
        self._began_s = time.monotonic()
        with stoppable("preparing", unit="steps") as (bars, self._interrupt):

            def on_progress(now: TrainProgress) -> None:
                bars.show("training", now.step, now.steps, speed_note(now.loss, now.images_per_s))

            def on_wait(text: str) -> None:
                say(progress_console, text, "yellow")

            yield {"on_progress": on_progress, "on_wait": on_wait, "interrupt": self._interrupt}

    def finish(self, result: Run) -> None:
        record = RunRecord(result.path, result.plan)
        _show_events(record, result.step, self.lines)
        if not result.finished:
            leave_training(self._interrupt.signal, result.step)
        super().finish(result)

    def show(self, result: Run) -> None:
        out, first_step = self.given["out"], result.step - result.trained
        if not result.trained:
            say(self.console, f"{out} is done: all {result.step} steps were trained before")
        else:
            lines = [line for line in RunRecord(out, result.plan).lines if line["step"] > first_step]
            say(self.console, _trained_words(out, result.step, lines, time.monotonic() - self._began_s))
        say_next(result.plan, out, self.console)

    def document(self, result: Run) -> documents.Trained:
        return documents.Trained(
            folder=str(self.given["out"]), plan=result.plan.hash, step=result.step, already_done=not result.trained
        )


def _show_events(record: RunRecord, step: int, console: Console) -> None:
    """Print which steps were skipped, which files were damaged, and how these files were restored."""
    if skipped := sum(event["event"] in SKIPS for event in record.events):
        say_note(console, f"{skipped} of {step} steps were skipped; {record.events_file.name} lists them")
    for event in record.events:
        if event["event"] == "damaged-checkpoint":
            aside = f"a damaged checkpoint was set aside as {event['moved_to']} ({event['reason']})"
            say_note(console, f"{aside}; the previous checkpoint was used")
        elif event["event"] == "damaged-file":
            restored = "was damaged and is restored as far as it can be"
            say_note(console, f"{event['file']} {restored}: {event['reason']}")


def _trained_words(out: Path, steps: int, lines: Sequence[dict[str, Any]], seconds: float) -> str:
    """Return a sentence on the finished training.

    `lines` are those of this command only: an earlier one may have had another speed on another machine.
    """
    last = lines[-1] if lines else {}
    loss = f"final loss {last['loss']:.4f}" if last.get("loss") is not None else ""
    speed = f"{short(images_per_s(lines))} images/s" if lines else ""
    return ", ".join(filter(None, [f"trained {steps:,} steps in {out}: {loss}", duration(seconds), speed]))


def show_warnings(plan: Plan, console: Console) -> None:
    for text in plan.warnings:
        say(console, f"warning: {text}", "yellow")


def say_next(plan: Plan, out: Path, console: Console) -> None:
    """Print commands for a trained run, and name the commands for which the run's data is too small."""
    command = " ".join(["tintype", *(f"--plugin {shlex.quote(str(file))}" for file in given_files())])
    run, evaluate = shlex.quote(str(out)), f", or {command} evaluate {shlex.quote(str(out))}"
    if not plan.data.of_scenes and plan.data.at_hand:
        held_out = len(open_held_out(plan.data, 1, torch.device("cpu"), shaped=True))
        if note := held_out_note(held_out):
            say_note(console, note)
        evaluate = evaluate if held_out >= FEWEST_SAMPLES else ""
    prompt = _SCENE_PROMPT if plan.data.of_scenes else "PROMPT"
    say(console, f'next: {command} sample {run} "{prompt}"{evaluate}')


class Sampling(View["Sampled"]):
    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        kept = f"images of whole batches are in {self.given['out']}; run the same command again"
        with Progress("loading the run", kept=kept) as bars:
            yield {"on_progress": lambda done, total: bars.show("sampling", done, total)}

    def show(self, result: Sampled) -> None:
        first = Path(result.images[0]).name
        numbers = "" if first.startswith("0000") else f"; from {first}, after those that were there"
        say(self.console, f"images: {len(result.images)}, all on {result.sheet}{numbers}")


class Scores(View["MetricValues"]):
    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        run, images = self.given["run"], self.given["images"]
        kept, first = "features of the reference are cached once they are whole; run the same command again", images
        if run is not None:
            kept = f"whole shards of sampled images are in {run / 'evaluation'}; run the same command to resume"
            say(progress_console, f"protocol: {protocol_for(run, self.given['settings'])[1]}")
        with Progress("loading the run" if run is not None else f"reading {first}", kept=kept) as bars:

            def report(now: Scoring) -> None:
                bars.show(now.doing, now.done, now.total)

            yield {"on_progress": report}

    def show(self, result: MetricValues) -> None:
        if isinstance(result, EvaluationResult):
            size = "" if result.size_px is None else f", images of {result.size_px} px"
            title = f"{self.given['run']} at step {result.step} ({result.weights} weights{size})"
            meanings = definitions(result.protocol, plan_from_folder(self.given["run"]).data.of_scenes)
        elif isinstance(result, ImageSetResult):
            counts = f"{result.images.count:,} against {result.reference.count:,} images"
            title = f"{self.given['images']} against {self.given['reference']}: {counts}"
            meanings = image_definitions(result.protocol)
        show_evaluation(title, result, meanings, self.console)

    def document(self, result: MetricValues) -> documents.Scores:
        return documents.Scores.model_validate(result.dump())


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
        text = f"copies ({name}): {copies.words}; {copies.captions} training captions were used as prompts"
        say(console, f"{text}; nearest pairs: {where}/copy-{name}-*.png" if copies.pairs else text)
    for warning in result.warnings:
        console.print(f"note: {warning}", highlight=False, markup=False, style="yellow")
    if of_run and of_run.time_split:
        shares = ", ".join(f"{part} {share:.0%}" for part, share in of_run.time_split.items())
        console.print(f"training time by part: {shares}", highlight=False)


class Lengths(View[Curve]):
    """View of `ema`, which shows the progress of scoring and the curve, also of an interrupted command."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        curve: Curve | None = None
        say(progress_console, f"protocol: {protocol_for(self.given['run'], self.given['settings'])[1]}")

        def kept() -> str:
            counts = f"{len(curve.points)} of {len(curve.lengths)} lengths are scored; " if curve else ""
            return f"{counts}run the same command to resume"

        with Progress("scoring EMA lengths", unit="lengths", kept=kept) as bars:

            def on_begin(begun: Curve) -> None:
                nonlocal curve
                curve = begun

            def on_progress(length: float, now: Scoring) -> None:
                total = len(curve.lengths) if curve else 0
                images = f", {now.done:.0f} of {now.total} images" if now.total else ""
                bars.show(None, now.share * total, total, note=f"length {length:g}: {now.doing}{images}")

            try:
                yield {"on_begin": on_begin, "on_progress": on_progress}
            except BaseException:
                if curve is not None and curve.points:
                    self.finish(curve)
                raise

    def show(self, result: Curve) -> None:
        show_ema_curve(result, self.console)

    def document(self, result: Curve) -> documents.EmaCurve:
        return documents.EmaCurve.model_validate(result.as_json())


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
