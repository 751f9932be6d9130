"""The results of a study. `results.json` is their dump. A report needs only these and the preview images."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from tintype.config.strict import first_problem, read_yaml, write_yaml
from tintype.errors import UserError
from tintype.evaluation.results import Copies, EncoderInfo, WrongWords
from tintype.metrics import throughput
from tintype.metrics.metric import Compared
from tintype.runtime.files import read_checked
from tintype.runtime.redact import hide_all_passwords, last_names, redact
from tintype.seams import ANY_VALUE, Range
from tintype.study.stats.cells import PAD, ScaleKind

if TYPE_CHECKING:
    from tintype.study.notes import Note
    from tintype.study.rows import Row

T = TypeVar("T")
Loss = Literal["diverged", "failed", "incomplete"]
"""Why a run has no value: a value of training or scoring is not finite, its process failed, or it is not done."""
EndState = Literal["done", "diverged", "failed", "missing"]
Verdict = Literal[
    "better",
    "worse",
    "same",
    "undecided",
    "unstable",
    "measured",
    "identical",
    "no spread",
    "sketch",
    Loss,
]
Role = Literal["baseline", "control", "arm"]
SPEED = throughput.METRIC.name
FORMAT: Final = 3
"""The format of results.json.

In format 1, a study of one resolution had no list of resolutions. In format 2, values along training, of trends and of
banks stored the ends of their intervals as separate keys.
"""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class MetricInfo(_Data):
    name: str
    label: str
    direction: Literal["lower", "higher"]
    definition: str
    primary: bool = False
    range: Range = ANY_VALUE
    """Unbounded in results that were written before bounds were recorded."""
    scale: Compared | None = None
    """Scale on which runs are compared; None in results that were written before scales were recorded."""
    pad: float = PAD
    """Continuity correction of a share on the logit scale."""
    revision: int = 1
    """The number of its definition. Values of two definitions are never compared."""
    margin: str | None = None
    """The margin: the largest difference that counts as *same*. None in results of versions that did not record it."""


class Change(_Data):
    key: str
    before: object
    after: object


class Curve(_Data):
    """A logged quantity over training."""

    step: list[int]
    value: list[float]

    def stays_above(self, others: Sequence[Curve]) -> int | None:
        """Return the first step from which the curve stays above all `others`, at steps that all logged, or None."""
        highest: dict[int, float] = {}
        for step, value in ((step, value) for one in others for step, value in zip(one.step, one.value, strict=True)):
            highest[step] = max(value, highest.get(step, value))
        last = None
        for step, value in reversed(list(zip(self.step, self.value, strict=True))):
            if step in highest:
                if not value > highest[step]:
                    break
                last = step
        return last


class TokenizerInfo(_Data):
    """A run's tokenizer, and the statistics of its latents on the run's first images."""

    kind: str
    settings: dict[str, object]
    channels: int
    stride_px: int
    identity: str = ""
    """SHA-256 of weights and normalisation; empty for a tokenizer without weights."""
    tuned: bool = False
    """Whether the run trained the tokenizer. Then identity and latents are those before training."""
    images: int = 0
    """Number of images on which the latents were measured; 0 if they were not."""
    mean: list[float] = []
    """Mean of each channel."""
    std: list[float] = []
    """Standard deviation of each channel."""


class TextInfo(_Data):
    """A run's text encoder."""

    kind: str
    settings: dict[str, object]
    identity: str = ""
    """SHA-256 of weights, tokenizer and settings; empty if it was trained with the run."""


class ScoreAt(_Data):
    """The scores of a run at one step of its training, by the protocol of the scores along training."""

    step: int
    seconds: float
    """Training seconds up to the step, without data loading, saves and compilations."""
    images: int
    """Training images seen up to the step."""
    size_px: int | None = None
    """Size of the images if the protocol uses the stage's size; None if it is the data's."""
    metrics: dict[str, float]
    errors: dict[str, float] = {}
    """Standard error of each metric over the sampling noise."""
    previews: list[str] = []
    """Paths of the samples of the first prompts; empty if they were not kept."""
    wrong: list[list[WrongWords]] = []
    """Words of the prompt that each of these samples got wrong; empty if they were not read."""


class Run(_Data):
    seed: int
    hash: str
    folder: str
    """Path relative to the study's folder."""
    state: EndState
    error: str | None = None
    metrics: dict[str, float] = {}
    errors: dict[str, float] = {}
    """Standard error of each metric over the sampling noise of the same weights."""
    biases: dict[str, float] = {}
    """Bias of each metric: how much too large it is because it uses finitely many images. Empty if not recorded."""
    warnings: list[str] = []
    encoders: dict[str, EncoderInfo] = {}
    details: dict[str, dict[str, float]] = {}
    """Parts of a metric, for example the scene accuracy of each attribute."""
    curves: dict[str, Curve] = {}
    time_split: dict[str, float] = {}
    parameters: int = 0
    train_s: float = 0
    evaluate_s: float = 0
    events: list[dict[str, object]] = []
    environment: dict[str, object] = {}
    tokenizer: TokenizerInfo | None = None
    text: TextInfo | None = None
    """None in a run that was not done."""
    lineage: dict[str, object] | None = None
    """The run from whose weights this run started, with that run's lineage; None if the initial weights were random."""
    previews: list[str] = []
    """Paths of the samples of the first prompts; every arm has the same prompts and noise."""
    wrong: list[list[WrongWords]] = []
    """Words of the prompt that each of these samples got wrong; empty if they were not read."""
    copies: dict[str, Copies] = {}
    """Near-copies of training images by encoder; empty if the study did not look for them."""
    along: list[ScoreAt] = []
    """Scores along training, including the end, the earliest first; empty in a study without `score_at`."""

    def loss(self, metric: str) -> Loss | None:
        """Return why it has no finite value of a metric; None if it has one."""
        value = self.metrics.get(metric)
        if self.state in ("diverged", "failed"):
            return self.state
        if value is None:
            return "incomplete"
        return None if math.isfinite(value) else "diverged"


def worst_loss(runs: Iterable[Run], metric: str) -> Loss | None:
    """Return the gravest reason why one of the runs has no finite value; None if all have one."""
    found = {run.loss(metric) for run in runs}
    return next((loss for loss in get_args(Loss) if loss in found), None)


def lost_words(metric: str, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return how many runs diverged or failed, as "diverged 1 of 3"; empty if none did. Keys name sets of runs."""
    found = []
    for name, of_name in runs.items():
        losses = [run.loss(metric) for run in of_name]
        counts = {loss: losses.count(loss) for loss in ("diverged", "failed")}
        found += [f"{name} {loss} {count} of {len(losses)}".strip() for loss, count in counts.items() if count]
    return ", ".join(found)


class Interval(_Data):
    """A value and its interval, which reaches from `low` to `high`. Both ends are None if there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


class Comparison(_Data):
    """One metric of one arm against the baseline: a row of the table of verdicts.

    Differences are arm minus baseline, or first minus second arm. If no seed has both of its runs, the numbers are NaN.
    Means on a logarithmic scale are geometric.
    """

    mean: float
    baseline_mean: float
    differences: list[float]
    """One difference for each run of the arm: from the baseline's run of the same seed, or from the baseline's mean."""
    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """The p of the test. None with one seed, or if every seed differs by the same amount: then no interval exists."""
    p_adjusted: float | None = None
    """The p corrected for the number of comparisons. None if there is no p, or if a run is missing."""
    detectable: float | None = None
    """The smallest true difference that this many seeds would find with a power of 80%."""
    verdict: Verdict
    sampling_error: float | None = None
    """The part of the difference's standard error that comes from sampling images."""
    lost: str = ""
    """Runs that diverged or failed, as "diverged 1 of 3" or "baseline failed 2 of 3"; empty if none did."""
    scale: ScaleKind = "raw"
    """Scale on which values were compared, as defined in `study.stats.cells.Scale`. A trend has ratios."""
    level: float | None = None
    """The confidence of the interval, from this comparison's share of the study's error. None: no sharing."""
    margin: float | None = None
    """Differences up to this size count as *same*."""
    corrected: Interval | None = None
    """The difference, corrected for selection: differences whose interval excludes zero are too large on average."""
    correlation: float = 0.0
    """Correlation with the baseline over shared seeds that the interval uses; zero if runs are not paired."""
    margin_seeds: int | None = None
    """Seeds with which 80% of arms without an effect get "same". None: over a thousand, or not recorded."""
    seeds_needed: int | None = None
    """Seeds per arm that would decide the comparison if means and spreads stayed the same; None if it is decided."""
    collapsed: list[int] = []
    """Seeds of the arm's collapsed runs, worst first. The mean, the difference and its interval leave them out."""
    baseline_collapsed: list[int] = []
    """Seeds of the baseline's collapsed runs, and of the control's, which count as the baseline's. Also left out."""
    collapsed_later: list[int] = []
    """Seeds of the arm's runs that only a later look than this row's shows as collapsed, worst first."""
    baseline_collapsed_later: list[int] = []
    """Seeds of the baseline's and the control's runs that only a later look shows as collapsed."""
    collapse_p: float | None = None
    """One-sided p that the arm's runs collapse more often than the baseline's; None if none of them collapsed."""
    healthy_verdict: Verdict | None = None
    """Verdict on the runs that did not collapse, if the verdict is unstable."""
    all_runs: Interval | None = None
    """The difference including collapsed runs; None if none collapsed."""
    all_runs_verdict: Verdict | None = None
    note: str = ""
    """A remark for readers, for example that the arm's spread is much larger than the others'."""

    look: int | None = None
    """Number of the look that decided this row, from 1; of the last look if none did."""

    @property
    def interval(self) -> Interval:
        return Interval(value=self.difference, low=self.low, high=self.high)

    @property
    def ends(self) -> tuple[float, float] | None:
        return self.interval.ends

    @property
    def words(self) -> str:
        """Return the verdict; if runs diverged, failed or collapsed, how many."""
        if self.verdict == "unstable":
            others = f"; the others: {self.healthy_verdict}" if self.healthy_verdict else ""
            return f"unstable: {len(self.collapsed)} of {len(self.differences)} runs collapsed{others}"
        return self.lost or self.verdict


class Alone(_Data):
    """Memory and step time of an arm, measured while no other process used the GPU. See `study.shapes`."""

    shape: str
    """Hash of everything that decides memory and time of its steps."""
    device: str
    peak_bytes: int = 0
    """The most memory that torch reserved on the GPU; 0 if it was not measured."""
    host_bytes: int = 0
    """The most memory of the process on its host; 0 if it was not measured."""
    step_s: float | None = None
    """Mean seconds of a step; None if it was not measured, or if steps of the run differ in their work."""
    steps: int = 0
    """Number of timed steps."""


class Crowded(_Data):
    """A run that went back to the queue because memory ran out while other runs used it too."""

    arm: str
    seed: int
    times: int


class Arm(_Data):
    name: str
    role: Role
    summary: str
    techniques: list[str]
    papers: list[str]
    changes: list[Change]
    """The changes for readers: adding or removing a part is one change."""
    all_changes: list[Change] = []
    """Each setting that differs; empty in older results, whose `changes` list them all."""
    runs: list[Run]
    comparisons: dict[str, Comparison]
    """Comparison with the baseline of the same resolution, by metric; empty for the baseline."""
    incomparable: dict[str, str] = {}
    """Why a metric is not compared with the baseline although both have it, by metric."""
    resolution: str = ""
    """Empty in a study of one resolution."""
    tokens: int | None = None
    """Number of tokens of its denoiser; None in a study of one resolution."""
    stopped: str = ""
    """Why the arm gets no more seeds, in a study with planned looks; empty while it may get more."""
    alone: Alone | None = None
    """None if nothing was measured alone on a GPU."""

    @property
    def label(self) -> str:
        """Return its name, with its resolution if the study has several."""
        return arm_label(self.name, self.resolution)

    @property
    def step_s(self) -> float | None:
        """Return the seconds of a step, measured alone on a GPU; None if not measured."""
        return self.alone.step_s if self.alone else None

    @property
    def sampled_run(self) -> Run | None:
        """Return the first run with samples."""
        return next((run for run in self.runs if run.previews), None)


def arm_label(name: str, resolution: str) -> str:
    return f"{name} @ {resolution}" if resolution else name


class Between(_Data):
    """A declared comparison of one arm with another."""

    first: str
    second: str
    resolution: str = ""
    """Empty in a study of one resolution."""
    comparisons: dict[str, Comparison]
    """The first arm against the second, by metric."""
    incomparable: dict[str, str] = {}
    """Why a metric is not compared, by metric."""

    @property
    def label(self) -> str:
        return arm_label(f"{self.first} against {self.second}", self.resolution)


class Resolution(_Data):
    """A resolution of the study: its baseline, and the real images that are shown beside its samples."""

    name: str
    """Empty in a study of one resolution."""
    plan: str
    """The baseline's resolved plan, as YAML."""
    prompts: list[str]
    """The prompts of the samples that are shown."""
    real_previews: list[str]
    """The real images of those prompts."""
    reference: dict[str, dict[str, float]]
    """The same measurements on real images, by metric and part; for example the encoder's own accuracy."""


class Picked(_Data):
    """An image of the playground, picked by hand."""

    image: str
    """Path relative to the study's folder."""
    sha256: str
    settings: dict[str, str | int | float]
    """How it was made: prompt, run, seed, steps, guidance and the like."""

    @property
    def prompt(self) -> str:
        return str(self.settings.get("prompt", ""))

    @property
    def made(self) -> str:
        """Return all settings but the prompt, in words."""
        return ", ".join(f"{key} {value}" for key, value in self.settings.items() if key != "prompt")


class Trend(_Data):
    """The change of one arm's relative effect on one metric with the number of tokens."""

    arm: str
    metric: str
    effects: dict[str, Interval]
    """log(arm / baseline) by resolution, fewest tokens first. Resolutions at which it is undefined are left out."""
    comparison: Comparison | None
    """The effect at the most tokens (`mean`) against the effect at the fewest (`baseline_mean`), seed by seed."""
    undefined: str = ""
    """Why there is no comparison: values that are not positive, another space, no pairs, or no runs (yet)."""


FactorVerdict = Literal["adds up", "overlaps", "cancels", "reinforces", Verdict]


class ArmMean(_Data):
    arm: str
    """Its name; '' for the baseline."""
    value: float


class FactorEffect(_Data):
    """The main effect of a factor, or the interaction of two parts, on one metric at one resolution."""

    parts: list[str]
    """The factor; for an interaction, the two arms that are combined."""
    metric: str
    resolution: str = ""
    comparison: Comparison
    """The contrast as a difference from the baseline's mean."""
    means: list[ArmMean]
    """Mean of each arm with a weight, the combination first; geometric if logarithms are compared."""
    expected: float | None = None
    """The combination's mean if its parts added up; None for a main effect."""
    verdict: FactorVerdict

    @property
    def name(self) -> str:
        return " × ".join(self.parts)

    @property
    def words(self) -> str:
        """Return the verdict; if runs diverged, failed or collapsed, how many."""
        return self.verdict if self.verdict != self.comparison.verdict else self.comparison.words


class TuningRun(_Data):
    seed: int
    hash: str
    state: EndState
    value: float | None
    """Value of the metric that chooses; None if the run has no finite value."""
    seconds: float = 0
    """Training time."""


class TuningPoint(_Data):
    """The runs of one choice of the tuned values."""

    values: dict[str, Any]
    """By dotted key."""
    runs: list[TuningRun]

    @property
    def words(self) -> str:
        return assignments_words(self.values)

    @property
    def known(self) -> list[float]:
        return [run.value for run in self.runs if run.value is not None]


def assignments_words(values: Mapping[str, object]) -> str:
    """Return `key=value, key=value`."""
    return ", ".join(f"{key}={_value_words(value)}" for key, value in values.items())


def _value_words(value: object) -> str:
    """Write a value; a number drawn by a sampler is shown with a few digits."""
    if isinstance(value, str):
        return value
    return json.dumps(float(f"{value:.4g}") if isinstance(value, float) and len(json.dumps(value)) > 8 else value)


class Sweep(_Data):
    """All values tried for one arm, and the choice."""

    arm: str
    resolution: str = ""
    points: list[TuningPoint]
    """In the order of the grid: the last key changes first."""
    chosen: int
    edges: list[str]
    """Directions in which a better value may lie, as "optimizer.lr above 0.003"; empty if the best is inside."""


class Tuning(_Data):
    """The sweeps of the baseline and the arms, each with the same values and seeds."""

    metric: str
    """The primary metric by which the values are chosen."""
    seeds: list[int]
    """Disjoint from the seeds of the comparison."""
    sweeps: list[Sweep]
    method: str = "grid"
    """How the values were found: grid, random, or optuna and its sampler. Older results have grids."""
    trials: int = 0
    """Planned trials of each arm."""

    @property
    def alike(self) -> bool:
        """Return whether all arms were tried with the same values."""
        return not self.method.startswith("optuna")


class DifferenceAt(_Data):
    """An arm minus the baseline at one step; without an interval if there is no seed spread."""

    step: int
    size_px: int | None = None
    """Size of the images if the protocol uses the stage's size; None if it is the data's."""
    mean: float
    baseline_mean: float
    difference: Interval


class Reach(_Data):
    """The first step, and the training seconds, at which an arm reaches the baseline's final quality.

    The interval goes from where the arm may have reached that quality to where it surely has; infinity means never.
    """

    step: Interval
    seconds: Interval
    at_first: bool
    """Whether it was reached at or before the first scored step."""


class EqualTime(_Data):
    """An arm's score at the baseline's total training seconds, minus the baseline's final score."""

    seconds: float
    step: float | None = None
    """The arm's step at that time."""
    difference: Interval | None = None
    refused: str = ""
    """Why the arm has no score at that time; empty if it has one."""


class AlongArm(_Data):
    """One primary metric of an arm against the baseline along training. See `study.along`."""

    arm: str
    resolution: str = ""
    metric: str
    runs: int
    """Runs with all scores, on which the numbers are based."""
    of: int
    """Runs of the arm."""
    target: float
    """The mean of the baseline's final scores, by the protocol of the scores along training."""
    target_step: int
    target_seconds: float
    differences: list[DifferenceAt]
    """At each step at which both arm and baseline were scored."""
    reach: Reach
    equal_time: EqualTime
    crossing: str
    """Where the arm is ahead and behind, as "ahead until step 300, behind from step 450"; or that neither is shown."""


class Command(_Data):
    """A command line of `tintype ablate` that worked on the study."""

    argv: list[str]
    date: str
    """When it began, in UTC."""


class SeedSet(_Data):
    """Seeds of the arms and of the control that are compared together."""

    seeds: list[int]
    control_seeds: list[int] = []


class LookInfo(SeedSet):
    """A past or planned look at the study."""

    share: float
    """Share of the study's error that it may spend."""
    made: bool
    """Whether comparisons were read at it; a planned look may be in the future."""


Outcome = Literal["holds", "open", "contradicted", "incomplete"]
"""Outcome of a verdict on fresh seeds; `study/replicate.py` defines each."""


class Replicated(_Data):
    """A verdict of the study, and its outcome on fresh seeds."""

    arm: str
    metric: str
    verdict: Literal["better", "worse", "same"]
    first: Interval
    """The study's difference, corrected for selection if known."""
    fresh: Interval | None
    """The difference of the fresh runs; None if runs are missing, failed or diverged."""
    level: float | None = None
    """The confidence of the fresh interval; None in rows of an earlier version, whose interval is wider than 90%."""
    pooled: Interval | None
    """Mean of both, weighted by precision, with its 95% interval; None if one of them has no interval."""
    seeds_needed: int | None
    """Fresh seeds that would settle an open verdict if nothing else changed; None: more than a thousand."""
    words: str
    """The verdict on the fresh runs, and how many of them diverged, failed or collapsed."""
    outcome: Outcome


class Replication(_Data):
    """The verdicts of a study, tested on fresh seeds."""

    seeds: list[int]
    rows: list[Replicated]
    source: str = ""
    """The finished study whose runs are the fresh ones; empty if they were made for this replication."""


class BankRun(_Data):
    """A stored run of the baseline's plan."""

    seed: int
    hash: str
    resolution: str = ""
    device: str = ""
    metrics: dict[str, float]


class BankSource(_Data):
    """A study whose baseline runs are used in another study."""

    study: str
    numerics: int
    protocol: str
    """Hash of the protocol by which its runs were scored."""
    identities: dict[str, str]
    """SHA-256 of each frozen network that its runs read."""
    revisions: dict[str, int]
    """The number of each metric's definition. Values of two definitions are never compared."""
    runs: list[BankRun]
    left_out: list[str] = []
    """Why other runs of this study are not used."""


class BankCheck(_Data):
    """The study's own baseline runs against the stored runs, in one metric. Differences are own minus stored."""

    metric: str
    resolution: str = ""
    own: int
    stored: int
    """Runs without collapsed ones."""
    collapsed: int
    """Stored runs that collapsed and are left out."""
    difference: Interval
    agrees: bool
    """Whether the interval includes zero, so that the stored runs are used; False without an interval."""


class Bank(_Data):
    """Stored baseline runs from other studies, used together with the study's own runs."""

    sources: list[BankSource]
    level: float
    """Confidence of the checks' intervals."""
    left_out: list[str] = []
    """Why runs of the sources are not used."""
    served: int = 0
    """Number of stored runs that are used."""
    checks: list[BankCheck] = []


def read_results_file(path: Path) -> StudyResults:
    """Read a results.json; raise if it is damaged or another version wrote it."""
    return _read(path, TypeAdapter(StudyResults), lambda content: content)


def read_commands_of(path: Path) -> list[Command]:
    """Read only the command lines of a results.json, which takes a tenth of the time with thousands of runs."""
    return _read(path, TypeAdapter(list[Command]), lambda content: content.get("commands", []))


def _read(path: Path, kind: TypeAdapter[T], part: Callable[[dict[str, Any]], object]) -> T:
    try:
        found = read_checked(path, remake_results(path), FORMAT)
        return kind.validate_json(json.dumps(part(found)))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        problem = first_problem(error, "the file")
        raise UserError(f"{path} is not a valid results.json of a study ({problem})", remake_results(path)) from None


def remake_results(path: Path) -> str:
    """Return what to do about a results.json that is damaged or of another version."""
    return (
        f"`tintype report {quote(str(path.parent))}` writes it again where the study's runs are; or give another file"
    )


class StudyResults(_Data):
    format: Literal[3] = FORMAT
    name: str
    question: str
    seeds: list[int]
    sketch: bool
    """Whether there is one seed only: the seed spread is unknown, so there is no interval and no verdict."""
    confidence: float
    method: str
    """How intervals and verdicts were computed, in words."""
    metrics: list[MetricInfo]
    arms: list[Arm]
    """The baseline first, then the others in the study's order; grouped by resolution, fewest tokens first."""
    protocol: dict[str, object]
    encoders: dict[str, EncoderInfo] = {}
    warnings: list[str] = []
    """Warnings of the evaluations, for example of too few images."""
    resolutions: list[Resolution] = Field(min_length=1)
    """Fewest tokens first."""
    between: list[Between] = []
    """Arms against other arms; empty in a study that declares no such comparison."""
    trends: list[Trend] = []
    """Empty in a study of one resolution."""
    commands: list[Command] = []
    """Oldest first; empty in older results."""
    along: list[AlongArm] = []
    """Arms along training, by metric; empty in a study without `score_at`."""
    along_images: int = 0
    """Images of each score along training."""
    looks: list[LookInfo] = []
    """Oldest first; empty in older results."""
    replication: Replication | None = None
    looks_planned: bool = False
    """Whether the looks were planned before the first run, by `seeds: {first, most}`."""
    factors: list[FactorEffect] = []
    """Main effects, then interactions, by metric and resolution; empty in a study without `factorial`."""
    tuning: Tuning | None = None
    picked: list[Picked] = []
    """Images picked by hand, oldest first. Verdicts do not use them."""
    crowded: list[Crowded] = []
    """Runs that went back to the queue because memory ran out beside other runs."""
    numerics: int | None = None
    """`NUMERICS` of the version that began the study; None if not recorded."""
    bank: Bank | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_checksum(cls, data: object) -> object:
        """Leave out the checksum of the file, which `read_results_file` checks."""
        return {key: value for key, value in data.items() if key != "checksum"} if isinstance(data, dict) else data

    def dump(self) -> dict[str, Any]:
        """Return the content of results.json, without passwords, and without keys that do not apply to the study."""
        content = cast(dict[str, Any], hide_all_passwords(json.loads(self.model_dump_json())))
        for key in ("tuning", "factors", "picked", "crowded", "between", "numerics", "bank"):
            if not getattr(self, key):
                del content[key]
        for arm in content["arms"]:
            _drop_empty(arm, ("alone",))
        if self.replication is not None and not self.replication.source:
            del content["replication"]["source"]
        for run in (run for arm in content["arms"] for run in arm["runs"]):
            for one in (run, *run["along"]):
                _drop_empty(one, ("wrong", "copies", "biases") if one is run else ("previews", "wrong"))
        for row in _rows_in(content):
            _drop_empty(row, ("collapsed_later", "baseline_collapsed_later", "margin_seeds"))
        for metric in content["metrics"]:
            _drop_empty(metric, ("margin",))
        return content

    def without_data(self) -> StudyResults:
        """Return the results without images and captions of the data; samples of the models stay."""
        resolutions = [_unshown(one) for one in self.resolutions]
        arms = [arm.model_copy(update={"runs": [_without_words(run) for run in arm.runs]}) for arm in self.arms]
        return self.model_copy(update={"resolutions": resolutions, "arms": arms})

    def without_paths(self) -> StudyResults:
        """Return the results without paths of this machine; only the last name of each stays."""
        content = self.model_dump()
        for one in content["resolutions"]:  # as data: YAML breaks long lines, and a path may be on two
            one["plan"] = read_yaml(one["plan"], "the plan").data
        content = cast(dict[str, Any], redact(content, last_names()))
        for one in content["resolutions"]:
            one["plan"] = write_yaml(one["plan"])
        return StudyResults.model_validate(content)

    def rows(self, *, primary: bool = False) -> list[Row]:
        """Return the table of verdicts; with `primary`, that of the primary metrics. All renderers show it."""
        from tintype.study.rows import rows_of  # it reads results

        return rows_of(self, primary=primary)

    def notes(self) -> list[Note]:
        from tintype.study.notes import notes_of

        return notes_of(self)

    def collapsed(self, arm: Arm, metric: str) -> set[int]:
        """Return the seeds of an arm's collapsed runs in a metric, which its mean and its spread leave out."""
        if arm.role != "baseline":
            row = arm.comparisons.get(metric)
            return {*row.collapsed, *row.collapsed_later} if row else set()
        rows = [one.comparisons.get(metric) for one in self.arms if one.resolution == arm.resolution]
        return {seed for row in rows if row for seed in (*row.baseline_collapsed, *row.baseline_collapsed_later)}

    def healthy(self, arm: Arm, metric: str) -> list[Run]:
        """Return an arm's runs that did not collapse in a metric."""
        collapsed = self.collapsed(arm, metric)
        return [run for run in arm.runs if run.seed not in collapsed]

    def baseline_mean(self, metric: str) -> float | None:
        """Return the mean from which the arms' differences are taken, at one resolution; None without comparisons.

        The mean is that of the last look. Arms that stopped earlier were compared with fewer baseline runs.
        """
        known = [row for row in self._rows(metric) if math.isfinite(row.baseline_mean)]
        last = max(known, key=lambda row: (row.look or 0, len(row.differences)), default=None)
        return last.baseline_mean if last else None

    def like_baseline(self, metric: str) -> list[Arm]:
        """Return the arms whose runs the baseline's mean includes: the control too, except for throughput."""
        roles = ("baseline",) if metric == SPEED else ("baseline", "control")
        return [arm for arm in self.arms if arm.role in roles]

    def _rows(self, metric: str) -> list[Comparison]:
        """Return the comparisons of the arms on a metric; if there are none, of the control."""
        rows = {role: [arm.comparisons.get(metric) for arm in self.arms if arm.role == role] for role in get_args(Role)}
        return [row for row in rows["arm"] if row] or [row for row in rows["control"] if row]

    @property
    def timed_alone(self) -> bool:
        """Return whether a step of every arm was measured alone on a GPU."""
        return all(arm.step_s is not None for arm in self.arms)

    @property
    def compared(self) -> list[Arm | Between]:
        """Return everything with comparisons: the arms, then the pairs of arms."""
        return [*self.arms, *self.between]

    @property
    def several(self) -> bool:
        """Return whether the study has several resolutions."""
        return len(self.resolutions) > 1

    @property
    def resolution(self) -> Resolution:
        """Return the only resolution; `by_resolution` returns results with one."""
        (only,) = self.resolutions
        return only

    def by_resolution(self) -> list[StudyResults]:
        """Return the results of each resolution, as if it were a study of its own."""
        return [
            self.model_copy(
                update={
                    "arms": [arm for arm in self.arms if arm.resolution == one.name],
                    "resolutions": [one],
                    "between": [pair for pair in self.between if pair.resolution == one.name],
                    "trends": [],
                    "factors": [effect for effect in self.factors if effect.resolution == one.name],
                    "along": [arm for arm in self.along if arm.resolution == one.name],
                }
            )
            for one in self.resolutions
        ]


def _rows_in(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every comparison in the content of a results.json."""
    pairs = content.get("between", ())
    of_arms = [row for one in (*content["arms"], *pairs) for row in one["comparisons"].values()]
    others = [one["comparison"] for one in (*content["trends"], *content.get("factors", ()))]
    return [*of_arms, *(row for row in others if row is not None)]


def _drop_empty(content: dict[str, Any], keys: Iterable[str]) -> None:
    """Remove empty keys, so that results without them keep their earlier form."""
    for key in keys:
        if not content[key]:
            del content[key]


def _without_words(run: Run) -> Run:
    """Return a run without words of prompts that its samples got wrong, and without training images beside samples."""
    along = [one.model_copy(update={"wrong": []}) for one in run.along]
    copies = {name: one.model_copy(update={"pairs": []}) for name, one in run.copies.items()}
    return run.model_copy(update={"wrong": [], "along": along, "copies": copies})


def _unshown(one: Resolution) -> Resolution:
    prompts = [f"prompt {index + 1}" for index in range(len(one.prompts))]
    return one.model_copy(update={"prompts": prompts, "real_previews": []})
