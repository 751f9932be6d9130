"""Compare runs of any studies or folders by their plans and numbers. Only the runs' files are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tintype.errors import UserError
from tintype.evaluation.protocol import definitions
from tintype.evaluation.results import EvaluationResult, read_result
from tintype.metrics import validation
from tintype.page.numerals import UNKNOWN, decimals_showing, significant
from tintype.plan import Change, Plan, plan_from_folder, short_diff, unhashed_diff
from tintype.runtime.files import STUDY, finite
from tintype.settings import Plain, plain
from tintype.study.contrasts import another_space
from tintype.study.folder import stored_study
from tintype.study.lab import choose_run
from tintype.study.results import SPEED
from tintype.study.runner import tasks_of
from tintype.train.record import RunRecord

_LOSSES = ("loss", "flow")
"""Logged losses; a printed comparison shows the first of these losses that all runs have."""
_OF_LOSSES = ("objective", "main_loss", "weighting", "time", "noise", "tokenizer", "tuning")
"""Sections of a plan that define the denoiser's error and the weights of the error."""


@dataclass(frozen=True)
class ComparedRun(RunRecord):
    """A run with the name under which it was requested, and its scores."""

    name: str = ""
    """The run's folder, or STUDY:ARM:SEED."""

    @cached_property
    def results(self) -> list[EvaluationResult]:
        """Return the newest scores of the final weights for each protocol and image size."""
        newest: dict[str, EvaluationResult] = {}
        for file in self.result_files:
            result = read_result(file)
            before = newest.get(result.scale)
            if result.ema is None and (before is None or before.step < result.step):
                newest[result.scale] = result
        return list(newest.values())


@dataclass(frozen=True)
class Score:
    value: float
    error: float | None
    """Standard error that comes from sampling noise."""
    step: int
    weights: str

    @property
    def decimals(self) -> int:
        """Return the number of decimals that shows two digits of the error; the value gets the same number."""
        return decimals_showing(self.error or 0.0)


@dataclass(frozen=True)
class ScoreRow:
    """A metric under one protocol; None for a run without this score."""

    metric: str
    label: str
    """The metric's definition, as in reports."""
    protocol: str
    """Hash of the protocol, and the images' size if it is a stage's; a row never mixes two protocols or sizes."""
    images: int
    scores: list[Score | None]

    @property
    def scored(self) -> str:
        return f"{self.images:,} images, protocol {self.protocol[:6]}"


@dataclass(frozen=True)
class SharedCurve:
    """A logged quantity at the steps that all runs logged."""

    name: str
    step: list[int]
    values: list[list[float]]
    """One list of values for each run."""


@dataclass(frozen=True, repr=False)
class SideBySide:
    """Two or more runs, and the differences between them."""

    runs: list[ComparedRun]
    changes: list[dict[str, Change]]
    """Settings in which each run differs from the first run, seed first and housekeeping last; empty for the first."""
    scores: list[ScoreRow]
    curves: dict[str, SharedCurve]
    """Logged quantities by name, except those with different meanings in these runs, such as total losses."""
    notes: list[str]
    """Reasons why values of these runs should not be compared."""

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each score of each run: metric, run, value, error, step and evaluation.

        Compare only values with the same `evaluation` (the protocol's hash, and the size of a stage's images).
        """
        return [
            {"metric": row.metric, "run": run.name, "value": score.value, "error": score.error, "step": score.step}
            | {"evaluation": row.protocol, "images": row.images}
            for row in self.scores
            for run, score in zip(self.runs, row.scores, strict=True)
            if score is not None
        ]

    def __repr__(self) -> str:
        """Return the text for `print`, with the runs, their differences from the first run, and a table of values."""
        numbers = list(range(1, len(self.runs) + 1))
        lines = [f"run {number}: {run.name}" for number, run in zip(numbers, self.runs, strict=True)]
        for number, changes in list(zip(numbers, self.changes, strict=True))[1:]:
            lines.append(f"run {number} differs from run 1" + (":" if changes else " in no setting"))
            lines += [f"  {key}: {old} -> {new}" for key, (old, new) in changes.items()]
        return "\n".join([*lines, "", *_aligned(self._table()), *(f"note: {text}" for text in self.notes)])

    def _table(self) -> list[list[str]]:
        """Return rows for the state of the runs, for their speed, for each score, and for the last common loss."""
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
    """Return the rows as lines of text with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def compare_runs(names: Sequence[str]) -> SideBySide:
    """Read the runs and compare them. A run is named by its folder, or by STUDY:ARM or STUDY:ARM:SEED."""
    if len(names) < 2:
        raise UserError(
            f"the comparison needs at least two runs, but the given runs are: {' '.join(names) or 'none'}",
            "give two or more runs",
        )
    return side_by_side([find_run(name) for name in names])


def side_by_side(runs: Sequence[ComparedRun]) -> SideBySide:
    _refuse_twins(runs)
    changes, apart = [_changes(runs[0].plan, run.plan) for run in runs], _incomparable(runs)
    curves = {name: curve for name, curve in _shared_curves(runs).items() if name not in apart}
    notes = [f"{name} is not compared: {reason}" for name, reason in apart.items()]
    return SideBySide(list(runs), changes, _scores(runs), curves, [*_notes(runs, changes), *notes])


def find_run(name: str) -> ComparedRun:
    """Return the run with a name; raise with the reason if the name does not refer to a run."""
    folder = _folder_of(name)
    return ComparedRun(folder, plan_from_folder(folder), name)


def _folder_of(name: str) -> Path:
    path = Path(name)
    if (path / STUDY).is_file():
        tasks = tasks_of(stored_study(path), path)
        runs = "\n".join(f"  {path}:{task.arm}:{task.plan.seed}" for task in tasks)
        raise UserError(f"{path} is a study", f"name one of its runs:\n{runs}")
    if path.is_dir():
        return path
    if path.exists():
        raise UserError(f"{path} is a file", "give the folder of a run")
    for index in [place for place, letter in enumerate(name) if letter == ":"]:
        study, chosen = Path(name[:index]), name[index + 1 :]
        if (study / STUDY).is_file():
            return _run_of_study(study, chosen)
    raise UserError(f"{path} does not exist", "give the folder of a run, or STUDY:ARM:SEED for a run of a study")


def _run_of_study(study: Path, chosen: str) -> Path:
    """Return the folder of the run ARM or ARM:SEED. The name of an arm may contain colons."""
    if not (study / "runs").is_dir():
        raise UserError(
            f"{study} contains only the results of runs, not the runs themselves",
            "compare the runs on the machine where the study was run",
        )
    labels = {name for arm in stored_study(study).arms for name in (arm.name, arm.label)}
    arm, _, seed = chosen.rpartition(":")
    named = (arm, int(seed)) if chosen not in labels and seed.isdigit() else (chosen, None)
    return choose_run(study, *named).trained_folder()


def _refuse_twins(runs: Sequence[ComparedRun]) -> None:
    seen: dict[Path, str] = {}
    for run in runs:
        place = run.path.resolve()
        if place in seen:
            raise UserError(f"{run.name} is the same run as {seen[place]}", "give at least two different runs")
        seen[place] = run.name


def _changes(first: Plan, other: Plan) -> dict[str, Change]:
    rest = unhashed_diff(first, other)
    seed = {key: rest.pop(key) for key in ("seed",) if key in rest}
    return seed | short_diff(first, other) | rest


def _scores(runs: Sequence[ComparedRun]) -> list[ScoreRow]:
    """Return a row for each metric and protocol, rows with values of more runs first. Speed has no protocol."""
    by_protocol = [{result.scale: result for result in run.results} for run in runs]
    protocols = list(dict.fromkeys(name for found in by_protocol for name in found))
    protocols.sort(key=lambda name: -sum(name in found for found in by_protocol))
    rows = []
    for protocol in protocols:
        results = [found.get(protocol) for found in by_protocol]
        there = [result for result in results if result is not None]
        meanings = definitions(there[0].protocol)
        for metric in dict.fromkeys(name for result in there for name in result.metrics if name != SPEED):
            meaning = meanings.get(metric)
            label = meaning.label if meaning else metric
            in_latents = meaning is not None and meaning.metric.in_latents
            for together in _spaces(runs) if in_latents else [list(runs)]:
                scores = [
                    Score(result.metrics[metric], result.errors.get(metric), result.step, result.weights)
                    if result is not None and metric in result.metrics and run in together
                    else None
                    for run, result in zip(runs, results, strict=True)
                ]
                if any(scores):
                    rows.append(ScoreRow(metric, label, protocol, there[0].protocol.count, scores))
    return rows


def _spaces(runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Group the runs by the space of their latents, since errors in two spaces cannot be compared."""
    found: list[list[ComparedRun]] = []
    for run in runs:
        same = next((some for some in found if not another_space(run.plan, some[0].plan)), None)
        if same is None:
            found.append([run])
        else:
            same.append(run)
    return found


def _shared_curves(runs: Sequence[ComparedRun]) -> dict[str, SharedCurve]:
    """Return the logged quantities that all runs have, at the steps that all runs logged."""
    shared: dict[str, SharedCurve] = {}
    for name in runs[0].curves:
        values = [run.curves.get(name, {}) for run in runs]
        steps = sorted(set(values[0]).intersection(*values[1:]))
        if steps:
            shared[name] = SharedCurve(name, steps, [[known[step] for step in steps] for known in values])
    return shared


def _incomparable(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """Return the reasons why logged losses mean different things in these runs, by the losses' names."""
    first, others = runs[0].plan, runs[1:]
    found: dict[str, str] = {}
    if some := [run.name for run in others if _parts(run.plan, _OF_LOSSES) != _parts(first, _OF_LOSSES)]:
        reason = (
            f"objective, main loss, weighting, times, noise or tokenizer differ in {', '.join(some)}, so the "
            f"losses measure different things"
        )
        found = dict.fromkeys(("loss", "flow"), reason)
    elif some := [run.name for run in others if _parts(run.plan, ("losses",)) != _parts(first, ("losses",))]:
        found["loss"] = (
            f"its terms or their weights differ in {', '.join(some)}, and totals of other terms do not compare"
        )
    if some := [run.name for run in others if run.plan.train.stages != first.train.stages]:
        reason = f"train.stages differ in {', '.join(some)}, so at some steps the images have another size"
        found |= dict.fromkeys(["loss", "flow", *(term.kind for term in first.losses)], reason)
    for term in first.losses:
        if some := [run.name for run in others if _term(run.plan, term.kind) not in (None, _term(first, term.kind))]:
            found[term.kind] = f"the term has other settings in {', '.join(some)}"
    spaces = {run.name: reason for run in others if (reason := another_space(run.plan, first))}
    if spaces:
        found[validation.METRIC.name] = f"{', '.join(spaces)}: {next(iter(spaces.values()))}"
    return found


def _parts(plan: Plan, sections: Sequence[str]) -> Plain:
    whole = plain(plan)
    return {name: whole.get(name) for name in sections}


def _term(plan: Plan, kind: str) -> Plain | None:
    """Return the settings of a loss term without its weight; None if the plan does not have the term."""
    found = next((plain(term) for term in plan.losses if term.kind == kind), None)
    return found and {key: value for key, value in found.items() if key not in ("weight", "schedule")}


def _notes(runs: Sequence[ComparedRun], changes: Sequence[Mapping[str, Change]]) -> list[str]:
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
    runs = zip(compared.runs, compared.changes, strict=True)
    return {
        "runs": [_run_json(run) | {"changes": {key: list(change) for key, change in one.items()}} for run, one in runs],
        "scores": [
            {"metric": row.metric, "protocol": row.protocol, "images": row.images}
            | {"runs": [one and vars(one) | {"value": finite(one.value)} for one in row.scores]}
            for row in compared.scores
        ],
        "curves": {name: {"step": curve.step, "values": curve.values} for name, curve in compared.curves.items()},
        "notes": compared.notes,
    }


def _run_json(run: ComparedRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.path),
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
