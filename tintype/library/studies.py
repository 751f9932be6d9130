"""Studies in Python: load or make one, run it, follow it, read its results, plan the next; runs side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from tintype.errors import UserError
from tintype.library.kinds import AnyPath, AnyPlan, AnyRun, AnyStudy, Count
from tintype.library.plans import check_texts, plan_of
from tintype.library.runs import deliver, ignore, path_of

if TYPE_CHECKING:
    from tintype.runtime.interrupt import Interrupt
    from tintype.study.lab import StudyProgress
    from tintype.study.pooling import Pooled
    from tintype.study.power import PowerPlan
    from tintype.study.results import StudyResults
    from tintype.study.runner import Message
    from tintype.study.side_by_side import SideBySide
    from tintype.study.status import StudyStatus
    from tintype.study.study import Study
    from tintype.study.supervisor import Jobs

_STUDY, _RESULTS, _REPORT = "study.yaml", "results.json", "report.html"
_WATCH_S = 2.0
_BASELINE = "baseline.yaml"
"""The file in a study's folder that has the plan of its baseline."""


@dataclass(frozen=True, repr=False)
class Results:
    """The results of a study: a verdict for each arm and metric, and the numbers of each run."""

    path: Path
    """The study's folder."""
    content: StudyResults
    """All that results.json has."""

    def rows(self, primary: bool = False) -> list[dict[str, Any]]:
        """Return a dictionary for each verdict, as `pandas.DataFrame` and `polars.DataFrame` take them.

        `kind` is arm, control, between, trend, main effect or interaction. `difference` is arm minus baseline, and
        `low` to `high` its interval; in a row of two arms the second stands in the place of the baseline. `words` adds
        to `verdict` how many runs were lost. With `primary`, only the metrics of the study's question.
        """
        return [row.data for row in self.content.rows(primary=primary)]

    def runs(self) -> list[dict[str, Any]]:
        """Return a dictionary for each run: its arm, seed, state and folder, and its metrics by name."""
        return [
            {"arm": arm.name, "resolution": arm.resolution, "seed": run.seed, "state": run.state, "error": run.error}
            | {"path": str(self.path / run.folder), "training_s": run.train_s}
            | run.metrics
            for arm in self.content.arms
            for run in arm.runs
        ]

    def costs(self) -> list[dict[str, Any]]:
        """Return a dictionary for each arm of which something was measured alone on a GPU.

        `step_s` are the seconds of a training step, `relative` that over the baseline's, `peak_bytes` the most memory
        that torch reserved.
        """
        from tintype.study.report.findings import cost_rows

        return cost_rows(self.content)

    def priority(self) -> list[dict[str, Any]]:
        """Return a dictionary for each arm, and for the baseline, on each primary metric: what to adopt first.

        `gain` is a share of the baseline's mean, more is better; `low` to `high` its interval. `cost` is the step time
        over the baseline's, None where it was not measured alone on a GPU. It may rank from `rank_low` to `rank_high`
        among `of` plans, and is on the `front` unless a plan that is no dearer is shown better: `dominated_by` names
        these. The front comes first, then the rank decides.
        """
        from tintype.study.priority import priorities

        return [row.row for row in priorities(self.content)]

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Return the runs that diverged or failed; `error` says why."""
        return [run for run in self.runs() if run["state"] in ("diverged", "failed")]

    @property
    def report(self) -> Path:
        """Return the page that shows all of it."""
        return self.path / _REPORT

    @property
    def notes(self) -> list[str]:
        """Return what to know before building on the verdicts, for example that they are of few seeds."""
        return [note.text for note in self.content.notes()]

    def __repr__(self) -> str:
        return f"<Results {self.path}: {self.content.question}>"

    def __str__(self) -> str:
        return "\n".join([*(" · ".join(cells) for cells in self._shown()), *self.notes])

    def _repr_html_(self) -> str:
        """Return the verdicts as a table, which notebooks show."""
        heads, *rows = self._shown()
        title = f"<caption>{escape(self.content.question)}</caption>"
        head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in rows)
        notes = "".join(f"<p>{escape(text)}</p>" for text in self.notes)
        return f"<table>{title}<tr>{head}</tr>{body}</table>{notes}"

    def _shown(self) -> list[list[str]]:
        """Return the head and the rows of the table of verdicts, on the metrics of the question."""
        heads = ["arm", "metric", "verdict", "baseline", "arm's mean", "difference"]
        rows = self.content.rows(primary=True)
        cells = [[row.label, row.title, row.words, row.baseline_mean, row.mean, row.difference] for row in rows]
        return [heads, *cells]


def load_study(study: AnyPath, *settings: str, arms: Sequence[str] = ()) -> Study:
    """Return a study by its name, from its file or from its folder, with all its plans resolved and checked.

    Args:
        study: a name that `tintype studies` lists, as "pocket", the path of a study file, or the folder of a study that
            was run: its baseline is then the one that is stored there.
        settings: overrides of the study, each "key=value", as "seeds=[0,1]".
        arms: the names of the arms to keep; by default all.

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
    """Return a study of arms against a baseline.

    Args:
        question: the question that it answers, for the report.
        baseline: a plan, or what `load_plan` takes.
        arms: by name, what each arm changes: a technique ("muon", "repa:weight=0.5"), an override of the baseline
            ("optimizer.lr=1e-3"), or a list of both.
        seeds: the seeds that every arm is trained with, or {"first": 4, "most": 16}: undecided arms get more.
        name: name of the study, for messages and the report.
        settings: any other key of a study file, as `primary=["scene_accuracy"]` or `evaluation={"count": 256}`.

    Raises:
        UserError: a setting is not valid, or an arm changes nothing or more than it declares.
    """
    from tintype.config.strict import Document
    from tintype.study.settings import split_changes
    from tintype.study.study import study_from_document

    if own := {"recipe", "set", "resolutions"} & set(settings):
        raise UserError(f"{min(own)}: the baseline is a plan here", "change it with load_plan, or write a study file")
    if not isinstance(arms, Mapping):
        raise UserError(f"make_study: {arms!r} has no names", 'give arms by name, as {"bigger": "train.batch=64"}')
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


def _calling(on_progress: Callable[[Message], None]) -> StudyProgress:
    """Return the progress of a study that calls a function; notes go to the log."""
    from tintype.runtime.notes import note as log_note
    from tintype.study.lab import StudyProgress

    class Calls(StudyProgress):
        @contextmanager
        def runs(self, total: int, interrupt: Interrupt, doing: str = "study") -> Iterator[Callable[[Message], None]]:
            yield on_progress

        def note(self, text: str) -> None:
            log_note(text)

    return Calls()


def run_study(
    study: AnyStudy,
    out: AnyPath,
    *,
    jobs: Jobs = 1,
    on_progress: Callable[[Message], None] | None = None,
) -> Results:
    """Train and score every arm of a study with every seed, in processes of their own, and write its report.

    What is done is not done again, so the same call resumes a study that was stopped. Ctrl+C saves what has begun
    before it raises KeyboardInterrupt.

    Args:
        study: a study, or what `load_study` takes.
        out: the study's folder; it is made where it is not there.
        jobs: runs at a time; "auto" for as many as fit on the GPUs and raise the throughput.
        on_progress: called while runs train and are scored, with `key` (arm and seed), `state`, `share` and more.

    Raises:
        UserError: the folder holds another study, the study cannot be trained or scored, or no run could be read. A
            single run that diverges or fails raises nothing: see `Results.failed`.
    """
    from tintype.study import lab
    from tintype.study.study import Study

    resolved = study if isinstance(study, Study) else load_study(study)
    outcome = lab.run_study(resolved, Path(out), jobs, _calling(on_progress or ignore))
    deliver(outcome.signal)
    if outcome.interrupted or outcome.report is None:
        done = f"{outcome.done} of {outcome.total} runs are done; make the same call to resume"
        raise UserError(outcome.no_report or f"{out} was interrupted: {done}")
    return Results(Path(out), outcome.report.results)


def load_results(path: AnyPath) -> Results:
    """Return the results of a study that was run and reported, from its folder or its results.json.

    Raises:
        UserError: there are none, or the file is damaged or of another version.
    """
    from tintype.study.results import read_results_file

    file = Path(path)
    file = file / _RESULTS if file.is_dir() else file
    if not file.is_file():
        raise UserError(f"{file} does not exist", "give the folder of a study that was run to its report")
    return Results(file.parent, read_results_file(file))


def compare(*runs: AnyRun) -> SideBySide:
    """Put two or more runs side by side: what differs in their plans, scores, logged numbers, speed and time.

    Args:
        runs: runs, paths of their folders, or "STUDY:ARM:SEED" for a run of a study. The first is what the others are
            compared with.

    Returns:
        `changes` of the plans, `rows()` of the scores, `curves` at steps that all runs logged, and `notes` on what
        cannot be compared.

    Raises:
        UserError: fewer than two runs, the same run twice, or a folder that holds no run.
    """
    from tintype.study.side_by_side import compare_runs

    return compare_runs([str(path_of(run)) for run in runs])


def pool(*studies: AnyPath, arms: Sequence[str] = ()) -> Pooled:
    """Read several studies of one comparison together: one estimate for each, their mean, and whether they differ.

    Args:
        studies: folders of two or more studies of one comparison. An arm is the same in two of them where its plan and
            the baseline's are, but for the seed; a run counts once.
        arms: only this arm, by its name in any of the studies (repeatable); by default all that two of them have.

    Returns:
        `arms`, each with its `metrics`; `rows()` has them as dictionaries; `left_out` says which studies do not fit.

    Raises:
        UserError: a study is given twice, has no results, or no two of them have an arm in common.
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
    """Compute how many seeds a study needs, from the seed spread of past studies.

    Args:
        studies: folders or results.json of past studies, or folders of such folders.
        effect: smallest change worth finding: 5% of the baseline's value, or 0.02.
        seeds: seeds per arm in the new study.
        metric: only this metric.
        arms: arms of the new study, its control included; by default those of a single given study, else 3.
        control: whether one of the arms is the control; by default as in a single given study.
        resolutions: resolutions of the new study.
        compare: pairs of arms compared with each other; by default as in a single given study.
        without: leave this arm out of the measured seed spread (repeatable).
        bank: the new study names the past ones in analysis.bank: their baseline runs serve it.

    Returns:
        `groups` of past studies with one baseline and protocol, each with its `metrics`: `spread`, `power`,
        `seeds_needed`, and the changes that other numbers of seeds find (`by_seeds`).

    Raises:
        UserError: no spread is known from these studies, or a name or a number is not valid.
    """
    from tintype.study.power import plan_power

    paths = [study_folder(one) for one in ([studies] if isinstance(studies, str) else studies)]
    return plan_power(paths, effect, seeds, metric, arms, without, resolutions, control, compare, bank)


def status(
    folder: AnyPath, *, watch: bool = False, on_status: Callable[[StudyStatus], None] | None = None
) -> StudyStatus:
    """Show how far a study is: who works on which run, what is done, what failed, and how long the rest takes.

    Args:
        folder: folder of a study.
        watch: show it anew every two seconds, until nothing is left.
        on_status: called with each reading, the last one too.

    Returns:
        `runs`, each with its `state`, and the time that was spent and is left.

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
    """Return the folder of a study, given it or the study.yaml in it."""
    study = Path(path)
    return study.parent if study.name == _STUDY and study.is_file() else study
