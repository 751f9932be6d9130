"""Types of the JSON documents of commands with `--json`, for results that are converted before they are written.

A document may have more keys than its type declares. A command that fails writes an `ErrorDocument` instead.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Failure(BaseModel):
    code: int
    message: str
    """The problem and the fix in one text."""
    problem: str
    """The mistake, with the place where it occurred."""
    fix: str
    """Instruction for the user; empty if the problem contains it."""


class ErrorDocument(BaseModel):
    model_config = ConfigDict(extra="forbid")

    error: Failure


class Trained(_Open):
    folder: str
    plan: str
    """Hash of the plan."""
    step: int
    already_done: bool


class VerdictRow(_Open):
    arm: str
    metric: str
    primary: bool
    verdict: str
    difference: float | None
    low: float | None
    high: float | None


class CostRow(_Open):
    arm: str
    resolution: str
    device: str
    step_s: float | None
    """Time of a training step in seconds; None if the time was not measured."""
    relative: float | None
    """Step time divided by the baseline's step time."""
    steps: int
    peak_bytes: int
    """Peak of the GPU memory that torch reserved, in bytes; 0 if the peak was not measured."""
    host_bytes: int


class PriorityRow(_Open):
    """The priority of an arm, or of the baseline, for a primary metric. Gains are fractions of the baseline's mean.

    A larger gain is better.
    """

    arm: str
    resolution: str
    metric: str
    verdict: str
    """The arm's verdict, or the reason why the arm is not ranked; empty for the baseline."""
    gain: float | None
    """The gain, corrected for selection if there is a verdict; None for the baseline and for arms without a rank."""
    low: float | None
    high: float | None
    equal_time: float | None
    """The gain at the training time of the baseline; None if no run was scored at that time."""
    equal_time_low: float | None
    equal_time_high: float | None
    step_s: float | None
    cost: float | None
    """Step time divided by the baseline's; None without a measurement on a GPU that no other run used."""
    rank_low: int | None
    rank_high: int | None
    """The worst possible rank; `rank_low` is the best possible rank. Both ranks are None for a plan without a rank."""
    of: int
    front: bool | None
    dominated_by: list[str]
    """Plans that are at most as expensive and have a verdict of better than this plan."""


class Reported(_Open):
    report: str
    results: str
    verdicts: list[VerdictRow]
    notes: list[dict[str, Any]]
    """Remarks on the verdicts, each with its `kind` and `text`."""
    costs: list[CostRow]
    """Arms whose time or memory was measured by a run that had a GPU to itself."""
    priority: list[PriorityRow]
    """Arms in order of priority for each primary metric, with arms on the Pareto front first."""


class Ran(Reported):
    done: int | None = None
    """Number of finished runs of this command; None if it used the runs of a finished study."""
    total: int | None = None
    failed: list[str] = []
    left: str = ""
    """The interim analysis (look) that did not fit into the budget; empty if all were made."""


class Planned(_Open):
    folder: str
    arms: list[dict[str, Any]]
    """Each arm with its `changes`, which give the baseline's and the arm's value by the dotted key of the setting."""
    notes: list[dict[str, Any]]
    cost: dict[str, Any] | None
    """With --dry-run: number of runs and their seconds."""


class JudgedRow(VerdictRow):
    better: str
    """Direction that is better: lower or higher."""
    words: str
    """The verdict, with the number of runs that diverged, collapsed or are missing, if any."""
    mean: float | None
    baseline_mean: float | None
    p: float | None
    level: float
    """Confidence level of the interval."""
    margin: float | None
    seeds: int
    seeds_needed: int | None


class Judged(_Open):
    source: str
    baseline: str
    margin: str
    sketch: bool
    metrics: list[dict[str, Any]]
    arms: list[dict[str, Any]]
    verdicts: list[JudgedRow]
    notes: list[str]
    report: str | None
    """Path of the report; None without `--out`."""


class PlanShown(_Open):
    hash: str
    plan: dict[str, Any]


class Pushed(_Open):
    url: str | None = None
    """Address of the upload; None if no upload was requested, or if the user declined."""
    commit: str | None = None


class ExportedFolder(Pushed):
    folder: str
    about: dict[str, Any]
    notes: list[str]
    figures: list[dict[str, float]]
    """With --check: the largest differences from diffusers' images, for each guidance scale."""


class ImportedRun(_Open):
    folder: str
    plan: str
    notes: list[str]


class WrittenCard(_Open):
    text: str
    file: str | None
    """Path of the written card; None without `--out`."""
    warnings: list[str]


class Written(_Open):
    file: str


class CheckedFile(_Open):
    plugin: dict[str, str]
    """Name and SHA-256 of the file."""
    parts: dict[str, list[str]]
    """Names of the parts that the file adds, by kind."""
    passed: bool
    results: list[dict[str, Any]]
    """Technique, check and outcome for each result."""


class EmaCurve(_Open):
    run: str
    step: int
    metric: str
    best: float | None
    points: list[dict[str, Any]]


class SideBySideRuns(_Open):
    runs: list[dict[str, Any]]
    scores: list[dict[str, Any]]
    curves: dict[str, Any]
    notes: list[str]


class Audited(_Open):
    exit_code: int
    steps: int
    findings: list[dict[str, Any]]
    groups: list[dict[str, Any]]


class Cost(_Open):
    plan: str
    trained_parameters: dict[str, int]
    flop_per_step: float
    memory_bytes: dict[str, Any]
    gpu_hours: float | None


class Scores(_Open):
    metrics: dict[str, Any]
    errors: dict[str, Any]
    warnings: list[str]
    seconds: float


class StoreInspected(_Open):
    problems: list[dict[str, Any]]
