"""Show a study's arms before the first step, its current runs, and its verdicts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tintype.library.studies import Results, Worked, study_folder
from tintype.runtime.interrupt import Interrupt
from tintype.study.costs import Cost, minutes
from tintype.study.lab import StudyOutcome, StudyProgress
from tintype.study.looks import DECIDED, SeedPlan, listed_seeds
from tintype.study.numbers import compared_mean, primary_metrics, token_counts
from tintype.study.preview import PlannedReplication, PlannedStudy
from tintype.study.report import priority
from tintype.study.report.findings import (
    REPLICATION_HEADS,
    effects_at_ends,
    memory_words,
    replication_rows,
    step_words,
)
from tintype.study.results import Arm, StudyResults
from tintype.study.rows import TOO_FEW_SEEDS, Row
from tintype.study.runner import ENDED, Message
from tintype.study.study import ArmPlan, Study
from tintype.terminal import documents
from tintype.terminal.costs import show_study_cost
from tintype.terminal.interrupts import leave
from tintype.terminal.lines import VERDICT_STYLE, number, progress_console, say, say_note
from tintype.terminal.progress import Progress, speed_note
from tintype.terminal.view import View
from tintype.wording import rendered

R = TypeVar("R")


class OfRuns(View[R]):
    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        yield {"on_progress": ShownProgress(self.lines)}

    def show_results(self, result: Results) -> None:
        """Print the verdicts, and the interim analysis that the budget left for later."""
        show_report(result.content, result.report, self.console)
        if result.outcome is not None and result.outcome.left:
            then = "run the same command with a larger --budget, or none, to go on"
            say(self.console, f"{result.outcome.left}; {then}", "yellow")


class Verdicts(OfRuns[Results]):
    def show(self, result: Results) -> None:
        self.show_results(result)
        if self.given["without_data"]:
            say_note(
                self.console,
                f"report.* and results.* contain no images or captions of the data, and no paths of this "
                f"machine; {result.path / 'real'} and {result.path / 'runs'} still contain images and "
                f"captions, study.yaml and the baselines still contain paths",
            )

    def document(self, result: Results) -> documents.Reported:
        return _reported(result)


class Ablation(OfRuns[Results | PlannedStudy]):
    """View of `ablate`, which shows arms and notes before the first step, progress of the runs, and the verdicts."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        with super().calls() as calls:
            yield {"on_begin": self._begin, **calls}

    def _begin(self, planned: PlannedStudy) -> None:
        show_arms(planned.study, self.lines)
        for note in planned.notes:
            say(self.lines, f"{'warning' if note.warns else 'note'}: {note.text}", "yellow")
        show_study_cost(planned.estimate, self.lines)

    def show(self, result: Results | PlannedStudy) -> None:
        if isinstance(result, Results):
            self.show_results(result)
        elif result.cost is not None:
            show_cost(result.cost, self.console)
        else:
            work = f"`tintype work {quote(str(result.folder))}`"
            say(self.console, f"{result.folder} is ready: start any number of {work}, here or on other machines")

    def document(self, result: Results | PlannedStudy) -> documents.Ran | documents.Planned:
        if isinstance(result, Results):
            return _ran(result)
        return documents.Planned(
            folder=str(result.folder),
            arms=[{"arm": arm.label, "changes": arm.decisions} for arm in result.study.arms],
            notes=[note.data for note in result.notes],
            cost=None if result.cost is None else asdict(result.cost),
        )


class Replication(OfRuns[Results | PlannedReplication]):
    """View of `replicate`, with the tested verdicts, the progress of the fresh runs, and each verdict's outcome."""

    def show(self, result: Results | PlannedReplication) -> None:
        if isinstance(result, Results):
            self.show_results(result)
            return
        cells = [[one.arm, one.label, one.verdict] for one in result.claims]
        _show_table("", ("arm", "metric", "verdict to hold against fresh seeds"), cells, self.console)
        of, end = (f" of {result.source}", "; nothing is run") if result.source else ("", "")
        say(self.console, f"fresh seeds{of}: {listed_seeds(result.seeds)}, for {'; '.join(result.arms)}{end}")
        if result.cost is not None:
            show_cost(result.cost, self.console)

    def document(self, result: Results | PlannedReplication) -> documents.Ran | PlannedReplication:
        return _ran(result) if isinstance(result, Results) else result


class Workers(View[Worked]):
    """View of `work`, which shows the progress of the runs that the workers of this command make."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        yield {"on_progress": ShownProgress(self.lines, signal.SIGTERM)}

    def finish(self, result: Worked) -> None:
        if result.spent:
            why = "the GPU failed or its memory ran out, so the worker starts again in a new process"
            say(self.lines, f"{_taken(result)}; {why}")
            os.execv(sys.executable, [sys.executable, "-m", "tintype", *sys.argv[1:]])
        super().finish(result)

    def show(self, result: Worked) -> None:
        follow = f"`tintype status {quote(result.folder)}` shows all"
        say(self.console, f"{_taken(result)}; {follow}" if result.runs else "nothing is left")


def _taken(result: Worked) -> str:
    return f"{result.done} of the {len(result.runs)} runs that were taken here are done"


class Launch(View[list[str]]):
    """View of `launch`, with a line for each worker on another machine, and the command that shows the progress."""

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        """Print each line immediately, since the command waits as long as workers of Ray run."""
        """Print each line immediately, since the command waits as long as workers of Ray run."""
        yield {"on_line": lambda line: say(self.lines, line)}

    def show(self, result: list[str]) -> None:
        folder = study_folder(self.given["folder"]).resolve()
        say(self.console, f"`tintype status {quote(str(folder))} --watch` shows how far they are")


def _reported(result: Results) -> documents.Reported:
    page = result.report.resolve()
    return documents.Reported.model_validate(
        {
            "report": str(page),
            "results": str(page.with_name("results.json")),
            "verdicts": result.rows(),
            "notes": [note.data for note in result.content.notes()],
            "costs": result.costs(),
            "priority": result.priority(),
        }
    )


def _ran(result: Results) -> documents.Ran:
    """Return the document of a study's results, with counts of runs if this command trained any."""
    found, outcome = documents.Ran(**dict(_reported(result))), result.outcome
    if outcome is not None:
        found.done, found.total, found.left = outcome.done, outcome.total, outcome.left
        found.failed = [f"{one.key[0]}, seed {one.key[1]}: {one.state}" for one in outcome.failed]
    return found


def show_report(results: StudyResults, page: Path, console: Console) -> None:
    show_verdicts(results, console)
    say(console, f"report: {page.resolve()}")


class ShownProgress(StudyProgress):
    """Printer of a study's reports. `ends_by` replaces the signal in the exit code of a stopped command."""

    def __init__(self, console: Console, ends_by: int | None = None) -> None:
        self._console, self._ends_by = console, ends_by
        self.argv = ["tintype", *sys.argv[1:]]

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

    def stopped(self, number: int | None, kept: str, outcome: StudyOutcome | None = None) -> None:
        """Show the finished runs, and end the command if runs are left."""
        if not kept:
            return
        if outcome is not None and outcome.report is not None:
            show_report(outcome.report.results, outcome.report.page, self._console)
        elif outcome is not None:
            say(self._console, f"no report: {outcome.no_report}", "yellow")
        leave(self._ends_by or number or signal.SIGTERM, rendered(kept))


def show_arms(study: Study, console: Console) -> None:
    """Print the changes of every arm against the baseline, before the first step."""
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


def _seed_words(plan: Sequence[int] | SeedPlan, seeds: Sequence[int]) -> str:
    """Describe the seeds of an arm. With interim analyses, add the number of seeds at each analysis."""
    if not isinstance(plan, SeedPlan):
        return listed_seeds(seeds)
    return f"{seeds[0]} to {seeds[-1]},\nlooks at {', '.join(map(str, plan.counts))}"


def show_cost(cost: Cost, console: Console) -> None:
    """Print the number of runs of a study, and their expected time on this machine, before the first step."""
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
    """Return the resolution for display, which appears only in the row of the resolution's baseline."""
    return f"{arm.resolution}\n{arm.tokens:,} tokens" if arm.role == "baseline" else ""


class StudyDisplay(Progress):
    """Display of the progress of the study and of each current run; it prints a line for each run that ends."""

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
    """Print the table of verdicts, the notes, and a table for each additional kind of row."""
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
    """Return a cell for each shown metric, and one cell with the decided verdicts on all other metrics."""
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
