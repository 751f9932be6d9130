"""Functions that load, make, run and follow a study, read its results, plan the next study, and compare runs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, overload

from annotated_types import Ge

from tintype.errors import StoppedError, UserError
from tintype.library.kinds import AnyJobs, AnyPath, AnyPlan, AnyRun, AnyStudy, Count
from tintype.library.plans import check_texts, plan_of
from tintype.library.runs import ignore, path_of
from tintype.wording import again, option, rendered

if TYPE_CHECKING:
    from tintype.runtime.interrupt import Interrupt
    from tintype.study.lab import ReplicationPlan, StudyOutcome, StudyProgress
    from tintype.study.pooling import Pooled
    from tintype.study.power import PowerPlan
    from tintype.study.preview import HeldVerdict, PlannedReplication, PlannedStudy
    from tintype.study.propose import Proposal
    from tintype.study.replicate import Claim
    from tintype.study.results import StudyResults
    from tintype.study.runner import Message
    from tintype.study.side_by_side import SideBySide
    from tintype.study.status import StudyStatus
    from tintype.study.study import Study
    from tintype.study.supervisor import Jobs

    OnStudy: TypeAlias = Callable[[Message], None] | StudyProgress
    """A callback for messages of runs while they train or are scored, or an object that gets all reports of a study."""

_STUDY, _RESULTS, _REPORT = "study.yaml", "results.json", "report.html"
_WATCH_S = 2.0
NOT_MEASURED = "nothing was measured; run the same command again"
_BASELINE = "baseline.yaml"
"""Name of the file with the baseline's plan in a study's folder."""


@dataclass(frozen=True, repr=False)
class Results:
    """The results of a study, with a verdict for each arm and metric, and the numbers of each run."""

    path: Path
    """The study's folder."""
    content: StudyResults
    """The content of results.json."""
    outcome: StudyOutcome | None = field(default=None, compare=False)
    """The runs that were made by the call that returned these results; None if the call made no runs."""

    @property
    def exit_code(self) -> int:
        """Return 1 if a run of the call diverged or failed, otherwise 0."""
        return int(self.outcome is not None and bool(self.outcome.failed))

    def rows(self, primary: bool = False) -> list[dict[str, Any]]:
        """Return one dictionary per verdict, in a form that `pandas.DataFrame` and `polars.DataFrame` take.

        `kind` is arm, control, between, trend, main effect or interaction. `difference` is the arm's mean minus the
        baseline's mean, with the interval from `low` to `high`. A row on two arms compares the first arm with the
        second instead of the baseline. `words` is the `verdict` with the number of lost runs. With `primary`, return
        the verdicts on primary metrics only.
        """
        return [row.data for row in self.content.rows(primary=primary)]

    def runs(self) -> list[dict[str, Any]]:
        """Return one dictionary per run, with arm, seed, state, folder, and metrics by name."""
        return [
            {"arm": arm.name, "resolution": arm.resolution, "seed": run.seed, "state": run.state, "error": run.error}
            | {"path": str(self.path / run.folder), "training_s": run.train_s}
            | run.metrics
            for arm in self.content.arms
            for run in arm.runs
        ]

    def costs(self) -> list[dict[str, Any]]:
        """Return one dictionary per arm whose time or memory was measured by a run that had a GPU to itself.

        `step_s` is the time of a training step in seconds. `relative` is the step time divided by the baseline's step
        time. `peak_bytes` is the peak of the GPU memory that torch reserved.
        """
        from tintype.study.report.findings import cost_rows

        return cost_rows(self.content)

    def priority(self) -> list[dict[str, Any]]:
        """Return one dictionary per plan and primary metric, in the order in which to adopt the plans.

        The plans are the arms and the baseline. `gain` is the improvement as a fraction of the baseline's mean, with
        the interval from `low` to `high`. `cost` is the step time divided by the baseline's step time. `cost` is None
        if no run that had a GPU to itself measured the step time. `rank_low` and `rank_high` are the best and the worst
        possible rank among `of` plans. A plan is on the `front` unless a plan of the same or lower cost is shown to be
        better. `dominated_by` names the plans that are shown to be better. Plans on the front come first; within each
        group the rank decides.
        """
        from tintype.study.priority import priorities

        return [row.row for row in priorities(self.content)]

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Return the runs that diverged or failed; `error` says why."""
        return [run for run in self.runs() if run["state"] in ("diverged", "failed")]

    @property
    def report(self) -> Path:
        """Return the path of the HTML report on these results."""
        return self.path / _REPORT

    @property
    def notes(self) -> list[str]:
        """Return the caveats of the verdicts, for example that they rest on few seeds."""
        return [note.text for note in self.content.notes()]

    def __repr__(self) -> str:
        return f"<Results {self.path}: {self.content.question}>"

    def __str__(self) -> str:
        return "\n".join([*(" · ".join(cells) for cells in self._shown()), *self.notes])

    def _repr_html_(self) -> str:
        """Return the verdicts as an HTML table for notebooks."""
        heads, *rows = self._shown()
        title = f"<caption>{escape(self.content.question)}</caption>"
        head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in rows)
        notes = "".join(f"<p>{escape(text)}</p>" for text in self.notes)
        return f"<table>{title}<tr>{head}</tr>{body}</table>{notes}"

    def _shown(self) -> list[list[str]]:
        """Return the header and the rows of the table of verdicts on primary metrics."""
        heads = ["arm", "metric", "verdict", "baseline", "arm's mean", "difference"]
        rows = self.content.rows(primary=True)
        cells = [[row.label, row.title, row.words, row.baseline_mean, row.mean, row.difference] for row in rows]
        return [heads, *cells]


def load_study(study: AnyPath, *settings: str, arms: Sequence[str] = ()) -> Study:
    """Load a study by its name, from its file or from its folder. All plans of the study are resolved and checked.

    Args:
        study: a name that `tintype studies` lists, such as "pocket", the path of a study file, or the folder of a
            study that was run. A folder also gives the plan of the baseline.
        settings: overrides of the study "key=value", such as "seeds=[0,1]".
        arms: the names of the arms to keep; by default all arms.

    Raises:
        UserError: there is no such study, a setting is not valid, or an arm changes nothing or too much.
    """
    from tintype.study.folder import open_study
    from tintype.study.study import choose_arms

    found = open_study(str(study), settings)
    return choose_arms(found, arms) if arms else found


def make_study(
    question: str,
    baseline: AnyPlan,
    arms: Mapping[str, str | Sequence[str]],
    seeds: Sequence[int] | Mapping[str, int],
    *,
    name: str = "study",
    **settings: object,
) -> Study:
    """Make a study that compares arms with a baseline.

    Args:
        question: the question that the study answers, for the report.
        baseline: a plan, or any argument that `load_plan` takes.
        arms: mapping of each arm's name to its changes: a technique ("muon", "repa:weight=0.5"), an override of the
            baseline ("optimizer.lr=1e-3"), or a list of both.
        seeds: the seeds with which every arm is trained. With {"first": 4, "most": 16}, every arm gets 4 seeds, and
            undecided arms get more, up to 16.
        name: name of the study, for messages and the report.
        settings: other keys of a study file, such as `primary=["scene_accuracy"]` or `evaluation={"count": 256}`.

    Raises:
        UserError: a setting is not valid, or an arm changes nothing or more than it declares.
    """
    from tintype.config.strict import Document
    from tintype.study.settings import split_changes
    from tintype.study.study import study_from_document

    if own := {"recipe", "set", "resolutions"} & set(settings):
        raise UserError(
            f"{min(own)}: make_study gets its baseline as a plan, so this setting is not allowed",
            "change the plan with load_plan, or write a study file",
        )
    if not isinstance(arms, Mapping):
        raise UserError(
            f"make_study: the arms {arms!r} have no names",
            'give a mapping from names to arms, such as {"bigger": "train.batch=64"}',
        )
    if not isinstance(seeds, Mapping | Sequence):
        raise UserError(
            f"make_study: {seeds!r} is not a list of seeds", 'give seeds as [0, 1, 2] or {"first": 4, "most": 16}'
        )
    changes = {arm: [given] if isinstance(given, str) else given for arm, given in arms.items()}
    for arm, specs in changes.items():
        check_texts(f"make_study: arm '{arm}'", specs, '"muon"')
    listed = [{"name": arm, **split_changes(specs)} for arm, specs in changes.items()]
    planned = dict(seeds) if isinstance(seeds, Mapping) else list(seeds)
    content = {"question": question, "recipe": _BASELINE, "seeds": planned, "arms": listed, **settings}
    return study_from_document(Document("the study", content), name, baselines={"": plan_of(baseline)})


def _progress(given: OnStudy | None) -> StudyProgress:
    """Return `given` if it is a `StudyProgress`. Otherwise return a `StudyProgress` that calls `given` and logs
    notes.
    """
    from tintype.runtime.notes import note as log_note
    from tintype.study.lab import StudyProgress

    if isinstance(given, StudyProgress):
        return given
    call: Callable[[Message], None] = given or ignore

    class Calls(StudyProgress):
        @contextmanager
        def runs(self, total: int, interrupt: Interrupt, doing: str = "study") -> Iterator[Callable[[Message], None]]:
            yield call

        def note(self, text: str) -> None:
            log_note(text)

    return Calls()


def _results(outcome: StudyOutcome, out: Path, progress: StudyProgress) -> Results:
    """Return the results of a call's runs. Raise if a signal stopped the call, or if there are no results."""
    done = f"{outcome.done} of {outcome.total} runs are done"
    if outcome.interrupted:
        progress.stopped(outcome.signal, f"{done}, those that had begun are saved; {again()} to resume", outcome)
        raise StoppedError(f"{out} was interrupted: {done}", f"{again()} to resume")
    if outcome.signal is not None:
        progress.stopped(outcome.signal, "", outcome)
    if outcome.report is None:
        raise UserError(outcome.no_report)
    return Results(out, outcome.report.results, outcome)


@overload
def run_study(
    study: AnyStudy,
    out: AnyPath,
    *settings: str,
    arms: Sequence[str] = (),
    jobs: AnyJobs | None = None,
    budget: str | None = None,
    like: AnyPath | None = None,
    gpu: str = "h200",
    on_begin: Callable[[PlannedStudy], None] | None = None,
    on_progress: OnStudy | None = None,
) -> Results: ...
@overload
def run_study(
    study: AnyStudy,
    out: AnyPath,
    *settings: str,
    arms: Sequence[str] = (),
    jobs: AnyJobs | None = None,
    dry_run: bool = False,
    like: AnyPath | None = None,
    gpu: str = "h200",
    prepare: bool = False,
    on_begin: Callable[[PlannedStudy], None] | None = None,
    on_progress: OnStudy | None = None,
) -> Results | PlannedStudy: ...
def run_study(
    study: AnyStudy,
    out: AnyPath,
    *settings: str,
    arms: Sequence[str] = (),
    jobs: AnyJobs | None = None,
    budget: str | None = None,
    dry_run: bool = False,
    like: AnyPath | None = None,
    gpu: str = "h200",
    prepare: bool = False,
    on_begin: Callable[[PlannedStudy], None] | None = None,
    on_progress: OnStudy | None = None,
) -> Results | PlannedStudy:
    """Run a study: train and score every arm with every seed, compare the arms, and write the report.

    Each run is a process of its own. The same call resumes a stopped study, and does not repeat finished runs. Ctrl+C
    saves the unfinished runs, then raises KeyboardInterrupt.

    Args:
        study: name of a study, path of a study file, or folder of a study to run again.
        out: folder to write to.
        settings: override a setting of the study: "seeds=[0,1]" or "set=[optimizer.lr=2e-4]".
        arms: run only this arm (repeatable).
        jobs: number of runs at a time, or auto: as many as fit into memory and raise the throughput; by default auto
            on a GPU, 1 on a CPU.
        budget: time limit for interim analyses (looks), such as 45m: a look begins only if it is expected to end in
            time.
        dry_run: show the arms, the number of runs and their cost, and stop.
        like: folder of a past study: take memory and step times of the same plans from it. If its baseline is the
            same, also take the seed spread, and for a dry run the duration of a run.
        gpu: kind of GPU for which the cost of a run is estimated: h200, h100, b200, ….
        prepare: check the study, make its folder for `tintype work`, and stop.
        on_begin: called with the planned study before the first training step.
        on_progress: called while runs train and are scored, with `key` (arm and seed), `state`, `share` and more.

    Returns:
        The results. With `dry_run` or `prepare`, the planned study: its arms, its notes, and for a dry run the `cost`.

    Raises:
        UserError: the folder holds another study, the study cannot be trained or scored, or no run could be read. A
            single run that diverges or fails does not raise; `Results.failed` lists it.
    """
    from tintype.bench.expect import expected_seconds
    from tintype.study import lab
    from tintype.study.costs import cost_of, parse_duration
    from tintype.study.estimate import estimate_study
    from tintype.study.folder import check_folder
    from tintype.study.preview import PlannedStudy, notes_before
    from tintype.study.supervisor import most_of, parse_jobs

    progress, folder, past = _progress(on_progress), Path(out), None if like is None else Path(like)
    resolved, wanted = _resolved(study, settings, arms), parse_jobs(jobs)
    budget_s = None if budget is None else parse_duration(budget)
    notes = notes_before(resolved, folder, [folder / _RESULTS, *([past] if past else [])])
    planned = PlannedStudy(resolved, folder, notes, estimate_study(resolved, gpu))
    (on_begin or ignore)(planned)
    if dry_run:
        check_folder(resolved, folder)
        with progress.phase("estimating the time", NOT_MEASURED):
            measure = partial(expected_seconds, resolved, planned.estimate.costs)
            return replace(planned, cost=cost_of(resolved, folder, past, most_of(wanted), measure))
    if prepare:
        lab.prepare_study(resolved, folder, progress)
        return planned
    outcome = lab.run_study(resolved, folder, wanted, progress, budget_s, past)
    return _results(outcome, folder, progress)


def _resolved(study: AnyStudy, settings: Sequence[str], arms: Sequence[str]) -> Study:
    from tintype.study.study import Study, choose_arms

    if not isinstance(study, Study):
        return load_study(study, *settings, arms=arms)
    if settings:
        raise UserError(
            f"{option('set', settings[0])}: this study exists already, so its settings cannot be changed",
            "give the settings to load_study or make_study",
        )
    return choose_arms(study, arms) if arms else study


def report(folder: AnyPath, *, without_data: bool = False, on_progress: OnStudy | None = None) -> Results:
    """Compare the runs of a study again, and write a new report.

    Args:
        folder: folder of a study.
        without_data: leave images and captions of the data, and local paths, out of the report.
        on_progress: callback for progress, called as in `run_study`.

    Raises:
        UserError: the folder holds no study, or none of its runs is finished.
    """
    from tintype.study.lab import report_study

    out = study_folder(folder)
    return Results(out, report_study(out, _progress(on_progress), without_data).results)


@dataclass(frozen=True)
class WorkedRun:
    """A run that a worker took, and its last state."""

    arm: str
    seed: int
    state: str


@dataclass(frozen=True)
class Worked:
    """The runs that the workers of one call took."""

    folder: str
    runs: list[WorkedRun]
    spent: bool
    """Whether the other runs need a new process, because GPU memory ran out or the GPU failed in this process."""

    @property
    def done(self) -> int:
        return sum(run.state == "done" for run in self.runs)


def work(
    folder: AnyPath,
    *,
    run: str | None = None,
    wait: bool = True,
    expiry: str = "120s",
    jobs: AnyJobs | None = None,
    on_progress: OnStudy | None = None,
) -> Worked:
    """Take and train the remaining runs of a study until none is left. Any number of workers can share a study.

    Args:
        folder: folder of a study.
        run: take only the run whose hash begins with this text, even if the run has failed before.
        wait: wait while other workers run, for the next interim analysis, and to take over runs of a worker that dies.
        expiry: time without a sign of life, such as 120s, after which a worker loses its run to another worker.
        jobs: number of runs at a time, or auto: as many as fit into memory and raise the throughput; by default auto
            on a GPU, 1 on a CPU.
        on_progress: callback for progress, called as in `run_study`.

    Raises:
        UserError: the folder holds no study, or the study cannot be trained or scored on this machine.
    """
    from tintype.study.costs import parse_duration
    from tintype.study.lab import work_on_study
    from tintype.study.supervisor import parse_jobs

    out, progress, wanted = study_folder(folder), _progress(on_progress), parse_jobs(jobs)
    outcome = work_on_study(out, progress, run, wait, parse_duration(expiry), 1 if run is not None else wanted)
    runs = [WorkedRun(*key, message.state) for key, message in outcome.last.items()]
    worked = Worked(str(out), runs, outcome.spent)
    if outcome.signal is not None:
        done = f"{worked.done} of the {len(runs)} runs that were taken are done"
        progress.stopped(outcome.signal, f"{done}, what was begun is saved; another worker resumes it")
    return worked


def launch(
    folder: AnyPath,
    *,
    on: str,
    workers: Count = 1,
    gpus_per_worker: Annotated[int, Ge(0)] = 1,
    jobs: AnyJobs | None = None,
    time: str | None = None,
    partition: str = "",
    address: str = "",
    on_line: Callable[[str], None] | None = None,
) -> list[str]:
    """Start workers of a study on other machines, by Slurm, Ray or ssh.

    Args:
        folder: folder of a study, which all machines share.
        on: where to start workers: slurm, ray, or ssh:HOST,HOST.
        workers: number of workers; with ssh, number of workers on each machine.
        gpus_per_worker: number of GPUs of each worker.
        jobs: number of runs at a time of each worker, or auto; by default auto on a GPU, 1 on a CPU.
        time: with slurm: time limit of a worker, such as 4h; the worker then saves its runs and is queued again.
        partition: with slurm: partition to queue the workers in.
        address: with ray: address of the cluster; by default the cluster that Ray finds, or else this machine.
        on_line: called at once with each line that is later returned. Workers of Ray end when this call ends.

    Returns:
        One line for each worker that was started or has ended.

    Raises:
        UserError: the folder holds no study, or the workers cannot be started.
    """
    from tintype.study.costs import parse_duration
    from tintype.study.launch.choose import choose_launcher
    from tintype.study.launch.launcher import Crew
    from tintype.study.supervisor import parse_jobs

    out, time_s = study_folder(folder).resolve(), None if time is None else parse_duration(time)
    launcher = choose_launcher(on, address)
    if not (out / _STUDY).is_file():
        raise UserError(
            f"{out} is not a study: {_STUDY} is missing",
            "`tintype ablate STUDY --out DIR --prepare` creates a study that workers can run",
        )
    if jobs:
        parse_jobs(jobs)
    lines: list[str] = []
    for line in launcher.launch(Crew(out, workers, gpus_per_worker, time_s, partition, str(jobs or ""))):
        (on_line or ignore)(line)
        lines.append(line)
    return lines


def replicate(
    folder: AnyPath,
    *,
    seeds: Annotated[int, Ge(2)] = 10,
    jobs: AnyJobs | None = None,
    from_: AnyPath | None = None,
    dry_run: bool = False,
    on_progress: OnStudy | None = None,
) -> Results | PlannedReplication:
    """Test each verdict of a study on fresh seeds. The verdict then holds, stays open, or is contradicted.

    Args:
        folder: folder of a study.
        seeds: number of fresh seeds for each arm with a verdict, and for the baseline.
        jobs: number of runs at a time, or auto: as many as fit into memory and raise the throughput; by default auto
            on a GPU, 1 on a CPU.
        from_: train no runs; take the fresh runs from this finished study of the same plans. --seeds is then ignored.
        dry_run: show the verdicts, the number of fresh runs and their time, and stop.
        on_progress: callback for progress, called as in `run_study`.

    Returns:
        The results of the study, with the outcome of each tested verdict. With `dry_run`, the planned runs.

    Raises:
        UserError: the study has no verdict, or was replicated before with other seeds.
    """
    from tintype.study import lab
    from tintype.study.preview import PlannedReplication
    from tintype.study.supervisor import parse_jobs

    out, progress = study_folder(folder), _progress(on_progress)
    if from_ is not None:
        if dry_run:
            found = lab.plan_replication_from(out, Path(from_), progress)
            arms = [arm.label for arm in found.fresh.study.arms]
            return PlannedReplication(found.fresh.seeds, arms, _held(found.claims, found.results), source=found.source)
        return Results(out, lab.replicate_from(out, Path(from_), progress).results)
    wanted = parse_jobs(jobs)
    if dry_run:
        return _planned_replication(lab.plan_replication(out, seeds, progress), wanted, progress)
    return _results(lab.replicate_study(out, seeds, wanted, progress), out, progress)


def _planned_replication(planned: ReplicationPlan, jobs: Jobs, progress: StudyProgress) -> PlannedReplication:
    from tintype.bench.expect import expected_seconds
    from tintype.study.costs import cost_of, seconds_here
    from tintype.study.preview import PlannedReplication
    from tintype.study.supervisor import most_of

    tuned = planned.study.settings.model_copy(update={"tune": {}})  # the values that the study chose are used
    fresh = replace(planned.study, settings=tuned)
    with progress.phase("estimating the time", NOT_MEASURED):
        cost = cost_of(
            fresh, planned.folder, None, most_of(jobs), lambda: seconds_here(planned.results) or expected_seconds(fresh)
        )
    arms = [arm.label for arm in planned.study.arms]
    return PlannedReplication(planned.seeds, arms, _held(planned.claims, planned.results), cost)


def _held(claims: Sequence[Claim], results: StudyResults) -> list[HeldVerdict]:
    from tintype.study.preview import HeldVerdict

    labels = {metric.name: metric.label for metric in results.metrics}
    return [HeldVerdict(one.arm, one.metric, labels[one.metric], one.verdict) for one in claims]


@overload
def propose(folder: AnyPath, *, arm: None = None) -> list[Proposal]: ...
@overload
def propose(
    folder: AnyPath,
    *,
    arm: str,
    jobs: AnyJobs | None = None,
    budget: str | None = None,
    looks: str | None = None,
    dry_run: bool = False,
    on_progress: OnStudy | None = None,
) -> Proposal: ...
def propose(
    folder: AnyPath,
    *,
    arm: str | None = None,
    jobs: AnyJobs | None = None,
    budget: str | None = None,
    looks: str | None = None,
    dry_run: bool = False,
    on_progress: OnStudy | None = None,
) -> Proposal | list[Proposal]:
    """Propose a new arm for a study: train the seeds that it needs, and answer keep, drop or more seeds needed.

    Args:
        folder: folder of a study that was run.
        arm: arm to try: NAME=CHANGES, where the changes are techniques or key.path=value, joined by ' + '. Without an
            arm, list all proposals.
        jobs: number of runs at a time, or auto: as many as fit into memory and raise the throughput; by default auto
            on a GPU, 1 on a CPU.
        budget: time limit of this command, such as 45m: an interim analysis (look) begins only if it is expected to
            end in time.
        looks: number of seeds at each interim analysis (look), such as 4,8,16; only with a study's first proposal.
        dry_run: show the number of runs, their time and the error rate that the proposal would spend, and stop.
        on_progress: callback for progress, called as in `run_study`.

    Returns:
        The `answer` with its `reason` and `comparisons`. Without an arm, all proposals, oldest first.

    Raises:
        UserError: the study has no baseline to compare with, or the arm changes nothing or has a name that is in use.
    """
    from tintype.study.costs import parse_duration
    from tintype.study.propose import parse_arm, parse_looks, proposals, propose
    from tintype.study.supervisor import parse_jobs

    out, progress = study_folder(folder), _progress(on_progress)
    if arm is None:
        return proposals(out)
    wanted, budget_s = parse_jobs(jobs), None if budget is None else parse_duration(budget)
    if not progress.argv:  # a missing ledger is an error only if a noted command has made one
        progress.argv = ["tintype", "propose", str(out), *shlex.split(rendered(option("arm", arm)))]
    found = propose(out, parse_arm(arm), wanted, progress, budget_s, parse_looks(looks), dry_run)
    if found.signal is not None:
        progress.stopped(found.signal, f"the runs that had begun are saved, and the proposal stays open; {again()}")
    return found


def load_results(path: AnyPath) -> Results:
    """Load the results of a study that was run and reported, from its folder or its results.json.

    Raises:
        UserError: there are no results, or the file is damaged or was written by another version of tintype.
    """
    from tintype.study.results import read_results_file

    file = Path(path)
    file = file / _RESULTS if file.is_dir() else file
    if not file.is_file():
        raise UserError(f"{file} does not exist", "give the folder of a study that has a report")
    return Results(file.parent, read_results_file(file))


def compare(*runs: AnyRun) -> SideBySide:
    """Compare two or more runs side by side: differences of plans, scores, logged numbers, speed and time.

    Args:
        runs: runs, paths of their folders, or "STUDY:ARM:SEED" for a run of a study. The first run is the reference
            for all others.

    Returns:
        The `changes` of the plans, `rows()` of the scores, `curves` at steps that all runs logged, and `notes` on
        numbers that cannot be compared.

    Raises:
        UserError: fewer than two runs, the same run twice, or a folder that holds no run.
    """
    from tintype.study.side_by_side import compare_runs

    return compare_runs([str(path_of(run)) for run in runs])


def pool(*studies: AnyPath, arms: Sequence[str] = ()) -> Pooled:
    """Pool several studies of one comparison: an estimate from each study, their mean, and whether they differ.

    Args:
        studies: folders of two or more studies of one comparison. Two studies share an arm if its plan and the
            baseline's plan are equal in both, apart from the seed. A run that is in two studies counts once.
        arms: pool only this arm, by its name in any of the studies (repeatable); by default all arms that at least two
            studies share.

    Returns:
        The pooled `arms`, each with its `metrics`, also as dictionaries by `rows()`. `left_out` lists the studies that
        cannot be pooled, with the reason.

    Raises:
        UserError: a study is given twice or has no results, or no two studies share an arm.
    """
    from tintype.study.pooling import pool_studies

    return pool_studies([study_folder(one) for one in studies], arms)


def power(
    studies: Sequence[AnyPath] = ("studies",),
    *,
    effect: str = "5%",
    seeds: Annotated[int, Ge(2)] = 3,
    metric: str | None = None,
    arms: Count | None = None,
    control: bool | None = None,
    resolutions: Count = 1,
    compare: Annotated[int, Ge(0)] | None = None,
    without: Sequence[str] = (),
    bank: bool = False,
) -> PowerPlan:
    """Compute how many seeds a new study needs, from the seed spread of past studies.

    Args:
        studies: folders or results.json of past studies, or folders of such folders.
        effect: smallest change worth finding: 5% of the baseline's value, or 0.02.
        seeds: number of seeds per arm in the new study.
        metric: compute the number of seeds for this metric only.
        arms: number of arms in the new study, including its control; by default as in a single given study, else 3.
        control: whether one of the arms is the control; by default as in a single given study.
        resolutions: number of resolutions in the new study.
        compare: number of pairs of arms that are compared with each other; by default as in a single given study.
        without: leave this arm out of the measured seed spread (repeatable).
        bank: the new study names the past studies in analysis.bank, and so reuses their baseline runs.

    Returns:
        The `groups` of past studies that share a baseline and a protocol. Each has its `metrics` with `spread`,
        `power`, `seeds_needed`, and the smallest change that other numbers of seeds find (`by_seeds`).

    Raises:
        UserError: these studies give no seed spread, or a name or a number is not valid.
    """
    from tintype.study.power import plan_power

    paths = [study_folder(one) for one in ([studies] if isinstance(studies, str) else studies)]
    return plan_power(paths, effect, seeds, metric, arms, without, resolutions, control, compare, bank)


def status(
    folder: AnyPath, *, watch: bool = False, on_status: Callable[[StudyStatus], None] | None = None
) -> StudyStatus:
    """Show the progress of a study: finished, failed and current runs, their workers, and the time left.

    Args:
        folder: folder of a study.
        watch: update the status every two seconds, until no run is left.
        on_status: called with each status, including the last.

    Returns:
        The `runs`, each with its `state`, the time spent, and the time left.

    Raises:
        UserError: the folder holds no study.
    """
    from tintype.study.status import status_of

    report = on_status or ignore
    report(found := status_of(study_folder(folder)))
    while watch and not found.is_over:
        time.sleep(_WATCH_S)
        report(found := status_of(study_folder(folder)))
    return found


def study_folder(path: AnyPath) -> Path:
    """Return the folder of a study. The input is this folder, or the path of the study.yaml in it."""
    study = Path(path)
    return study.parent if study.name == _STUDY and study.is_file() else study
