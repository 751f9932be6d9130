"""Run a study from its file to its report, by making missing runs, comparing all runs, and writing the report."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tintype.config.strict import closest, read_yaml
from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.early import lost_steps
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import result_file
from tintype.plan import Plan
from tintype.runtime.files import write_checked
from tintype.runtime.garbage import without_collections
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.runtime.leases import EXPIRY_S, MOST_EXPIRY_S
from tintype.runtime.locks import locked
from tintype.study.adaptive import wanted_arms
from tintype.study.admission import Admission
from tintype.study.bank import read_bank, serve
from tintype.study.compare import (
    collect,
    compare_fresh,
    every_comparison,
    follow_runs,
    looks_to_record,
    made_looks,
)
from tintype.study.costs import Budget, run_seconds
from tintype.study.folder import (
    RESULTS,
    STUDY,
    KnownTokenizers,
    check_own_plugins,
    claim_folder,
    finished_runs,
    note_command,
    stored_study,
    untuned_study,
)
from tintype.study.looks import SeedPlan, listed_seeds, record_looks
from tintype.study.recompute import recompute
from tintype.study.replicate import (
    FOLDER,
    Claim,
    FreshRuns,
    claimed_arms,
    claims_of,
    fresh_runs,
    fresh_seeds,
    read_replication,
    replicated,
    used_seeds,
    write_replication,
)
from tintype.study.report import write_report
from tintype.study.results import Replication, StudyResults, read_results_file
from tintype.study.runner import Message, Task, task_of, tasks_of
from tintype.study.runs import Runs, metric_infos, read_runs, standing_runs
from tintype.study.settings import ArmSettings
from tintype.study.shapes import copy_shapes, shape_of
from tintype.study.stored import StoredStudy, read_stored
from tintype.study.study import ArmPlan, Study, check_study, resolve
from tintype.study.supervisor import Jobs, most_of, run_tasks
from tintype.study.tracking import track_verdicts
from tintype.study.tune import ask_trials, check_sampler, tuned, tuning_of, tuning_tasks, untuned_words
from tintype.study.version import check_version
from tintype.study.worker import Worker, is_settled, lease_folder
from tintype.tokenizers.latent_cache import why_uncacheable
from tintype.train.session import training_device
from tintype.train.start import find_parent
from tintype.train.trackers import check_trackers
from tintype.wording import option, setting


@dataclass(frozen=True)
class StudyReport:
    results: StudyResults
    page: Path


@dataclass(frozen=True)
class StudyOutcome:
    """The final status of every run that was started, and the report."""

    total: int
    last: dict[tuple[str, int], Message]
    signal: int | None
    report: StudyReport | None
    no_report: str = ""
    left: str = ""
    """Description of the interim analysis that did not fit into the budget; empty if all were made."""

    @property
    def done(self) -> int:
        return sum(message.state == "done" for message in self.last.values())

    @property
    def failed(self) -> list[Message]:
        return [message for message in self.last.values() if message.state in ("diverged", "failed")]

    @property
    def interrupted(self) -> bool:
        """Return whether runs are left because of a signal to the study or to a worker."""
        stopped = self.signal is not None or any(message.state == "interrupted" for message in self.last.values())
        return stopped and self.done + len(self.failed) < self.total


class StudyProgress:
    """Callbacks that receive the progress of a study; a subclass in `terminal/` shows it."""

    argv: Sequence[str] = ()
    """The command line as the user typed it, for the report; empty if there was no command line."""

    def phase(self, doing: str, kept: str) -> AbstractContextManager[Callable[[str], None]]:
        """Return a context manager for a phase of the work; its value sets the name of the next phase.

        `kept` describes the results that an interrupted command keeps, and the way to resume it.
        """
        return nullcontext(lambda doing: None)

    def runs(
        self, total: int, interrupt: Interrupt, doing: str = "study"
    ) -> AbstractContextManager[Callable[[Message], None]]:
        """Return a context manager for making `total` runs; its value is a callback for the runs' messages."""
        return nullcontext(lambda message: None)

    def note(self, text: str) -> None:
        """Report a note. The work continues."""

    def stopped(self, number: int | None, kept: str, outcome: StudyOutcome | None = None) -> None:
        """End the call after a signal; this base class raises the signal again.

        `kept` describes the saved results; empty if all work was done. `number` is None if only workers got a signal.
        """
        if number is not None:
            signal.raise_signal(signal.Signals(number))


SILENT = StudyProgress()


def run_study(
    study: Study,
    out: Path,
    jobs: Jobs,
    progress: StudyProgress = SILENT,
    budget_s: float | None = None,
    like: Path | None = None,
) -> StudyOutcome:
    """Make the missing runs, then write the report.

    A later interim analysis begins only if it fits into the rest of `budget_s`. The past study `like` has measurements
    for equal shapes.
    """
    if budget_s is not None and not isinstance(study.settings.seeds, SeedPlan):
        raise UserError(
            f"{option('budget')} limits later looks, but this study has only one look",
            f"plan several looks, for example {setting('seeds', '{first: 4, most: 16}')}, and leave control_seeds out",
        )
    with locked(out):
        _check_devices([*tuning_tasks(study, out), *tasks_of(study, out)])
        _prepare(study, out, progress)
        if like is not None and not copy_shapes(like, out, {shape_of(arm.plans[0]) for arm in study.arms}):
            progress.note(
                f"{option('like', like)}: it has no new measurements, since all plans that both "
                f"studies share are already measured here"
            )
        last: dict[tuple[str, int], Message] = {}
        tried: set[tuple[str, int]] = set()
        total, left, budget = 0, "", Budget(budget_s, most_of(jobs))
        with watch_signals() as interrupt:
            if study.settings.tune:
                tries, swept = _run_tuning(study, out, jobs, interrupt, progress)
                if untuned := untuned_words(tuning_of(study, out)):
                    return StudyOutcome(tries, swept, interrupt.signal, None, untuned)
            study = tuned(study, tuning_of(study, out))
            _note_lost_scores(tasks_of(study, out), progress)
            while interrupt.signal is None and (wanted := next_runs(study, out, tried)).tasks:
                if left := budget.refusal(wanted.tasks, run_seconds(wanted.runs)):
                    left = f"{wanted.words} was not begun: {left}"
                    break
                progress.note(f"{wanted.words} begins") if wanted.words else None
                total += len(wanted.tasks)
                tried.update(task.key for task in wanted.tasks)
                with budget.running(), progress.runs(len(wanted.tasks), interrupt) as on_message:
                    last |= run_tasks(wanted.tasks, study.settings.evaluation, jobs, interrupt, on_message)
                budget.note(_seconds_of_new(wanted, standing_runs(study, out)))
        if interrupt.signal is not None:  # the rest of the work remains to be done
            total += len(next_runs(study, out, tried).tasks)
        loss = _loss_of_results(study, out)
        report = None if loss else _report(study, out, progress)
        if report is not None:
            track_verdicts(study, out, report.results)
    return StudyOutcome(total, last, interrupt.signal, report, loss, left)


def _run_tuning(
    study: Study, out: Path, jobs: Jobs, interrupt: Interrupt, progress: StudyProgress
) -> tuple[int, dict[tuple[str, int], Message]]:
    """Make the runs that tuning needs; return their number, and the final status of each started run.

    A grid search makes all its runs at once; a sampler that learns proposes a trial after the arm's last trial.
    """
    tried: set[tuple[str, int]] = set()
    last: dict[tuple[str, int], Message] = {}
    while interrupt.signal is None:
        ask_trials(study, out)
        tasks = [task for task in tuning_tasks(study, out) if task.key not in tried]
        if not tasks:
            break
        tried.update(task.key for task in tasks)
        with progress.runs(len(tasks), interrupt, "tuning") as on_message:
            last |= run_tasks(tasks, study.settings.evaluation, jobs, interrupt, on_message)
    return len(tried), last


def prepare_study(study: Study, out: Path, progress: StudyProgress = SILENT) -> None:
    """Check a study and make its folder for workers that are started elsewhere."""
    with locked(out):
        _prepare(study, out, progress)


def _prepare(study: Study, out: Path, progress: StudyProgress) -> None:
    tasks = [*tuning_tasks(study, out), *tasks_of(study, out)]
    check_sampler(study)
    _refuse_missing_files(study)
    with progress.phase("checking the data and the weights", "no run was started; run the same command again"):
        untrained = _check_data(study, tasks)
        claim_folder(study, out, progress.note)
        note_command(progress.argv, out, progress.note)
        _check_weights(tasks, untrained)


def missing_files(study: Study) -> list[str]:
    """Return a line for each missing file of a stored study that can be made by a command in the study's README."""
    missing = [path for path in study.made_by if not Path(path).expanduser().exists()]
    return [f"{path} is not here; this makes it: {study.made_by[path]}" for path in missing]


def _refuse_missing_files(study: Study) -> None:
    if lines := missing_files(study):
        raise UserError("\n".join(lines))


@dataclass(frozen=True)
class WorkOutcome:
    """The final status of every run of this worker."""

    last: dict[tuple[str, int], Message]
    signal: int | None
    spent: bool = False
    """Whether the remaining runs need a new process, since this process ran out of GPU memory or lost its GPU."""

    @property
    def done(self) -> int:
        return sum(message.state == "done" for message in self.last.values())


def work_on_study(
    out: Path,
    progress: StudyProgress = SILENT,
    run: str | None = None,
    wait: bool = True,
    expiry_s: float = EXPIRY_S,
    jobs: Jobs = 1,
) -> WorkOutcome:
    """Make the runs of a study that no other worker is making, until no run is left or a signal comes.

    `run` selects one run by a prefix of its hash, even after a failed attempt. With `wait`, the worker also waits for
    the next interim analysis, and for other workers, which may die. Each of several `jobs` is a worker process.
    """
    if not (out / STUDY).is_file():
        raise UserError(
            f"{out} is not a study: {STUDY} is missing",
            "`tintype ablate STUDY --out DIR --prepare` creates a study that workers can run",
        )
    if not 0 < expiry_s <= MOST_EXPIRY_S:
        raise UserError(f"{option('expiry')} is {expiry_s:g} s", f"give more than 0 s and at most {MOST_EXPIRY_S:g} s")
    check_own_plugins(out)
    check_version(out)
    study = untuned_study(out)
    chosen = [_choose_task(study, out, run)] if run is not None else []
    last: dict[tuple[str, int], Message] = {}
    with progress.phase("checking the data and the weights", "no run was started; run the same command again"):
        tasks = chosen or [*tuning_tasks(study, out), *tasks_of(study, out)]
        _check_devices(tasks)
        _check_weights(tasks, _check_data(study, tasks))
    spent = False
    with watch_signals(signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) as interrupt:
        protocol, before = study.settings.evaluation, list[Task]()
        while interrupt.signal is None and (tasks := chosen or _unsettled(study, out)) and tasks != before:
            with progress.runs(len(tasks), interrupt, "work") as on_message:

                def note(message: Message, show: Callable[[Message], None] = on_message) -> None:
                    last[message.key] = message
                    show(message)

                round = uuid.uuid4().hex[:12] if chosen else ""
                if jobs == 1:
                    admission = Admission.here(out, protocol)
                    worker = Worker(lease_folder(tasks), protocol, interrupt, note, round, expiry_s, admission)
                    worker.work(tasks, wait)
                    if spent := worker.is_spent:
                        break
                else:
                    last.update(run_tasks(tasks, protocol, jobs, interrupt, on_message, round, wait, expiry_s))
            before = tasks
    return WorkOutcome(last, interrupt.signal, spent)


def _unsettled(study: Study, out: Path) -> list[Task]:
    """Return the unfinished runs of the present interim analysis, which depend only on the study's files."""
    ask_trials(study, out)
    tuning = tuning_of(study, out)
    tasks = tuning_tasks(study, out) if untuned_words(tuning) else next_runs(tuned(study, tuning), out, None).tasks
    return [task for task in tasks if not is_settled(task, study.settings.evaluation)]


def _choose_task(study: Study, out: Path, run: str) -> Task:
    """Return the run whose hash begins with this prefix."""
    tasks = [*tuning_tasks(study, out), *tasks_of(tuned(study, tuning_of(study, out)), out)]
    found = {task.plan.hash: task for task in tasks if task.plan.hash.startswith(run)}
    if len(found) != 1:
        listed = "\n".join(
            f"  {task.plan.hash}  ({task.arm}, seed {task.plan.seed})" for task in found.values() or tasks
        )
        words = "is the beginning of several runs" if found else "is no run of this study; it has"
        raise UserError(f"{option('run', run)}: {words}:\n{listed}")
    return next(iter(found.values()))


def _check_data(study: Study, tasks: Sequence[Task]) -> list[Task]:
    """Raise if a study cannot be trained or scored on its data; return the tasks that have not been trained."""
    untrained = [task for task in tasks if not task.record.is_trained]
    check_study(study, {task.plan.hash for task in tasks} - {task.plan.hash for task in untrained})
    return untrained


def _check_devices(tasks: Sequence[Task]) -> None:
    """Raise if this machine cannot train these runs. This check is skipped for a study that is only prepared."""
    for task in tasks:
        if not task.record.is_trained:
            try:
                training_device(task.plan)
            except UserError as error:
                raise error.at(f"arm '{task.arm}'") from None


def _check_weights(tasks: Sequence[Task], untrained: Sequence[Task]) -> None:
    """Find and load the initial weights of the tasks, so that errors occur before the first step."""
    _check_latents_folder([task.plan for task in tasks])
    for task in untrained:
        if task.plan.start is not None and task.parent is None:
            find_parent(task.plan, task.plan.start, task.folder)
        check_trackers(task.plan.run)
    _fetch_weights([task.plan for task in untrained])


@dataclass(frozen=True)
class NextRuns:
    """The next runs of a study, and all of its runs."""

    tasks: list[Task]
    runs: Runs
    words: str = ""
    """The interim analysis of these runs; empty with fixed seeds."""


def next_runs(study: Study, out: Path, tried: Collection[tuple[str, int]] | None = ()) -> NextRuns:
    """Return the next runs of a study, without the runs in `tried`, from the study's files alone.

    If `tried` is None, failed runs count as ended. With interim analyses, the next runs are those of the analysis in
    progress. Runs of earlier analyses come first if they were interrupted while they were scored during training.
    """
    wanted, words, runs = study, "", standing_runs(study, out)
    if isinstance(study.settings.seeds, SeedPlan):
        left = [task for task in tasks_of(study, out) if task.key not in (tried or ()) and task.has_unscored]
        if unscored := [task for task in left if task.record.is_trained]:
            return NextRuns(unscored, runs)
        stored = serve(read_bank(out), study, runs, metric_infos(study)).runs
        standing = follow_runs(study, runs, every_comparison(study, out), tried, stored=stored)
        if standing.next is None:
            return NextRuns([], runs)
        wanted = wanted_arms(study, standing.next, standing.stopped)
        counts = study.settings.seeds.counts
        words = f"look {len(standing.made) + 1} of {len(counts)} ({len(standing.next.seeds)} seeds for {_arms(wanted)})"
    return NextRuns([task for task in tasks_of(wanted, out) if task.key not in (tried or ())], runs, words)


def _arms(study: Study) -> str:
    return ", ".join(dict.fromkeys(arm.name for arm in study.arms if arm.role == "arm"))


def _seconds_of_new(wanted: NextRuns, after: Runs) -> float:
    """Return the seconds of the runs that this command has finished."""
    before = {run.hash for some in wanted.runs.values() for run in some if run.state == "done"}
    new = [run for some in after.values() for run in some if run.state == "done" and run.hash not in before]
    return sum(run.train_s + run.evaluate_s for run in new)


def _check_latents_folder(plans: Sequence[Plan]) -> None:
    """Raise if tokenizers or image sizes share a folder of latents; by default, each has a separate folder."""
    kept = [
        plan
        for plan in plans
        if plan.run.latents_folder is not None and why_uncacheable(plan.tokenizer, plan.tuning) is None
    ]
    if len({(plan.tokenizer, plan.data) for plan in kept}) > 1:
        raise UserError(
            f"run.latents_folder is {kept[0].run.latents_folder} for all arms, but the arms have several "
            f"tokenizers or image sizes, and a folder can contain the latents of only one",
            "leave run.latents_folder out; by default, each combination has its own folder",
        )


def _fetch_weights(untrained: Sequence[Plan]) -> None:
    """Load the frozen networks once to find problems early; of large text encoders, check only the package."""
    for text in dict.fromkeys(plan.text for plan in untrained):
        text.check_packages()
    for tokenizer in dict.fromkeys(plan.tokenizer for plan in untrained):
        tokenizer.build(torch.device("cpu"))
    parts = [(part, plan.token_grid) for plan in untrained for part in (*plan.losses, plan.tuning)]
    for part, grid in dict.fromkeys(parts):
        if part is not None:
            part.fetch(grid)


def _note_lost_scores(tasks: Sequence[Task], progress: StudyProgress) -> None:
    """Log a note about runs without scores during training, because they were trained before `score_at` was set."""
    lost = {task: lost_steps(task.folder, task.along.steps, task.along.protocol) for task in tasks if task.along}
    runs = [f"{task.arm}, seed {task.plan.seed}" for task, steps in lost.items() if steps]
    if runs:
        steps = ", ".join(f"{step:,}" for step in sorted({step for found in lost.values() for step in found}))
        progress.note(
            f"score_at: {len(runs)} runs did not keep their weights at the steps {steps}, so they have no "
            f"scores at these steps ({'; '.join(runs[:3])}{'; …' if len(runs) > 3 else ''}). To train them "
            f"again, choose another {option('out')}"
        )


def report_study(out: Path, progress: StudyProgress = SILENT, without_data: bool = False) -> StudyReport:
    """Compare the runs of a study again, and write its report; if run folders are missing, use results.json."""
    if not (out / STUDY).is_file():
        raise UserError(f"{out} is not a study: {STUDY} is missing", "`tintype ablate STUDY --out DIR` makes one")
    if not (out / "runs").is_dir() and finished_runs(out / RESULTS):
        return _report_stored(out, progress, without_data)
    study = stored_study(out)
    if loss := _loss_of_results(study, out) or untuned_words(tuning_of(study, out)):
        raise UserError(loss)
    with without_collections():
        report = _report(study, out, progress, without_data)
    track_verdicts(study, out, report.results)
    return report


def _report_stored(out: Path, progress: StudyProgress, without_data: bool) -> StudyReport:
    """Write the report of a study without using run folders."""
    progress.note(
        f"{out / 'runs'} does not exist: the runs are read from {RESULTS}, and the images from the existing report.html"
    )
    results = _recomputed(out, progress)
    if without_data:
        results = results.without_data().without_paths()
    return StudyReport(results, write_report(results, out, stored=True))


def _recomputed(out: Path, progress: StudyProgress) -> StudyResults:
    stored = read_results_file(out / RESULTS)
    try:
        return recompute(tuned(untuned_study(out), stored.tuning), stored, made_looks(out))
    except UserError as error:
        if isinstance(error, DamagedFileError):
            raise
        progress.note(f"the verdicts stay as in {RESULTS}, because they cannot be computed again: {error.marked}")
        return stored


def _loss_of_results(study: Study, out: Path) -> str:
    """Return why a report without finished runs would replace one with finished runs; empty if it would not."""
    plans = [plan for arm in study.arms for plan in arm.plans]
    files = [result_file(out / "runs" / plan.hash, study.settings.evaluation, plan.train.steps) for plan in plans]
    stored = out / RESULTS
    if any(file.exists() for file in files) or not (finished := finished_runs(stored)):
        return ""
    return (
        f"{stored} has {finished} finished runs, and none of the study's {len(files)} runs was found in {out / 'runs'} "
        f"(the first would be {files[0].relative_to(out)}). If they are elsewhere, move them there; if another version "
        "of tintype made them, their plans may have other hashes: use that version. The results and the report are "
        "unchanged"
    )


def _report(study: Study, out: Path, progress: StudyProgress, without_data: bool = False) -> StudyReport:
    with progress.phase("reading the runs", "the runs are unchanged; run the same command again") as next_part:
        results = collect(study, out).model_copy(update={"tuning": tuning_of(study, out)})
        if made := looks_to_record(study, results, out):
            record_looks(made, out)  # before the report, so that every look that was shown is recorded
        next_part("writing the report")
        if without_data:
            results = results.without_data().without_paths()
        return StudyReport(results, write_report(results, out))


@dataclass(frozen=True)
class ReplicationPlan:
    """Runs of a replication on fresh seeds, for the arms with verdicts and for their baselines."""

    study: Study
    folder: Path
    """Folder of the runs on fresh seeds."""
    seeds: list[int]
    claims: list[Claim]
    results: StudyResults

    @property
    def tasks(self) -> list[Task]:
        return tasks_of(self.study, self.folder)


def plan_replication(out: Path, count: int, progress: StudyProgress = SILENT) -> ReplicationPlan:
    """Return the runs that test each verdict of a study on `count` fresh seeds. Writes nothing."""
    for file in (STUDY, RESULTS):
        if not (out / file).is_file():
            raise UserError(f"{out} has no {file}", "give the folder of a study that `tintype ablate` has reported")
    check_own_plugins(out)
    results = _recomputed(out, progress)
    claims, before = _claims_to_hold(out, results), read_replication(out)
    if before is not None and (len(before.seeds) != count or before.source):
        source = f" of {before.source}" if before.source else ""
        keep = "keep this replication" if source else f"keep this replication ({option('seeds', len(before.seeds))})"
        raise UserError(
            f"{out} was replicated on {len(before.seeds)} fresh seeds{source}. Adding seeds after their results "
            f"were read would favour chance findings",
            f"{keep}, or move {out / FOLDER} away",
        )
    read = _seeds_read(results, before)
    seeds = fresh_seeds(used_seeds(stored_study(out), results, [*seeds_in(out), *read]), count)
    fresh = claimed_arms(_fresh_study(out, seeds, results), claims)
    return ReplicationPlan(fresh, out / FOLDER, seeds, claims, results)


def _claims_to_hold(out: Path, results: StudyResults) -> list[Claim]:
    if not (claims := claims_of(results)):
        raise UserError(f"{out} has no verdict of better, worse or same, so there is nothing to replicate")
    return claims


def _seeds_read(results: StudyResults, before: Replication | None) -> list[int]:
    """Return the seeds of a replication whose folder was moved away. Their results were seen: they are not fresh."""
    return results.replication.seeds if before is None and results.replication else []


@dataclass(frozen=True)
class StoredReplication:
    """A replication with the runs of a finished study."""

    fresh: FreshRuns
    claims: list[Claim]
    """Verdicts to test again, which are the verdicts on arms of both studies."""
    results: StudyResults
    source: str


def plan_replication_from(out: Path, path: Path, progress: StudyProgress = SILENT) -> StoredReplication:
    """Return the runs of a finished study that test each verdict of a study. Writes nothing."""
    for file in (STUDY, RESULTS):
        if not (out / file).is_file():
            raise UserError(f"{out} has no {file}", "give the folder of a study that `tintype ablate` has reported")
    check_own_plugins(out)
    results, other = _recomputed(out, progress), read_stored(path)
    claims, before = _claims_to_hold(out, results), read_replication(out)
    if before is not None:
        raise UserError(
            f"{out} was replicated already, on {len(before.seeds)} fresh seeds. A second replication after the "
            f"results of the first were read would favour chance findings",
            f"keep this replication, or move {out / FOLDER} away",
        )
    study = stored_study(out)
    used = used_seeds(study, results, [*seeds_in(out), *_seeds_read(results, before)])
    fresh = fresh_runs(StoredStudy(out, results), other, claimed_arms(study, claims), used)
    if fresh.missing:
        progress.note(
            f"{other.name} has no fresh runs of {', '.join(fresh.missing)}, so the verdicts on these arms do not change"
        )
    held = [claim for claim in claims if claim.arm in fresh.runs]
    return StoredReplication(fresh, held, results, other.name)


def replicate_from(out: Path, path: Path, progress: StudyProgress = SILENT) -> StudyReport:
    """Test each verdict of a study on the runs of another finished study, and rewrite the report. Runs nothing."""
    with locked(out):
        planned = plan_replication_from(out, path, progress)
        rows = compare_fresh(planned.fresh.study, planned.fresh.runs, [claim.key for claim in planned.claims])
        made = Replication(
            seeds=planned.fresh.seeds,
            rows=[replicated(claim, rows.get(claim.key)) for claim in planned.claims],
            source=planned.source,
        )
        note_command(progress.argv, out, progress.note)
        write_replication(made, out)
        return _report_replicated(out, planned.results.model_copy(update={"replication": made}), progress)


def replicate_study(out: Path, count: int, jobs: Jobs, progress: StudyProgress = SILENT) -> StudyOutcome:
    """Test each verdict of a study on `count` fresh seeds, and rewrite the report with the outcomes."""
    planned = plan_replication(out, count, progress)
    fresh, tasks, claims = planned.study, planned.tasks, planned.claims
    with locked(out):
        _check_devices(tasks)
        with progress.phase("checking the data and the weights", "no run was started; run the same command again"):
            _check_weights(tasks, _check_data(fresh, tasks))
            note_command(progress.argv, out, progress.note)
        with watch_signals() as interrupt, progress.runs(len(tasks), interrupt, "replication") as on_message:
            last = run_tasks(tasks, fresh.settings.evaluation, jobs, interrupt, on_message)
        if interrupt.signal is not None:
            return StudyOutcome(len(tasks), last, interrupt.signal, None, "the replication is not finished")
        rows = compare_fresh(fresh, read_runs(fresh, planned.folder), [claim.key for claim in claims])
        made = Replication(seeds=planned.seeds, rows=[replicated(claim, rows.get(claim.key)) for claim in claims])
        write_replication(made, out)
        report = _report_replicated(out, planned.results.model_copy(update={"replication": made}), progress)
    return StudyOutcome(len(tasks), last, interrupt.signal, report)


def seeds_in(out: Path) -> list[int]:
    """Return the seeds of all runs in a study's folder, including runs of removed arms."""
    plans = [read_yaml(file.read_text(), str(file)).data for file in (out / "runs").glob("*/plan.yaml")]
    return [seed for plan in plans if isinstance(plan, dict) and isinstance(seed := plan.get("seed"), int)]


def _fresh_study(out: Path, seeds: Sequence[int], results: StudyResults) -> Study:
    """Return the study in a folder, but with other seeds and without the control."""
    return tuned(untuned_study(out, {"seeds": tuple(seeds), "control_seeds": ()}), results.tuning)


def _report_replicated(out: Path, results: StudyResults, progress: StudyProgress) -> StudyReport:
    if not (out / "runs").is_dir():  # only the results of the runs are left
        write_checked(out / RESULTS, results.dump())
    return report_study(out, progress)


def study_with_arm(out: Path, arm: ArmSettings, seeds: Sequence[int], control_seeds: Sequence[int]) -> Study:
    """Return the study in a folder, but with these seeds and an additional last arm.

    If the study was tuned, its baseline gets the chosen values. The other arms are left out, since each has its own
    chosen values.
    """
    study = stored_study(out)
    if any(one.name == arm.label for one in study.arms):
        raise UserError(f"{option('arm', arm.label)}: {out} already has an arm with this name", "choose another name")
    of_baseline = [one for one in study.arms if one.role == "baseline"]
    baselines = {one.resolution: one.plans[0].model_copy(update={"seed": 0}) for one in of_baseline}
    settings = study.settings.model_copy(
        update={
            "arms": (*(study.settings.arms if not study.settings.tune else ()), arm),
            "factorial": study.settings.factorial if not study.settings.tune else (),
            "tune": {},
            "seeds": tuple(seeds),
            "control_seeds": tuple(control_seeds),
            "score_at": (),
        }
    )
    found = resolve(
        study.name, settings, baselines, lambda path: option("arm", arm.label), KnownTokenizers(out / RESULTS)
    )
    own = next(one for one in found.arms if one.name == arm.label)
    return replace(found, arms=(*(one for one in found.arms if one is not own), own))


def check_runs(study: Study, tasks: Sequence[Task], progress: StudyProgress = SILENT) -> None:
    """Raise before the first run if any run cannot be trained or scored."""
    _check_devices(tasks)
    with progress.phase("checking the data and the weights", "no run was started; run the same command again"):
        _check_weights(tasks, _check_data(study, tasks))


def run_more(
    tasks: Sequence[Task], protocol: Protocol, jobs: Jobs, interrupt: Interrupt, progress: StudyProgress = SILENT
) -> dict[tuple[str, int], Message]:
    """Make these runs of a study; return the final status of each run that was started."""
    with progress.runs(len(tasks), interrupt, "proposal") as on_message:
        return run_tasks(tasks, protocol, jobs, interrupt, on_message)


def choose_run(folder: Path, arm: str | None, seed: int | None) -> Task:
    """Return the run of an arm and a seed, by default the first seed; the name of a study's only arm can be omitted."""
    study = stored_study(folder)
    chosen = _choose_arm(study, folder, arm)
    seeds = [plan.seed for plan in chosen.plans]
    if seed is not None and seed not in seeds:
        raise UserError(
            f"{option('arm-seed', seed)}: arm '{chosen.label}' of {folder} has only the seeds {listed_seeds(seeds)}"
        )
    plan = chosen.plans[0 if seed is None else seeds.index(seed)]
    return task_of(study, chosen.label, plan, folder)


def _choose_arm(study: Study, folder: Path, name: str | None) -> ArmPlan:
    if name is None:
        if len(study.arms) == 1:
            return study.arms[0]
        raise UserError(
            f"{folder} is a study",
            f"choose one of its runs with {option('arm')} and {option('arm-seed')}:\n{list_arms(study.arms)}",
        )
    found = [arm for arm in study.arms if name in (arm.label, arm.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"{option('arm', name)}: {folder} has this arm at several resolutions",
            f"choose one of them:\n{list_arms(found)}",
        )
    near = closest(name, [arm.label for arm in study.arms])
    words = f"did you mean '{near}'?" if near is not None else "it has these:"
    raise UserError(f"{option('arm', name)}: {folder} has no arm with this name", f"{words}\n{list_arms(study.arms)}")


def list_arms(arms: Sequence[ArmPlan]) -> str:
    """Return a line for each arm with the option that selects the arm, and with the arm's seeds."""
    return "\n".join(
        f"  {option('arm', arm.label)}  (seeds {listed_seeds([plan.seed for plan in arm.plans])})" for arm in arms
    )
