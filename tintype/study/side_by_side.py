"""Runs of any studies or folders side by side, from their files alone: what differs in their plans, and their numbers.

Nothing here trains, prints or writes: the command `tintype compare` and pages show the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tintype.errors import UserError
from tintype.evaluation.protocol import definitions
from tintype.evaluation.results import EvaluationResult, read_result
from tintype.metrics import validation
from tintype.metrics.throughput import images_per_s, seconds_until, time_split
from tintype.page.numerals import UNKNOWN, significant
from tintype.plan import Change, Plan, plan_from_folder, short_diff, unhashed_diff
from tintype.settings import Plain, plain
from tintype.study.contrasts import another_space
from tintype.study.folder import stored_study
from tintype.study.lab import choose_run
from tintype.study.results import SPEED, Curve
from tintype.study.runner import FAILURES, tasks_of
from tintype.train import checkpoint
from tintype.train.folder import RunFolder, read_about

State = Literal["done", "unfinished", "diverged", "failed", "exported"]
_STUDY = "study.yaml"
_NO_CURVES = frozenset({"step", "images", "seconds"})
"""Numbers of a log line that say where it stands, not how well the run does."""
_LOSSES = ("loss", "flow")
"""Logged losses; a printed comparison shows the first that the runs share."""
_OF_LOSSES = ("objective", "main_loss", "weighting", "time", "noise", "tokenizer", "tuning")
"""Sections of a plan that say what the error of the denoiser is taken of, and with which weights."""


@dataclass(frozen=True)
class RunData:
    """One run as its folder has it."""

    name: str
    """How it was asked for: its folder, or STUDY:ARM:SEED."""
    folder: Path
    plan: Plan
    lines: Sequence[Mapping[str, Any]]
    """Lines of `metrics.jsonl`."""
    results: Sequence[EvaluationResult]
    """The newest scores by each protocol, of the weights that training ended with."""
    environment: Mapping[str, Any]
    state: State

    @property
    def step(self) -> int:
        """Return the last step that was logged, or of which weights are there."""
        kept = checkpoint.steps(RunFolder(self.folder).checkpoints)
        logged = [int(line["step"]) for line in self.lines[-1:]]
        return max([0, *kept, *logged])

    @property
    def parameters(self) -> int | None:
        return self.environment.get("parameters")

    @property
    def images_per_s(self) -> float | None:
        return images_per_s(self.lines) if self.lines else None

    @property
    def training_s(self) -> float | None:
        """Return the seconds of the training's steps, without data loading, saves and compilations."""
        return seconds_until(self.lines, self.lines[-1]["step"]) if self.lines else None

    @property
    def logged_s(self) -> float | None:
        """Return the seconds of all logged windows: with data loading and compilations, without saves."""
        return sum(line["seconds"] for line in self.lines) if self.lines else None

    @property
    def time_split(self) -> dict[str, float]:
        return time_split(self.lines) if self.lines else {}

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Return every number that was logged over steps, by its name."""
        found: dict[str, Curve] = {}
        for line in self.lines:
            for name, value in line.items():
                if name not in _NO_CURVES and isinstance(value, int | float) and math.isfinite(value):
                    curve = found.setdefault(name, Curve(step=[], value=[]))
                    curve.step.append(line["step"])
                    curve.value.append(value)
        return found


@dataclass(frozen=True)
class Score:
    """A metric of a run."""

    value: float
    error: float | None
    """Standard error over the sampling noise."""
    step: int
    weights: str


@dataclass(frozen=True)
class ScoreRow:
    """A metric by one protocol; None for a run that was not scored by it."""

    metric: str
    protocol: str
    """Its hash, and the size of the images where that is a stage's. Values of two are never in one row."""
    images: int
    scores: list[Score | None]


@dataclass(frozen=True)
class SharedCurve:
    """A logged number at the steps that all runs logged."""

    name: str
    step: list[int]
    values: list[list[float]]
    """One list for each run."""


@dataclass(frozen=True, repr=False)
class SideBySide:
    """Two or more runs, and what differs."""

    runs: list[RunData]
    changes: list[dict[str, Change]]
    """Settings in which each run differs from the first: the seed first, housekeeping last; empty for the first."""
    scores: list[ScoreRow]
    curves: dict[str, SharedCurve]
    """By name, without what is not of one thing in these runs: the total of other loss terms, for example."""
    notes: list[str]
    """Reasons why numbers of these runs should not be held against each other."""

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each score of each run: metric, run, value, error, step, and the evaluation.

        That is the hash of the protocol, and the size of the images where it is a stage's.
        Values are of one thing where `evaluation` is the same.
        """
        return [
            {"metric": row.metric, "run": run.name, "value": score.value, "error": score.error, "step": score.step}
            | {"evaluation": row.protocol, "images": row.images}
            for row in self.scores
            for run, score in zip(self.runs, row.scores, strict=True)
            if score is not None
        ]

    def __repr__(self) -> str:
        """Return the runs, what differs from the first, and a table of their numbers: what `print` shows."""
        numbers = list(range(1, len(self.runs) + 1))
        lines = [f"run {number}: {run.name}" for number, run in zip(numbers, self.runs, strict=True)]
        for number, changes in list(zip(numbers, self.changes, strict=True))[1:]:
            lines.append(f"run {number} differs from run 1" + (":" if changes else " in no setting"))
            lines += [f"  {key}: {old} -> {new}" for key, (old, new) in changes.items()]
        return "\n".join([*lines, "", *_aligned(self._table()), *(f"note: {text}" for text in self.notes)])

    def _table(self) -> list[list[str]]:
        """Return a row for the state of the runs, for their speed, for each score, and for the last loss they share."""
        rows = [["", *(f"run {number}" for number in range(1, len(self.runs) + 1))]]
        rows.append(["step", *(f"{run.step:,} of {run.plan.train.steps:,}, {run.state}" for run in self.runs)])
        rows.append(["training images/s", *(significant(run.images_per_s) for run in self.runs)])
        for row in self.scores:
            values = [UNKNOWN if one is None else significant(one.value, 4) for one in row.scores]
            errors = [
                "" if one is None or one.error is None else f" ± {significant(one.error, 2)}" for one in row.scores
            ]
            rows.append([row.metric, *(value + error for value, error in zip(values, errors, strict=True))])
        for curve in [self.curves[name] for name in _LOSSES if name in self.curves][:1]:
            last = [significant(values[-1], 4) for values in curve.values]
            rows.append([f"{curve.name} at step {curve.step[-1]:,}", *last])
        return rows


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines with columns of one width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def compare_runs(names: Sequence[str]) -> SideBySide:
    """Read runs and put them side by side. A name is the folder of a run, or STUDY:ARM or STUDY:ARM:SEED."""
    if len(names) < 2:
        raise UserError(f"nothing to compare; given: {' '.join(names) or 'none'}", "give two or more runs")
    return side_by_side([read_run_data(name) for name in names])


def side_by_side(runs: Sequence[RunData]) -> SideBySide:
    """Put runs side by side; the others are compared with the first."""
    _refuse_twins(runs)
    changes, apart = [_changes(runs[0].plan, run.plan) for run in runs], _incomparable(runs)
    curves = {name: curve for name, curve in _shared_curves(runs).items() if name not in apart}
    notes = [f"{name} is not compared: {reason}" for name, reason in apart.items()]
    return SideBySide(list(runs), changes, _scores(runs), curves, [*_notes(runs, changes), *notes])


def read_run_data(name: str) -> RunData:
    """Read a run from its files; refuse what is no run with the reason."""
    folder = _folder_of(name)
    plan = plan_from_folder(folder)
    files = RunFolder(folder)
    return RunData(
        name=name,
        folder=folder,
        plan=plan,
        lines=files.metrics(),
        results=_newest_results(folder),
        environment=files.read_record("environment.json"),
        state=_state(folder, plan),
    )


def _folder_of(name: str) -> Path:
    path = Path(name)
    if (path / _STUDY).is_file():
        raise UserError(f"{path} is a study", f"name one of its runs:\n{_runs_of(path)}")
    if path.is_dir():
        return path
    if path.exists():
        raise UserError(f"{path} is a file", "give the folder of a run")
    for index in [place for place, letter in enumerate(name) if letter == ":"]:
        study, chosen = Path(name[:index]), name[index + 1 :]
        if (study / _STUDY).is_file():
            return _run_of_study(study, chosen)
    raise UserError(f"{path} does not exist", "give the folder of a run, or STUDY:ARM:SEED for a run of a study")


def _run_of_study(study: Path, chosen: str) -> Path:
    """Return the folder of ARM or ARM:SEED. An arm may have colons in its name."""
    if not (study / "runs").is_dir():
        raise UserError(f"{study} has no runs, only their results", "compare runs where the study was run")
    labels = {name for arm in stored_study(study).arms for name in (arm.name, arm.label)}
    arm, _, seed = chosen.rpartition(":")
    if chosen not in labels and seed.isdigit():
        return choose_run(study, arm, int(seed)).trained_folder()
    return choose_run(study, chosen, None).trained_folder()


def _runs_of(study: Path) -> str:
    tasks = tasks_of(stored_study(study), study)
    return "\n".join(f"  {study}:{task.arm}:{task.plan.seed}" for task in tasks)


def _state(folder: Path, plan: Plan) -> State:
    for state, name in FAILURES.items():
        if (folder / name).exists():
            return state
    if read_about(folder):
        return "exported"
    steps = checkpoint.steps(RunFolder(folder).checkpoints)
    return "done" if max(steps, default=0) >= plan.train.steps else "unfinished"


def _newest_results(folder: Path) -> list[EvaluationResult]:
    """Return the newest result of each protocol and size of images, without averages that were made of snapshots."""
    newest: dict[str, EvaluationResult] = {}
    for file in sorted((folder / "evaluation").glob("*/result.json")):
        result = read_result(file)
        before = newest.get(result.scale)
        if result.ema is None and (before is None or before.step < result.step):
            newest[result.scale] = result
    return list(newest.values())


def _refuse_twins(runs: Sequence[RunData]) -> None:
    seen: dict[Path, str] = {}
    for run in runs:
        place = run.folder.resolve()
        if place in seen:
            raise UserError(f"{run.name} is the same run as {seen[place]}", "give two or more different ones")
        seen[place] = run.name


def _changes(first: Plan, other: Plan) -> dict[str, Change]:
    rest = unhashed_diff(first, other)
    seed = {key: rest.pop(key) for key in ("seed",) if key in rest}
    return seed | short_diff(first, other) | rest


def _scores(runs: Sequence[RunData]) -> list[ScoreRow]:
    """Return a row for each metric of each protocol; those that more runs have come first. Speed is of the run."""
    by_protocol = [{result.scale: result for result in run.results} for run in runs]
    protocols = list(dict.fromkeys(name for found in by_protocol for name in found))
    protocols.sort(key=lambda name: -sum(name in found for found in by_protocol))
    rows = []
    for protocol in protocols:
        results = [found.get(protocol) for found in by_protocol]
        there = [result for result in results if result is not None]
        meanings = definitions(there[0].protocol)
        for metric in dict.fromkeys(name for result in there for name in result.metrics if name != SPEED):
            in_latents = metric in meanings and meanings[metric].metric.in_latents
            for together in _spaces(runs) if in_latents else [list(runs)]:
                scores = [
                    _score(result, metric) if run in together else None
                    for run, result in zip(runs, results, strict=True)
                ]
                if any(scores):
                    rows.append(ScoreRow(metric, protocol, there[0].protocol.count, scores))
    return rows


def _spaces(runs: Sequence[RunData]) -> list[list[RunData]]:
    """Return the runs by the space of their latents: errors in one say nothing of those in another."""
    found: list[list[RunData]] = []
    for run in runs:
        same = next((some for some in found if not another_space(run.plan, some[0].plan)), None)
        if same is None:
            found.append([run])
        else:
            same.append(run)
    return found


def _score(result: EvaluationResult | None, metric: str) -> Score | None:
    if result is None or metric not in result.metrics:
        return None
    return Score(result.metrics[metric], result.errors.get(metric), result.step, result.weights)


def _shared_curves(runs: Sequence[RunData]) -> dict[str, SharedCurve]:
    """Return the numbers that all runs logged, at the steps that all runs logged."""
    shared: dict[str, SharedCurve] = {}
    for name in runs[0].curves:
        curves = [run.curves.get(name, Curve(step=[], value=[])) for run in runs]
        values = [dict(zip(curve.step, curve.value, strict=True)) for curve in curves]
        steps = sorted(set(values[0]).intersection(*values[1:]))
        if steps:
            shared[name] = SharedCurve(name, steps, [[known[step] for step in steps] for known in values])
    return shared


def _incomparable(runs: Sequence[RunData]) -> dict[str, str]:
    """Return why logged losses are not of one thing in these runs, by their name."""
    first, others = runs[0].plan, runs[1:]
    found: dict[str, str] = {}
    if some := [run.name for run in others if _parts(run.plan, _OF_LOSSES) != _parts(first, _OF_LOSSES)]:
        reason = (
            f"objective, main loss, weighting, times, noise or tokenizer differ in {', '.join(some)}, so it is of "
            "another thing"
        )
        found = dict.fromkeys(("loss", "flow"), reason)
    elif some := [run.name for run in others if _parts(run.plan, ("losses",)) != _parts(first, ("losses",))]:
        found["loss"] = (
            f"its terms or their weights differ in {', '.join(some)}, and totals of other terms do not compare"
        )
    if some := [run.name for run in others if run.plan.train.stages != first.train.stages]:
        reason = f"train.stages differ in {', '.join(some)}, so at some steps it is of images of another size"
        found |= dict.fromkeys(["loss", "flow", *(term.kind for term in first.losses)], reason)
    for term in first.losses:
        if some := [run.name for run in others if _term(run.plan, term.kind) not in (None, _term(first, term.kind))]:
            found[term.kind] = f"the term has other settings in {', '.join(some)}"
    spaces = {run.name: reason for run in others if (reason := another_space(run.plan, first))}
    if spaces:
        found[validation.METRIC.name] = f"{', '.join(spaces)}: {next(iter(spaces.values()))}"
    return found


def _parts(plan: Plan, sections: Sequence[str]) -> Plain:
    """Return the sections of a plan that are named."""
    whole = plain(plan)
    return {name: whole.get(name) for name in sections}


def _term(plan: Plan, kind: str) -> Plain | None:
    """Return the settings of a loss term but for its weight; None where the plan does not have it."""
    found = next((plain(term) for term in plan.losses if term.kind == kind), None)
    return found and {key: value for key, value in found.items() if key not in ("weight", "schedule")}


def _notes(runs: Sequence[RunData], changes: Sequence[Mapping[str, Change]]) -> list[str]:
    notes = []
    for run in runs:
        if run.state != "done":
            notes.append(f"{run.name} is {run.state}: at step {run.step:,} of {run.plan.train.steps:,}")
    protocols = [frozenset(result.scale for result in run.results) for run in runs]
    if any(protocols) and not frozenset.intersection(*protocols):
        notes.append(
            "no evaluation is common to all runs, so their scores cannot be compared; "
            "`tintype evaluate` with the same settings scores each alike (with size=data, on images of one size)"
        )
    if any(key.partition(".")[0] == "data" for changed in changes for key in changed):
        notes.append("the runs have other data: losses, and scores against held-out images, are not of one thing")
    machines = {str(run.environment.get("device", "")) for run in runs if run.environment}
    if len(machines) > 1:
        notes.append(f"the speeds are of different machines: {'; '.join(sorted(machines))}")
    return notes


def as_json(compared: SideBySide) -> dict[str, Any]:
    """Return the comparison as plain data."""
    runs = zip(compared.runs, compared.changes, strict=True)
    return {
        "runs": [_run_json(run) | {"changes": {key: list(change) for key, change in one.items()}} for run, one in runs],
        "scores": [_row_json(row) for row in compared.scores],
        "curves": {name: {"step": curve.step, "values": curve.values} for name, curve in compared.curves.items()},
        "notes": compared.notes,
    }


def _row_json(row: ScoreRow) -> dict[str, Any]:
    found = [None if score is None else vars(score) | {"value": _finite(score.value)} for score in row.scores]
    return {"metric": row.metric, "protocol": row.protocol, "images": row.images, "runs": found}


def _run_json(run: RunData) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.folder),
        "hash": run.plan.hash,
        "seed": run.plan.seed,
        "state": run.state,
        "step": run.step,
        "steps": run.plan.train.steps,
        "parameters": run.parameters,
        "images_per_s": run.images_per_s,
        "training_s": run.training_s,
        "logged_s": run.logged_s,
        "time_split": run.time_split,
        "device": run.environment.get("device"),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
