"""Progress and results of a study: its arms before the first step, its running runs, its verdicts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.bench.expect import expected_seconds
from tintype.errors import UserError
from tintype.evaluation.protocol import definitions
from tintype.metrics.table import TRAINING_METRICS
from tintype.runtime.interrupt import Interrupt
from tintype.settings import plain
from tintype.study.bank import read_bank, serve, take_bank
from tintype.study.costs import Cost, cost_of, minutes, seconds_here
from tintype.study.lab import (
    StudyOutcome,
    StudyProgress,
    StudyReport,
    missing_files,
    plan_replication,
    plan_replication_from,
    prepare_study,
    replicate_from,
    replicate_study,
    report_study,
    run_study,
    work_on_study,
)
from tintype.study.launch.launcher import Crew, Launcher
from tintype.study.looks import DECIDED, SeedPlan, listed_seeds
from tintype.study.numbers import compared_mean, primary_metrics, token_counts
from tintype.study.priority import priorities
from tintype.study.prompts import one_kind_note, reads_other_captions
from tintype.study.replicate import Claim
from tintype.study.report import priority
from tintype.study.report.findings import (
    REPLICATION_HEADS,
    cost_rows,
    effects_at_ends,
    memory_words,
    replication_rows,
    step_words,
)
from tintype.study.results import Arm, StudyResults
from tintype.study.rows import TOO_FEW_SEEDS, Row
from tintype.study.runner import ENDED, Message
from tintype.study.search import range_of, words_of
from tintype.study.study import ArmPlan, Study
from tintype.study.supervisor import Jobs, most_of, parse_jobs
from tintype.terminal.answers import answer
from tintype.terminal.interrupts import leave
from tintype.terminal.lines import VERDICT_STYLE, number, progress_console, say, say_note
from tintype.terminal.progress import Progress, speed_note
from tintype.wording import rendered


def run_with_progress(
    study: Study,
    out: Path,
    jobs: Jobs,
    console: Console,
    argv: Sequence[str] = (),
    budget_s: float | None = None,
    like: Path | None = None,
) -> int:
    """Run a study and show its progress, its failures and its verdicts. Return the exit code."""
    return _show_outcome(run_study(study, out, jobs, ShownProgress(console), argv, budget_s, like), console)


def replicate_with_progress(out: Path, seeds: int, jobs: Jobs, console: Console, argv: Sequence[str] = ()) -> int:
    """Replicate a study's verdicts and show what fresh seeds say of them. Return the exit code."""
    return _show_outcome(replicate_study(out, seeds, jobs, ShownProgress(console), argv), console)


def replicate_from_with_progress(
    out: Path, other: Path, dry_run: bool, console: Console, argv: Sequence[str] = ()
) -> None:
    """Hold a study's verdicts against the runs of a finished one, and show what they say; or, dry, which they are."""
    progress = ShownProgress(console)
    if not dry_run:
        show_report(replicate_from(out, other, progress, argv), console)
        return
    planned = plan_replication_from(out, other, progress)
    _show_claims(planned.fresh.seeds, planned.claims, planned.results, console)
    arms = "; ".join(arm.label for arm in planned.fresh.study.arms)
    say(console, f"fresh seeds of {planned.source}: {listed_seeds(planned.fresh.seeds)}, for {arms}; nothing is run")


def _show_claims(seeds: list[int], claims: Sequence[Claim], results: StudyResults, console: Console) -> None:
    """Show the verdicts that fresh seeds will hold or not."""
    answer(seeds=seeds, claims=[{"arm": one.arm, "metric": one.metric, "verdict": one.verdict} for one in claims])
    labels = {metric.name: metric.label for metric in results.metrics}
    table = Table("arm", "metric", "verdict to hold against fresh seeds")
    for claim in claims:
        table.add_row(escape(claim.arm), escape(labels[claim.metric]), claim.verdict)
    console.print(table)


def show_replication(out: Path, seeds: int, jobs: Jobs, console: Console) -> None:
    """Show the verdicts that a replication would hold against fresh seeds, and what its runs take."""
    planned = plan_replication(out, seeds, ShownProgress(console))
    _show_claims(planned.seeds, planned.claims, planned.results, console)
    say(
        console, f"fresh seeds: {listed_seeds(planned.seeds)}, for {'; '.join(arm.label for arm in planned.study.arms)}"
    )
    tuned = planned.study.settings.model_copy(update={"tune": {}})  # the study's own choices are used
    fresh = replace(planned.study, settings=tuned)
    with Progress("estimating the time", kept="nothing was measured; run the same command again"):
        cost = cost_of(
            fresh, planned.folder, None, most_of(jobs), lambda: seconds_here(planned.results) or expected_seconds(fresh)
        )
    show_cost(cost, console)


def prepare_with_progress(study: Study, out: Path, console: Console, argv: Sequence[str] = ()) -> None:
    """Make the folder of a study for workers, and say how they are started."""
    prepare_study(study, out, ShownProgress(console), argv)
    say(console, f"{out} is ready: start any number of `tintype work {quote(str(out))}`, here or on other machines")


def work_with_progress(
    out: Path, console: Console, run: str | None, wait: bool, expiry_s: float, jobs: Jobs = 1
) -> None:
    """Work on a study and show the progress of the runs that its workers take."""
    jobs = 1 if run is not None else jobs
    outcome = work_on_study(out, ShownProgress(console), run, wait, expiry_s, jobs)
    who = "this worker" if jobs == 1 else "these workers"
    done = f"{outcome.done} of the {len(outcome.last)} runs that {who} took are done"
    if outcome.signal is None and outcome.spent:
        say(console, f"{done}; the GPU failed or its memory ran out, so the worker starts again in a new process")
        os.execv(sys.executable, [sys.executable, "-m", "tintype", *sys.argv[1:]])
    if outcome.signal is not None:
        leave(signal.SIGTERM, f"{done}, what it had begun is saved; another worker resumes it")
    say(console, f"{done}; `tintype status {quote(str(out))}` shows all" if outcome.last else "nothing is left")


def launch_workers(crew: Crew, launcher: Launcher, console: Console) -> None:
    """Start workers elsewhere, and say what was started and how to follow it."""
    _check_folder(crew.study)
    if crew.jobs:
        parse_jobs(crew.jobs)
    for line in launcher.launch(crew):
        say(console, line)
    say(console, f"`tintype status {quote(str(crew.study))} --watch` shows how far they are")


def _check_folder(out: Path) -> None:
    if not (out / "study.yaml").is_file():
        raise UserError(f"{out} holds no study", "`tintype ablate STUDY --out DIR --prepare` makes one to work on")


def _show_outcome(outcome: StudyOutcome, console: Console) -> int:
    failed = [
        f"{arm}, seed {seed}: {message.state}"
        for (arm, seed), message in outcome.last.items()
        if message in outcome.failed
    ]
    answer(done=outcome.done, total=outcome.total, failed=failed, no_report=outcome.no_report, left=outcome.left)
    if outcome.report is None:
        say(console, f"no report: {outcome.no_report}", "yellow")
    else:
        show_report(outcome.report, console)
    if outcome.left:
        say(console, f"{outcome.left}; run the same command with a larger --budget, or none, to go on", "yellow")
    if outcome.interrupted:
        kept = f"{outcome.done} of {outcome.total} runs are done, those that had begun are saved"
        leave(outcome.signal or signal.SIGTERM, f"{kept}; run the same command to resume")
    return 1 if outcome.failed else 0


def report_with_progress(out: Path, console: Console, without_data: bool = False) -> None:
    """Write a study's report again and show its verdicts."""
    show_report(report_study(out, ShownProgress(console), without_data), console)
    if without_data:
        say_note(
            console,
            "report.* and results.* are without images and captions of the data, and without paths of this machine; "
            f"{out / 'real'} and {out / 'runs'} still have them, study.yaml and the baselines still name paths",
        )


def show_report(report: StudyReport, console: Console) -> None:
    page, results = report.page.resolve(), report.results
    answer(
        report=str(page),
        results=str(page.with_name("results.json")),
        verdicts=[row.data for row in results.rows()],
        notes=[note.data for note in results.notes()],
        costs=cost_rows(results),
        priority=[row.row for row in priorities(results)],
    )
    show_verdicts(results, console)
    say(console, f"report: {page}")


class ShownProgress(StudyProgress):
    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def phase(self, doing: str, kept: str) -> Iterator[Callable[[str], None]]:
        with Progress(doing, kept=kept) as bars:
            yield bars.show

    @contextmanager
    def runs(self, total: int, interrupt: Interrupt, doing: str = "study") -> Iterator[Callable[[Message], None]]:
        with StudyDisplay(self._console, total, interrupt, doing) as display:
            yield display.on_message
        for message in display.failed:
            arm, seed = message.key
            say(self._console, f"{message.state}: {arm}, seed {seed}: {_last_line(message)}", "red")

    def note(self, text: str) -> None:
        say(progress_console, f"note: {rendered(text)}")


def show_arms(study: Study, console: Console) -> None:
    """Show the resolved diff of every arm, before the first step."""
    resolutions = study.by_resolution()
    first = ["resolution"] if len(resolutions) > 1 else []
    table = Table(*first, "arm", "seeds", "what differs from the baseline", title=escape(study.settings.question))
    for arm in (arm for arms in resolutions for arm in arms):
        changes = [f"{key}: {old} → {new}" for key, (old, new) in arm.decisions.items()]
        nothing = "nothing (other seeds)" if arm.role == "control" else "–"
        seeds = _seed_words(study.settings.seeds, [plan.seed for plan in arm.plans])
        if arm.role == "baseline":
            table.add_section()
        where = [_where(arm)] if first else []
        table.add_row(*where, escape(arm.name), seeds, escape("\n".join(changes) or nothing))
    console.print(table)
    if pairs := [f"{first.label} against {second.label}" for first, second in study.declared()]:
        say_note(console, f"compared with each other too: {'; '.join(pairs)}")
    if study.settings.tune:
        say_note(console, _tuning_words(study))
    others = [arm.name for arm in study.arms if reads_other_captions(arm.changes)]
    protocol = study.settings.evaluation
    if note := one_kind_note(others, plain(protocol), definitions(protocol, study.of_scenes)):
        say_note(console, note)
    if note := _copies_note(study):
        say_note(console, note)
    _show_warnings(study, console)
    for note in (*study.notes, *missing_files(study)):
        say_note(console, note)


def show_bank(study: Study, out: Path, console: Console) -> None:
    """Say how many stored runs will serve a study, before its first step; nothing where it names none."""
    if not study.settings.analysis.bank:
        return
    if (bank := read_bank(out) or take_bank(study)) is None:
        return
    served = serve(bank, study, {}, {})
    count, devices = sum(map(len, served.runs.values())), {run.device for one in bank.sources for run in one.runs}
    left = [*served.left_out, *(f"of {one.study}, {words}" for one in bank.sources for words in one.left_out)]
    where = f", made on {' and '.join(sorted(filter(None, devices)))}" if any(devices) else ""
    without = f" Without: {'; '.join(left)}." if left else ""
    say_note(
        console,
        f"{count} stored runs of the baseline will serve, from {', '.join(one.study for one in bank.sources)}{where}; "
        f"in each metric where the study's own runs on that kind of device agree with them.{without}",
    )
    if not any(arm.role == "control" for arm in study.arms):
        say_note(
            console,
            "stored runs are checked against the study's own runs of the baseline, and a control doubles these: "
            "without one, stored runs that differ are often missed",
        )


def _copies_note(study: Study) -> str:
    """Return a note where arms are fine-tuned and no metric looks for copies of their training images; else ''."""
    protocol = study.settings.evaluation
    tuned = [arm.label for arm in study.arms if arm.plans[0].start is not None]
    if not tuned or protocol.reads_training_images:
        return ""
    return (
        f"Copies of training images are not measured, though {', '.join(tuned)} may learn few images by heart: "
        f'--set "evaluation.metrics=[{",".join([*protocol.metrics, *TRAINING_METRICS])}]"'
    )


def _show_warnings(study: Study, console: Console) -> None:
    """Print each warning of the arms' plans once, after the names of its arms."""
    about: dict[str, list[str]] = {}
    for arm in study.arms:
        for text in arm.plans[0].warnings:
            about.setdefault(text, []).append(arm.label)
    for text, arms in about.items():
        names = ", ".join(arms) if len(arms) < len(study.arms) else "all arms"
        say(console, f"warning: {names}: {text}", "yellow")


def _tuning_words(study: Study) -> str:
    settings, tried = study.settings, [arm for arm in study.arms if arm.role != "control"]
    if settings.tune_by.kind == "grid":
        values = " × ".join(f"{len(range_of(one).choice or ())} values of {key}" for key, one in settings.tune.items())
    else:
        ranges = ", ".join(f"{key} from {words_of(one)}" for key, one in settings.tune.items())
        values = f"{settings.tuning_trials} trials by {settings.tune_by.words} ({ranges})"
    seeds = f"{len(settings.tune_seeds)} seed{'s' if len(settings.tune_seeds) > 1 else ''}"
    runs = len(tried) * settings.tuning_trials * len(settings.tune_seeds)
    return (
        f"tuning comes first: {values} × {seeds} for the baseline and each arm, {runs} runs; the best by "
        f"{settings.primary[0]} are chosen for each, then the comparison runs on other seeds"
    )


def _seed_words(plan: Sequence[int] | SeedPlan, seeds: Sequence[int]) -> str:
    """Return the seeds of an arm; of planned looks, the first and the last, and how many at each look."""
    if not isinstance(plan, SeedPlan):
        return listed_seeds(seeds)
    return f"{seeds[0]} to {seeds[-1]},\nlooks at {', '.join(map(str, plan.counts))}"


def show_cost(cost: Cost, console: Console) -> None:
    """Show how many runs a study has and the time that they take here, before the first step."""
    answer(cost=asdict(cost))
    least, most = cost.least, cost.most
    runs = f"{most} runs" if least == most else f"{least} to {most} runs, {cost.expected} if no arm changes anything"
    done = f"; {cost.done} of them are done" if cost.done else ""
    if cost.done >= most:
        say(console, f"{runs}{done}")
        return
    if cost.seconds is None:
        say(console, f"{runs}{done}")
        why = f" ({cost.measured})" if cost.measured else ""
        say(console, f"their time is not known{why}: run one first, or give a past study of this baseline with --like")
        return
    each = [minutes(cost.seconds_of(count)) for count in (least, cost.expected, most)]
    shown = each[2] if least == most else f"{each[0]} to {each[2]}, {each[1]} expected"
    how = f"{cost.jobs} at a time" if cost.jobs > 1 else "one after another"
    left = f", {minutes(cost.left_s)} of it left" if cost.done else ""
    say(console, f"{runs}, {'at least' if cost.at_least else 'about'} {shown} here, {how}{done}{left}")
    say(console, f"how the time was found: {cost.measured}")


def _where(arm: ArmPlan | Arm) -> str:
    """Return the resolution, once, beside its baseline."""
    return f"{arm.resolution}\n{arm.tokens:,} tokens" if arm.role == "baseline" else ""


class StudyDisplay(Progress):
    """Progress of the study and of each run under way; a line for each run that ends."""

    def __init__(self, console: Console, total: int, interrupt: Interrupt, doing: str = "study") -> None:
        super().__init__(doing, total, "", interrupt=interrupt)
        self._before = f"{doing} " if doing != "study" else ""
        self._lines = self.console_for_lines(console)
        self._shares: dict[tuple[str, int], float] = {}
        self._total, self._ended = total, 0
        self.failed: list[Message] = []
        self._show_runs()

    def _show_runs(self) -> None:
        self.show(None, sum(self._shares.values()), note=f"{self._ended} of {self._total} runs are done")

    def on_message(self, message: Message) -> None:
        arm, seed = message.key
        row = f"{arm}, seed {seed}"
        self._shares[message.key] = max(message.share, self._shares.get(message.key, 0.0))
        if message.state == "waiting":
            say(self._lines, f"{row}: {message.text}", "yellow")
            self.show(None, message.share, 1.0, message.text, row=row)
            return
        if message.state in ("lost", "died", "crowded"):
            self.remove(row)
            then = "it goes back to the queue" if message.state == "crowded" else "it will be resumed"
            say(self._lines, f"{row}: {_last_line(message)}; {then}", "yellow")
            return
        if message.state in ("training", "scoring"):
            scoring = message.state == "scoring"
            what = message.text or "scoring" if scoring else speed_note(message.loss, message.images_per_s)
            note = " · ".join(filter(None, [f"step {message.step:,}", what]))
            self.show(None, message.share, 1.0, note, row=row)
            self._show_runs()
            return
        self.remove(row)
        self._ended += message.state in ENDED
        self._show_runs()
        self.failed += [message] if message.state in ("diverged", "failed") else []
        say(self._lines, f"{self._before}[{self._ended}/{self._total}] {row}: {message.state} · {_last_line(message)}")


def _last_line(message: Message) -> str:
    return message.text.strip().splitlines()[-1] if message.text.strip() else ""


def show_verdicts(results: StudyResults, console: Console) -> None:
    """Show the table of verdicts, the notes, and a table for each other kind of row."""
    rows, shown = results.rows(), [metric.name for metric in primary_metrics(results)]
    heads = {one.name: f"{one.label} ({one.direction} is better)" for one in results.metrics}
    title = "Sketch: one seed, no verdicts" if results.sketch else "Verdicts"
    where = ["resolution"] if results.several else []
    costs = ["cost"] if any(arm.alone for arm in results.arms) else []
    table = Table(*where, "arm", *(heads[name] for name in shown), "other verdicts", *costs, title=title)
    for view in results.by_resolution():
        for arm in view.arms:
            cost = [escape(step_words(view, arm) or memory_words(arm))] if costs else []
            place = [_where(arm)] if where else []
            if arm.role == "baseline":
                means = [number(compared_mean(view, arm, name)) or "–" for name in shown]
                table.add_row(*place, "baseline", *means, "", *cost)
            else:
                key = (arm.role, arm.name, arm.resolution)
                own = [row for row in rows if (row.kind, row.arm, row.resolution) == key]
                table.add_row(*place, escape(arm.name), *_cells(own, shown), *cost)
        table.add_section()
    console.print(table)
    for note in results.notes():
        say(console, f"{'warning' if note.warns else 'note'}: {note.text.removeprefix('Note: ')}", "yellow")
    for one in priority.tables(results):
        say_note(console, f"What to adopt first. {one.words}")
    if fresh := replication_rows(results):
        _show_table("On fresh seeds", REPLICATION_HEADS, fresh, console)
    if pairs := list(dict.fromkeys(row.label for row in rows if row.kind == "between")):
        columns = ("first against second", *(heads[name] for name in shown), "other verdicts")
        table = Table(*columns, title="Arm against arm")
        for pair in pairs:
            table.add_row(escape(pair), *_cells([row for row in rows if row.label == pair], shown))
        console.print(table)
    if trends := [row for row in rows if row.kind == "trend"]:
        counts = list(token_counts(results).values())
        title = f"With more tokens: relative effect at {counts[0]:,} → {counts[-1]:,}"
        _show_table(title, ("arm", "metric", "verdict", "effect"), [_trend_cells(row) for row in trends], console)
    if factors := [row for row in rows if row.kind in ("main effect", "interaction")]:
        cells = [[row.label, row.metric.label, row.marked, row.contrast] for row in factors]
        _show_table("Do the parts add up?", ("factor or pair", "metric", "verdict", "effect"), cells, console)


def _cells(rows: Sequence[Row], shown: Sequence[str]) -> list[str]:
    """Return a cell for each metric that is shown, and one that lists what is decided on the others."""
    by_metric = {row.metric.name: row for row in rows}
    others = [row for row in rows if row.metric.name not in shown and row.verdict in DECIDED]
    said = "\n".join(f"{escape(row.metric.label)}: {_styled(row, row.verdict)}" for row in others)
    return [*(_verdict(by_metric[name]) for name in shown), said or "none"]


def _verdict(row: Row) -> str:
    difference = f" {escape(row.difference)}" if row.comparison and row.comparison.differences else ""
    few = TOO_FEW_SEEDS if row.blind else ""
    return "\n".join(filter(None, [_styled(row, row.words) + difference, few, escape(row.corrected), row.replicated]))


def _styled(row: Row, words: str) -> str:
    return f"[{VERDICT_STYLE.get(row.verdict, 'yellow')}]{escape(words)}[/]"


def _trend_cells(row: Row) -> list[str]:
    effects = effects_at_ends(row.comparison)
    return [row.arm, row.metric.label, row.words, " → ".join(effects) if row.comparison else ""]


def _show_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    table = Table(*map(str.lower, heads), title=title)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
