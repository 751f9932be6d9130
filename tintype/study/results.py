"""What a study found, as data. `results.json` is this, and a report needs nothing else but the preview pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tintype.config.strict import read_yaml, write_yaml
from tintype.errors import UserError
from tintype.evaluation.results import EncoderInfo
from tintype.runtime.files import read_checked, write_checked
from tintype.runtime.redact import last_names, redact
from tintype.seams import ANY_VALUE, Range

TestName = Literal["paired Student", "Welch", "sign-flip permutation", "label permutation"]
IntervalName = Literal["Student", "Welch", "bootstrap"]
Loss = Literal["diverged", "failed", "incomplete"]
"""Why a run has no value: training or scoring was not finite, its process stopped with an error, or it is not done."""
Verdict = Literal["better", "worse", "not shown", "identical", "no spread", "sketch", Loss]
Role = Literal["baseline", "control", "arm"]
SPEED = "images_per_s"
"""The metric that is the throughput of training."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class MetricInfo(_Data):
    name: str
    label: str
    direction: Literal["lower", "higher"]
    definition: str
    primary: bool = False
    range: Range = ANY_VALUE
    """Without bounds in results that were written before they were recorded."""


class Change(_Data):
    key: str
    before: Any
    after: Any


class Curve(_Data):
    """A logged quantity over training."""

    step: list[int]
    value: list[float]


class TokenizerInfo(_Data):
    """A run's tokenizer, and what its latents were like on the run's first images."""

    kind: str
    settings: dict[str, Any]
    channels: int
    stride_px: int
    identity: str = ""
    """SHA-256 of weights and normalisation; empty where it has none."""
    tuned: bool = False
    """Whether the run trained it; the identity and the latents are then those that it began with."""
    images: int = 0
    """On which the latents were measured; 0 where they were not."""
    mean: list[float] = []
    """Of each channel."""
    std: list[float] = []
    """The standard deviation of each channel."""


class TextInfo(_Data):
    """What read a run's captions."""

    kind: str
    settings: dict[str, Any]
    identity: str = ""
    """SHA-256 of weights, tokenizer and settings; empty where it was trained."""


class Run(_Data):
    seed: int
    hash: str
    folder: str
    """Relative to the study's folder."""
    state: Literal["done", "diverged", "failed", "missing"]
    error: str | None = None
    metrics: dict[str, float] = {}
    errors: dict[str, float] = {}
    """The standard error of sampling: what other noises would have given with the same weights."""
    warnings: list[str] = []
    encoders: dict[str, EncoderInfo] = {}
    details: dict[str, dict[str, float]] = {}
    """Parts of a metric, for example the scene accuracy of each attribute."""
    curves: dict[str, Curve] = {}
    time_split: dict[str, float] = {}
    parameters: int = 0
    train_s: float = 0
    evaluate_s: float = 0
    events: list[dict[str, Any]] = []
    environment: dict[str, Any] = {}
    tokenizer: TokenizerInfo | None = None
    text: TextInfo | None = None
    """None in a run that was not done, and in results from before."""
    lineage: dict[str, Any] | None = None
    """The run whose weights it started from, and what that one started from; None where they were drawn."""
    previews: list[str] = []
    """Pictures of the first prompts, relative to the study's folder; the same prompts and noise in every arm."""

    def loss(self, metric: str) -> Loss | None:
        """Why it has no finite value of a metric; None where it has one."""
        value = self.metrics.get(metric)
        if self.state in ("diverged", "failed"):
            return self.state
        if value is None:
            return "incomplete"
        return None if math.isfinite(value) else "diverged"


def worst_loss(runs: Iterable[Run], metric: str) -> Loss | None:
    """The gravest reason for which one of the runs has no finite value; None where all have one."""
    found = {run.loss(metric) for run in runs}
    return next((loss for loss in get_args(Loss) if loss in found), None)


def lost_words(metric: str, runs: Mapping[str, Sequence[Run]]) -> str:
    """How many runs diverged or failed, as "diverged 1 of 3"; empty where none did. The keys name sets of runs."""
    found = []
    for name, of_name in runs.items():
        losses = [run.loss(metric) for run in of_name]
        counts = {loss: losses.count(loss) for loss in ("diverged", "failed")}
        found += [f"{name} {loss} {count} of {len(losses)}".strip() for loss, count in counts.items() if count]
    return ", ".join(found)


class Comparison(_Data):
    """One metric of one arm against the baseline. Differences are arm minus baseline.

    Where every seed lost a run that diverged or failed, the numbers are NaN and the verdict says which.
    """

    mean: float
    baseline_mean: float
    differences: list[float]
    """One for each pair of seeds."""
    difference: float
    low: float | None
    high: float | None
    p: float | None
    """None with one seed, and where every seed differs by the same amount: then there is no interval either."""
    p_adjusted: float | None
    """None where there is no p, or where a run is missing: there is no verdict on a part."""
    detectable: float | None
    """The smallest true difference that this many seeds would find with a power of 80%."""
    verdict: Verdict
    test: TestName | None = None
    """None in results that were written when arms had Student's and controls Welch's, and nothing else."""
    interval: IntervalName | None = None
    sampling_error: float | None = None
    """The standard error of the difference that comes from sampling pictures, which is a part of the spread."""
    lost: str = ""
    """Runs that diverged or failed, as "diverged 1 of 3" or "baseline failed 2 of 3"; empty where none did."""

    @property
    def words(self) -> str:
        """The verdict; where runs diverged or failed, how many."""
        return self.lost or self.verdict


class Arm(_Data):
    name: str
    role: Role
    summary: str
    techniques: list[str]
    papers: list[str]
    changes: list[Change]
    """As people read them: a part that comes or goes is one change."""
    all_changes: list[Change] = []
    """Each setting that differs; empty in results from before, whose `changes` have them all."""
    runs: list[Run]
    comparisons: dict[str, Comparison]
    """By metric, with the baseline of the same resolution; empty for the baseline."""
    incomparable: dict[str, str] = {}
    """By metric, why it is not compared with the baseline although both have it."""
    resolution: str = ""
    """Empty in a study of one resolution."""
    tokens: int | None = None
    """How many tokens its denoiser sees; None in a study of one resolution."""

    @property
    def label(self) -> str:
        """Its name in the whole study, where every resolution has an arm of this name."""
        return arm_label(self.name, self.resolution)


def arm_label(name: str, resolution: str) -> str:
    return f"{name} @ {resolution}" if resolution else name


class Resolution(_Data):
    """One of several resolutions: the baseline there, and the pictures that its arms are shown beside."""

    name: str
    plan: str
    prompts: list[str]
    real_previews: list[str]
    reference: dict[str, dict[str, float]]

    def without_data(self) -> Resolution:
        return self.model_copy(update=_unshown(self.prompts))


def _unshown(prompts: list[str]) -> dict[str, list[str]]:
    return {"prompts": [f"prompt {index + 1}" for index in range(len(prompts))], "real_previews": []}


class RelativeEffect(_Data):
    """log(arm / baseline) at one resolution: the mean over seeds, and its interval."""

    resolution: str
    value: float
    low: float | None
    high: float | None


class Trend(_Data):
    """How one arm's relative effect on one metric changes with the number of tokens."""

    arm: str
    metric: str
    effects: list[RelativeEffect]
    """Fewest tokens first; a resolution is left out where the effect is not defined there."""
    comparison: Comparison | None
    """The effect at the most tokens (`mean`) against that at the fewest (`baseline_mean`), seed by seed."""
    undefined: str = ""
    """Why there is no comparison: values that are not positive, another space, no pairs, or no runs (yet)."""


class Command(_Data):
    """A call of `tintype ablate` that worked on the study."""

    argv: list[str]
    date: str
    """When it began, in UTC."""


def read_results_file(path: Path) -> Results:
    """Read a results.json, and refuse one that is damaged or that another version wrote."""
    again = f"`tintype report {quote(str(path.parent))}` writes it again where the study's runs are"
    remake = f"{again}; or give another file"
    try:
        found = read_checked(path, remake, earlier=(1, None))
        return Results.model_validate_json(json.dumps(found))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path} is no study's results.json ({place}: {first['msg']}); {remake}") from None


class Results(_Data):
    format: Literal[1] = 1
    name: str
    question: str
    seeds: list[int]
    sketch: bool
    """One seed: no spread is known, so there is no interval and no verdict."""
    confidence: float
    method: str
    """How intervals and verdicts were made, in words."""
    metrics: list[MetricInfo]
    arms: list[Arm]
    """The baseline first, then the others in the study's order; so at each resolution, that of fewest tokens first."""
    plan: str
    """The baseline's resolved plan, as YAML. With several resolutions, this and the last three are in each of them."""
    protocol: dict[str, Any]
    encoders: dict[str, EncoderInfo] = {}
    """What read the pictures."""
    warnings: list[str] = []
    """What the evaluations warned of, for example of too few images."""
    prompts: list[str]
    """The prompts of the preview pictures."""
    real_previews: list[str]
    """The real images of those prompts."""
    reference: dict[str, dict[str, float]]
    """What the same measurement gives on real images, for example the encoder's own accuracy, by metric and part."""
    resolutions: list[Resolution] = []
    """Fewest tokens first; empty where the study has one only."""
    trends: list[Trend] = []
    commands: list[Command] = []
    """Oldest first; empty in results that were written before they were recorded."""

    @model_validator(mode="before")
    @classmethod
    def _without_checksum(cls, data: Any) -> Any:
        """Leave out the checksum of the file, which `read_results_file` checks."""
        return {key: value for key, value in data.items() if key != "checksum"} if isinstance(data, dict) else data

    def to_json(self) -> str:
        """Without the keys of resolutions where there is one only."""
        several: dict[str, Any] = {"resolutions": True, "trends": True, "arms": {"__all__": {"resolution", "tokens"}}}
        return self.model_dump_json(indent=1, exclude=None if self.resolutions else several) + "\n"

    def write(self, path: Path) -> None:
        """Write it as JSON, with its checksum."""
        write_checked(path, json.loads(self.to_json()))

    def without_data(self) -> Results:
        """Without pictures and captions of the data; what models made of the captions stays."""
        return self.model_copy(
            update={**_unshown(self.prompts), "resolutions": [one.without_data() for one in self.resolutions]}
        )

    def without_paths(self) -> Results:
        """Without paths of this machine: the last name of each is left, in settings as in free text."""
        content = self.model_dump()
        plans = [content, *content["resolutions"]]
        for one in plans:  # as data: YAML breaks long lines, and a path may be on two
            one["plan"] = read_yaml(one["plan"], "the plan").data if one["plan"] else None
        redacted: Any = redact(content, last_names())
        for one in [redacted, *redacted["resolutions"]]:
            one["plan"] = write_yaml(one["plan"]) if one["plan"] else ""
        return Results.model_validate(redacted)

    def by_resolution(self) -> list[Results]:
        """What was found at each resolution, as if it were a study of its own."""
        if not self.resolutions:
            return [self]
        return [
            self.model_copy(
                update={
                    "arms": [arm for arm in self.arms if arm.resolution == one.name],
                    **{key: getattr(one, key) for key in ("plan", "prompts", "real_previews", "reference")},
                    "resolutions": [],
                    "trends": [],
                }
            )
            for one in self.resolutions
        ]
