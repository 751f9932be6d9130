"""Documents that commands write with `--json` where the result itself is not one. They may have more keys than these.

Every command may write an `ErrorDocument` in place of its result.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Failure(BaseModel):
    code: int
    """The exit code of the command."""
    message: str
    """The problem and the fix in one text."""
    problem: str
    """The mistake and its place."""
    fix: str
    """Instruction for the user; empty if the problem contains it."""


class ErrorDocument(BaseModel):
    """A command without a result."""

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
    """Seconds of a training step; None where they were not measured."""
    relative: float | None
    """These seconds over the baseline's."""
    steps: int
    peak_bytes: int
    """The most memory that torch reserved on the GPU; 0 where it was not measured."""
    host_bytes: int


class PriorityRow(_Open):
    """An arm, or the baseline, on one primary metric. Gains are shares of the baseline's mean; more is better."""

    arm: str
    resolution: str
    metric: str
    verdict: str
    """The verdict, or why it is not ranked; empty for the baseline."""
    gain: float | None
    """Corrected for selection where there is a verdict; None of the baseline, and where it is not ranked."""
    low: float | None
    high: float | None
    equal_time: float | None
    """The gain at the training time of the baseline; None where it was not scored."""
    equal_time_low: float | None
    equal_time_high: float | None
    step_s: float | None
    cost: float | None
    """Step time over the baseline's; None where it was not measured alone on a GPU."""
    rank_low: int | None
    rank_high: int | None
    """First and last rank that it may have; None where it is not ranked."""
    of: int
    front: bool | None
    dominated_by: list[str]
    """Plans that are shown better and are no dearer."""


class Reported(_Open):
    report: str
    """Path of the report."""
    results: str
    verdicts: list[VerdictRow]
    notes: list[dict[str, Any]]
    """Remarks on the verdicts, each with its `kind` and `text`."""
    costs: list[CostRow]
    """Arms of which something was measured alone on a GPU."""
    priority: list[PriorityRow]
    """Order in which to adopt arms, by primary metric: those on the front first."""


class Ran(Reported):
    done: int | None = None
    """Runs of this command; None where it took those of a finished study."""
    total: int | None = None
    failed: list[str] = []
    left: str = ""
    """The look that did not fit into the budget; empty where all were made."""


class Planned(_Open):
    folder: str
    arms: list[dict[str, Any]]
    """Each arm with its `changes`: value before and after, by dotted key."""
    notes: list[dict[str, Any]]
    cost: dict[str, Any] | None
    """With --dry-run: runs and seconds."""


class JudgedRow(VerdictRow):
    better: str
    """lower or higher."""
    words: str
    """The verdict; where runs diverged, collapsed or are missing, how many."""
    mean: float | None
    baseline_mean: float | None
    p: float | None
    level: float
    """The confidence of the interval."""
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
    """None where the upload was declined, or not asked for."""
    commit: str | None = None


class ExportedFolder(Pushed):
    folder: str
    about: dict[str, Any]
    notes: list[str]
    figures: list[dict[str, float]]
    """With --check: the largest differences from diffusers, by guidance."""


class ImportedRun(_Open):
    folder: str
    plan: str
    """Hash of the plan."""
    notes: list[str]


class WrittenCard(_Open):
    text: str
    """The card."""
    file: str | None
    """None without --out."""
    warnings: list[str]


class Written(_Open):
    file: str


class CheckedFile(_Open):
    plugin: dict[str, str]
    """Name and SHA-256 of the file."""
    parts: dict[str, list[str]]
    """Names of its parts, by kind."""
    passed: bool
    results: list[dict[str, Any]]
    """Technique, check and outcome of each."""


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
