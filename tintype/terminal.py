"""What the commands show on the terminal: progress while they work, tables when they are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from tintype.data.recaption import work as recaptioning
from tintype.data.recaption.asking import Captioner
from tintype.data.store.export import Form, export_store, import_options
from tintype.data.store.importing import ImportOptions, import_pictures
from tintype.data.store.importing import Progress as ImportProgress
from tintype.data.store.inspect import Asked, inspect_store, write_skip_list
from tintype.data.store.inspect_html import to_html
from tintype.data.store.layout import Split, open_store
from tintype.data.store.selection import read_skip_list, select
from tintype.data.store.writer import QUARANTINE
from tintype.errors import UserError
from tintype.evaluation.ema_curve import Curve, StoppedError, score_lengths
from tintype.evaluation.protocol import Definition, Protocol, definitions
from tintype.plan import Plan, plan_from_folder
from tintype.rows import gigabytes
from tintype.settings import plain
from tintype.study.prompts import one_kind_note, reads_other_captions
from tintype.study.report import findings
from tintype.study.results import Arm, Comparison, MetricInfo, Results, Trend
from tintype.study.runner import Message
from tintype.study.study import ArmPlan, Study
from tintype.tokenizers import train_small_vae
from tintype.tokenizers.fill_cache import fill_cache
from tintype.train.folder import RunFolder, write_text
from tintype.train.interrupt import Interrupt, watch_signals
from tintype.train.loop import Progress as TrainProgress
from tintype.train.loop import train
from tintype.world import current

_VERDICT_STYLE = {"better": "green", "worse": "red", "not shown": "dim", "sketch": "yellow", "incomplete": "yellow"}


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )


def train_with_progress(plan: Plan, out: Path, console: Console) -> int:
    """Trains with a progress bar; returns the exit code."""
    with watch_signals() as interrupt, _bars(console) as bars:
        bar = bars.add_task("training", total=plan.train.steps, note="")

        def on_progress(progress: TrainProgress) -> None:
            speed = _speed_note(progress.loss, progress.images_per_s)
            bars.update(bar, completed=progress.step, note=f"step {progress.step} of {progress.steps}{speed}")

        outcome = train(plan, out, interrupt, on_progress)
    for event in RunFolder(out).events():
        if event["event"] == "damaged-checkpoint":
            console.print(
                f"note: a damaged checkpoint was set aside as {event['moved_to']} ({event['reason']}); "
                "the one before was used",
                style="yellow",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )
    if outcome.already_done:
        console.print(f"{out} is done: all {outcome.step} steps were trained before", soft_wrap=True, highlight=False)
    elif outcome.finished:
        console.print(f"trained {outcome.step} steps in {out}", soft_wrap=True, highlight=False)
    else:
        console.print(
            f"interrupted: saved at step {outcome.step}; run the same command to go on", soft_wrap=True, highlight=False
        )
        return interrupt.exit_code
    return 0


def _speed_note(loss: float | None, images_per_s: float | None) -> str:
    if loss is None or images_per_s is None:
        return ""
    return f" · loss {loss:.4f} · {images_per_s:.0f} images/s"


def train_vae_with_progress(
    settings: train_small_vae.Training, out: Path, device: torch.device, console: Console
) -> int:
    """Trains a small-vae with a progress bar; returns the exit code."""
    with watch_signals() as interrupt, _bars(console) as bars:
        bar = bars.add_task("training", total=settings.steps, note="")

        def on_progress(progress: train_small_vae.Progress) -> None:
            speed = _speed_note(progress.loss, progress.images_per_s)
            bars.update(bar, completed=progress.step, note=f"step {progress.step} of {settings.steps}{speed}")

        outcome = train_small_vae.train(settings, out, device, interrupt, on_progress)
    if outcome.record is None:
        text = f"interrupted: saved at step {outcome.step}; run the same command to go on"
        console.print(text, soft_wrap=True, highlight=False)
        return interrupt.exit_code
    trained = outcome.record.trained
    state = "was trained before" if outcome.already_done else f"trained {outcome.step} steps"
    quality = f"PSNR {trained['psnr_db']:.2f} dB on {trained['held_out']} held-out pictures"
    console.print(f"{out}: {state}; {quality}", soft_wrap=True, highlight=False, markup=False)
    if dead := trained["dead_channels"]:
        text = f"note: {len(dead)} of {settings.vae.channels} channels carry nothing; lower kl_weight or vae.channels"
        console.print(text, style="yellow", soft_wrap=True, highlight=False)
    return 0


def cache_with_progress(plan: Plan, verify: bool, console: Console, progress: Console) -> int:
    """Fills the cache of a plan's latents with a progress bar; returns the exit code."""
    with watch_signals() as interrupt, _bars(progress) as bars:
        bar = bars.add_task("encoding", total=None, note="")

        def on_images(done: int, total: int) -> None:
            bars.update(bar, completed=done, total=total, note=f"{done:,} of {total:,} images")

        filled = fill_cache(plan, interrupt, verify, on_images)
    number = f"{filled.there:,} of {filled.images:,}" if filled.there < filled.images else f"{filled.images:,}"
    parts = [f"{number} images, {gigabytes(filled.size_bytes)}"]
    if filled.encoded:
        parts.append(f"{filled.encoded:,} encoded at {filled.images_per_s:,.1f} images/s")
    else:
        parts.append("all were there" if filled.there == filled.images else "none encoded")
    if verify:
        parts.append(f"{filled.changed:,} images had changed")
    console.print(f"{filled.folder}: {'; '.join(parts)}", soft_wrap=True, highlight=False, markup=False)
    if interrupt.signal is not None:
        console.print("interrupted: run the same command to go on", soft_wrap=True, highlight=False)
        return interrupt.exit_code
    return 0


def import_with_progress(source: Path, out: Path, options: ImportOptions, console: Console) -> int:
    """Imports pictures into a store with a progress bar; returns the exit code."""
    began, first = time.monotonic(), 0
    with watch_signals() as interrupt, _bars(console) as bars:
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
        text = f"interrupted: {outcome.done:,} records are kept; run the same command to go on"
        console.print(text, soft_wrap=True, highlight=False)
        return interrupt.exit_code
    about, seconds = outcome.about, time.monotonic() - began
    counts = ", ".join(f"{count:,} {split}" for split, count in about.counts.items())
    speed = "" if outcome.already_done else f" ({(outcome.done - first) / seconds:.0f} images/s)"
    state = "was imported before" if outcome.already_done else f"imported in {seconds:.1f} s{speed}"
    size = sum(shard.bytes for shard in about.shards) / 1e6
    text = (
        f"{out}: {state}; {counts}, {size:.1f} MB; captions {', '.join(about.captions)}; sha256 {about.identity[:12]}"
    )
    console.print(text, soft_wrap=True, highlight=False, markup=False)
    if about.quarantined:
        text = f"note: {about.quarantined:,} records were set aside; {out / QUARANTINE} says why of each"
        console.print(text, style="yellow", soft_wrap=True, highlight=False, markup=False)
    for split, count in about.counts.items():
        if not count:
            text = f"note: the split {split} is empty"
            console.print(text, style="yellow", soft_wrap=True, highlight=False)
    return 0


def recaption_with_progress(store: Path, task: recaptioning.Task, captioner: Captioner, console: Console) -> int:
    """Adds captions with a progress bar; returns the exit code."""
    began = time.monotonic()
    with watch_signals() as interrupt, _bars(console) as bars:
        bar = bars.add_task("captioning", total=None, note="")

        def on_progress(progress: recaptioning.Progress) -> None:
            speed = progress.new / max(time.monotonic() - began, 1e-9)
            note = f"{progress.done:,} of {progress.total:,} · {speed:,.1f} images/s · {_tokens(progress)}"
            bars.update(bar, completed=progress.done, total=progress.total, note=note)

        outcome = recaptioning.recaption(store, task, captioner, interrupt, on_progress)
    progress = outcome.progress
    if outcome.already_done:
        console.print(f"{store}: the captions {task.column} were added before", soft_wrap=True, highlight=False)
        return 0
    speed = f", {progress.new / outcome.seconds:,.1f} images/s" if progress.new else ""
    text = f"{progress.done:,} pictures, {progress.new:,} of them now{speed}; {_tokens(progress)}"
    if outcome.about is None:
        state = "interrupted" if interrupt.signal is not None else "a trial; no captions are added yet"
        go_on = "the same command" if interrupt.signal is not None else "the same command without --limit"
        text = f"{state}: {text}. The answers are kept; {go_on} goes on"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        for source, caption in outcome.examples.items():
            console.print(f"{source}: {caption}", soft_wrap=True, highlight=False, markup=False, style="dim")
        return interrupt.exit_code if interrupt.signal is not None else 0
    added = outcome.about.find_added(task.column)
    assert added is not None
    text = f"{store}: captions {task.column} added; {text}; sha256 {outcome.about.identity[:12]}"
    console.print(text, soft_wrap=True, highlight=False, markup=False)
    made_by = added.made_by
    if empty := made_by["empty_captions"]:
        reasons = [f"{count:,} {reason}" for reason, count in made_by["set_aside"].items()]
        reasons += (
            [f"{made_by['not_asked']:,} not asked"] if made_by["not_asked"] and not task.choice.only_empty else []
        )
        text = (
            f"note: {empty:,} captions are empty ({', '.join(reasons)}); {store / str(added.journal)} has the answers"
        )
        console.print(text, style="yellow", soft_wrap=True, highlight=False, markup=False)
    if changed := {name: made_by["counts"][name] for name in ("cleaned", "shortened") if made_by["counts"][name]}:
        text = "note: of the answers " + ", ".join(f"{count:,} were {name}" for name, count in changed.items())
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    return 0


def _tokens(progress: recaptioning.Progress) -> str:
    parts = [f"{progress.input_tokens:,} + {progress.output_tokens:,} tokens"]
    parts += [f"cost {progress.cost:.4g}"] if progress.cost is not None else []
    parts += [f"{progress.retried:,} asked again"] if progress.retried else []
    parts += [f"{progress.aside:,} set aside"] if progress.aside else []
    return " · ".join(parts)


def export_with_progress(store: Path, form: Form, out: Path, split: Split | None, console: Console) -> int:
    """Writes a store's records in another form with a progress bar; returns the exit code."""
    opened = open_store(store)
    with watch_signals() as interrupt, _bars(console) as bars:
        bar = bars.add_task("exporting", total=None, note="")

        def on_progress(done: int, total: int) -> None:
            bars.update(bar, completed=done, total=total, note=f"{done:,} of {total:,}")

        exported = export_store(opened, form, out, split, interrupt, on_progress)
    if exported.stopped:
        console.print("interrupted: nothing was exported", soft_wrap=True, highlight=False)
        return interrupt.exit_code
    files = "1 file" if exported.files == 1 else f"{exported.files:,} files"
    text = (
        f"{out}: {exported.rows:,} records in {files}; `tintype data import {out} {import_options(opened)} --out DIR` "
    )
    console.print(text + "brings them back", soft_wrap=True, highlight=False, markup=False)
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
    with watch_signals() as interrupt, _bars(progress) as bars:
        bar = bars.add_task("looking", total=None, note="")

        def on_progress(done: int, total: int) -> None:
            bars.update(bar, completed=done, total=total, note=f"{done:,} of {total:,}")

        found = inspect_store(opened, selection, asked, lambda: interrupt.signal is not None, on_progress)
    if found is None:
        console.print("interrupted: run the same command to go on", soft_wrap=True, highlight=False)
        return interrupt.exit_code, {}
    if write_skip is not None:
        count = write_skip_list(write_skip, opened, found.groups)
        identity = read_skip_list(write_skip).identity
        text = f"{write_skip}: {count:,} entries; --set data.skip={write_skip} (skip_sha256 {identity[:12]})"
        progress.print(text, soft_wrap=True, highlight=False, markup=False)
    if out is None:
        return 0, found.result
    try:
        write_text(out, to_html(opened, found))
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; choose another --out") from None
    for problem in found.result["problems"]:
        style = "red" if problem["severity"] == "alarm" else "yellow"
        progress.print(problem["title"], style=style, soft_wrap=True, highlight=False, markup=False)
    text = f"{out}: {found.result['records']:,} records in {time.monotonic() - began:.1f} s"
    progress.print(text, soft_wrap=True, highlight=False, markup=False)
    return 0, found.result


@contextmanager
def sampling_progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    with _bars(console) as bars:
        bar = bars.add_task("sampling and scoring", total=None, note="")
        yield lambda done, total: bars.update(bar, completed=done, total=total)


@contextmanager
def image_progress(console: Console) -> Iterator[Callable[[int], None]]:
    with _bars(console) as bars:
        bar = bars.add_task("reading pictures", total=None, note="")
        yield lambda images: bars.advance(bar, images)


@contextmanager
def step_progress(console: Console, steps: int) -> Iterator[Callable[[int, float], None]]:
    with _bars(console) as bars:
        bar = bars.add_task("training", total=steps, note="")
        yield lambda step, loss: bars.update(bar, completed=step + 1, note=f"loss {loss:.4f}")


def show_arms(study: Study, console: Console) -> None:
    """The resolved diff of every arm, before the first step."""
    resolutions = study.by_resolution()
    first = ["resolution"] if len(resolutions) > 1 else []
    table = Table(*first, "arm", "seeds", "what differs from the baseline", title=escape(study.settings.question))
    for arm in (arm for arms in resolutions for arm in arms):
        changes = [f"{key}: {old} → {new}" for key, (old, new) in arm.changes.items()]
        nothing = "nothing (other seeds)" if arm.role == "control" else "–"
        seeds = ", ".join(str(plan.seed) for plan in arm.plans)
        if arm.role == "baseline":
            table.add_section()
        where = [_where(arm)] if first else []
        table.add_row(*where, escape(arm.name), seeds, escape("\n".join(changes) or nothing))
    console.print(table)
    others = [arm.name for arm in study.arms if reads_other_captions(arm.changes)]
    protocol = study.settings.evaluation
    if note := one_kind_note(others, plain(protocol), definitions(protocol, study.of_scenes)):
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True, highlight=False)


def _where(arm: ArmPlan | Arm) -> str:
    """Said once for each resolution, beside its baseline."""
    return f"{arm.resolution}\n{arm.tokens:,} tokens" if arm.role == "baseline" else ""


def ema_with_progress(
    run: Path, lengths: Sequence[float], protocol: Protocol, metric: str, console: Console, device: str | None
) -> tuple[Curve, int]:
    """Scores the lengths with a progress bar; returns what is known of the curve and the exit code."""
    curve = Curve(run, lengths, protocol, metric, of_scenes=plan_from_folder(run).data.of_scenes)
    # Of several ranks none may stop while others wait for it: there a signal ends them all.
    watched = watch_signals() if current().size == 1 else nullcontext(Interrupt())
    with watched as interrupt, _bars(console) as bars:
        bar = bars.add_task("EMA lengths", total=1, note="")

        def on_step(length: float, share: float) -> None:
            if interrupt.signal is not None:
                raise StoppedError
            bars.update(bar, completed=share, note=f"scoring length {length:g}")

        try:
            score_lengths(curve, on_step, device)
        except StoppedError:
            console.print(
                f"interrupted: {len(curve.points)} of {len(lengths)} lengths are done; run the same command to go on",
                highlight=False,
                soft_wrap=True,
            )
    return curve, interrupt.exit_code if interrupt.signal is not None else 0


def show_ema_curve(curve: Curve, console: Console) -> None:
    meaning = curve.meaning
    table = Table("EMA length", f"{meaning.label} ({meaning.direction} is better)", "± sampling", "residual", "")
    table.title = escape(f"{curve.run} at step {curve.step}: weight averages")
    for point in curve.points:
        best = point is curve.best
        row = [f"{point.length:g}", _number(point.value(curve.metric)), _number(point.error(curve.metric), ".2g")]
        note = "best" if best else "" if point.result else "not representable"
        table.add_row(*row, f"{point.residual:.2%}", note, style="green" if best else None)
    console.print(table)
    console.print(
        "residual: the share of the average's profile that the snapshots miss; ± sampling: one standard error",
        highlight=False,
        style="dim",
        soft_wrap=True,
    )


def show_evaluation(title: str, result: dict[str, Any], meanings: Mapping[str, Definition], console: Console) -> None:
    real = result.get("real", {})
    columns = ["metric", "value", "± sampling", *(["on real images"] if real else []), "better"]
    table = Table(*columns, title=escape(title))
    for name, meaning in meanings.items():
        if name not in result["metrics"]:
            continue
        row = [meaning.label, f"{result['metrics'][name]:.4g}", _number(result["errors"].get(name), ".2g")]
        of_real = real.get(name, {})
        table.add_row(*row, *([_number(of_real.get("overall"))] if real else []), meaning.direction)
        if name != "validation_loss":
            for part, value in result.get("details", {}).get(name, {}).items():
                known = [_number(of_real.get(part))] if real else []
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


def show_tokenizers(result: dict[str, Any], console: Console) -> None:
    images = result["images"]
    names = list(result["tokenizers"][0]["metrics"])
    heads = [name.replace("_", " ") for name in names]
    table = Table("tokenizer", *heads, "in / out", "encode /s", "decode /s")
    table.title = escape(f"{images['count']} pictures of {images['data']} at {images['size_px']} px")
    for row in result["tokenizers"]:
        values = ["exact" if row["exact"] else _number(row["metrics"][name]) for name in names]
        speeds = [
            f"{row[key]:,.{0 if row[key] >= 100 else 1}f}" for key in ("encode_images_per_s", "decode_images_per_s")
        ]
        table.add_row(escape(row["name"]), *values, f"{row['compression']:.3g}", *speeds)
    console.print(table)
    for row in result["tokenizers"]:
        for note in row["notes"]:
            text = f"note: {row['name']}: {note}"
            console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)
    for note in result["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True, style="dim")
    for name, reason in result["left_out"].items():
        console.print(f"left out: {name}: {reason}", highlight=False, markup=False, soft_wrap=True, style="dim")


def _number(value: float | None, form: str = ".4g") -> str:
    return "" if value is None else format(value, form)


class StudyDisplay:
    """One bar for the study and one for each run under way; a line for each run that ends."""

    def __init__(self, console: Console, total: int) -> None:
        self._bars = _bars(console)
        self._console = console
        self._shares: dict[tuple[str, int], float] = {}
        self._rows: dict[tuple[str, int], TaskID] = {}
        self._total = total
        self._ended = 0

    def __enter__(self) -> StudyDisplay:
        self._bars.start()
        self._all = self._bars.add_task(f"study, {self._total} runs", total=100 * self._total, note="")
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def on_message(self, message: Message) -> None:
        arm, seed = message.key
        if message.key not in self._rows:
            self._rows[message.key] = self._bars.add_task(f"{escape(arm)} · seed {seed}", total=None, note="")
        row = self._rows[message.key]
        self._shares[message.key] = max(message.share, self._shares.get(message.key, 0.0))
        self._bars.update(self._all, completed=int(100 * sum(self._shares.values())))
        if message.state in ("training", "scoring"):
            note = " · scoring" if message.state == "scoring" else _speed_note(message.loss, message.images_per_s)
            self._bars.update(row, completed=int(100 * message.share), total=100, note=f"step {message.step}{note}")
            return
        self._bars.remove_task(row)
        del self._rows[message.key]
        self._ended += 1
        last_line = message.text.strip().splitlines()[-1] if message.text.strip() else ""
        self._console.print(
            f"[{self._ended}/{self._total}] {arm}, seed {seed}: {message.state} · {last_line}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def show_verdicts(results: Results, console: Console) -> None:
    shown = [metric for metric in results.metrics if metric.primary] or results.metrics[:1]
    title = "Verdicts" if not results.sketch else "Sketch: one seed, no verdicts"
    first = ["resolution"] if results.resolutions else []
    heads = [f"{metric.label} ({metric.direction} is better)" for metric in shown]
    table = Table(*first, "arm", *heads, "other verdicts", title=title)
    others = [metric for metric in results.metrics if metric not in shown]
    for view in results.by_resolution():
        baseline, *arms = view.arms
        means = [_mean_text([run.metrics.get(metric.name) for run in baseline.runs]) for metric in shown]
        table.add_row(*([_where(baseline)] if first else []), "baseline", *means, "")
        for arm in arms:
            cells = [_verdict_text(arm, metric) for metric in shown]
            table.add_row(*[""] * len(first), escape(arm.name), *cells, _other_verdicts(arm.comparisons, others))
        table.add_section()
    console.print(table)
    for arm in results.arms:
        if words := findings.time_words(arm):
            console.print(f"note: {arm.label}: {words}", style="yellow", soft_wrap=True, highlight=False, markup=False)
    if results.trends:
        _show_trends(results, console)


def _show_trends(results: Results, console: Console) -> None:
    counts = list(findings.token_counts(results).values())
    cells: dict[str, list[str]] = {}
    heads: dict[str, None] = {}
    for trend, metric in findings.compared_trends(results):
        heads[f"{metric.label} ({metric.direction} is better)"] = None
        cells.setdefault(trend.arm, []).append(_trend_text(trend, metric))
    title = f"With more tokens: relative effect at {counts[0]:,} → {counts[-1]:,}"
    table = Table("arm", *heads, title=title)
    for arm, row in cells.items():
        table.add_row(escape(arm), *row)
    console.print(table)


def _trend_text(trend: Trend, metric: MetricInfo) -> str:
    style = _VERDICT_STYLE.get(findings.trend_verdict(trend), "yellow")
    words = f"[{style}]{findings.trend_words(trend, metric)}[/]"
    return f"{words} {' → '.join(findings.effects_at_ends(trend))}" if trend.comparison else words


def _mean_text(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.4g}" if known else "–"


def _verdict_text(arm: Arm, metric: MetricInfo) -> str:
    if metric.name in arm.incomparable:
        return f"[yellow]{findings.NOT_COMPARABLE}[/]: {findings.short_reason(arm, metric.name)}"
    row = arm.comparisons.get(metric.name)
    if row is None:
        return "[yellow]no runs to compare[/]"
    interval = f" [{row.low:+.3g}, {row.high:+.3g}]" if row.low is not None and row.high is not None else ""
    style = _VERDICT_STYLE[row.verdict]
    return f"[{style}]{row.verdict}[/] {row.difference:+.3g}{escape(interval)}"


def _other_verdicts(comparisons: dict[str, Comparison], metrics: list[MetricInfo]) -> str:
    lines = []
    for metric in metrics:
        row = comparisons.get(metric.name)
        if row is not None and row.verdict in ("better", "worse"):
            lines.append(f"{metric.label}: [{_VERDICT_STYLE[row.verdict]}]{row.verdict}[/]")
    return "\n".join(lines) or "none"
