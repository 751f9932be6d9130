"""Collect the facts for a model's card, such as the record of its run, its origin, its baseline, and its scores."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from tintype.config.strict import read_yaml
from tintype.errors import UserError
from tintype.evaluation.protocol import Definition, definitions
from tintype.evaluation.results import EvaluationResult, read_result
from tintype.export.public import HUB_NAME
from tintype.plan import Change, Plan, diff, read_plan, stored_plan
from tintype.recipes import packaged
from tintype.runtime.files import read_sealed
from tintype.runtime.redact import LOCAL
from tintype.settings import DataPart
from tintype.study.study import remake_study
from tintype.train import checkpoint
from tintype.train.record import RunRecord, is_run

_IN_CACHE = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/([0-9a-f]{40})(?:/|$)", re.ASCII)
"""Matches a folder in huggingface_hub's download cache."""
Record: TypeAlias = Mapping[str, Any]
_OF_THE_ORIGIN = ("started-from", "imported")


@dataclass(frozen=True)
class Source:
    data: DataPart
    share: str
    """Share of the batches, as text; empty if there is only one source."""
    images: int | None
    """Number of images that training has read, including repeats; None if the source is only used for scoring."""
    identity: str
    count: int | None
    """Number of training images; None if the data are not on this machine."""


@dataclass(frozen=True)
class Evaluation:
    """A stored result of scoring, with the definitions of its metrics from the protocol."""

    result: EvaluationResult
    meanings: Mapping[str, Definition]

    @property
    def shown(self) -> dict[str, Definition]:
        return {name: meaning for name, meaning in self.meanings.items() if name in self.result.metrics}

    def count(self, metric: str) -> int | str | None:
        """Return the number of images from which a metric was computed; None for metrics without images."""
        meaning = self.meanings[metric]
        return "all prompts of its file" if meaning.sampling and meaning.count is None else meaning.count

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Return the 95% interval of a metric; None if all images have the same score."""
        low, high = self.result.intervals.get(metric, (0.0, 0.0))
        return (low, high) if high > low else None


@dataclass(frozen=True)
class Baseline:
    words: str
    plan: Plan


@dataclass(frozen=True)
class Origin:
    runs: tuple[Record, ...]
    """Earlier runs whose weights were used as initial weights, the latest first, as in `lineage.json`."""
    imported: Record | None
    """The imported model from which the first run started, as in `imported.json`."""

    @property
    def hub(self) -> tuple[str, str] | None:
        """Return the imported model's name and revision on the hub; None if the imported folder does not state them."""
        found = _IN_CACHE.search(str(self.imported["source"])) if self.imported else None
        if found is None or not HUB_NAME.fullmatch(name := f"{found[1]}/{found[2]}"):
            return None
        return name, found[3]

    @property
    def brief(self) -> str:
        if self.runs:
            return f"the weights of another run ({self.runs[0]['plan']})"
        return f"{self.hub[0]}, imported" if self.hub else "an imported model"

    def steps(self) -> list[str]:
        """Return a description of each earlier run or model, the latest first."""
        return [*map(_run_words, self.runs), self._import_words(self.imported) if self.imported else "random weights"]

    def _import_words(self, imported: Record) -> str:
        place = f"{self.hub[0]} at {self.hub[1]}" if self.hub else LOCAL
        files = ", ".join(f"{name} {sha256}" for name, sha256 in imported["sha256"].items())
        about = imported.get("exported_from")
        run = f", an export of the run {about.get('plan')} at step {about.get('step')}" if about else ""
        return f"an imported model: {place}{run}; {imported['weights']} weights, SHA-256 of {files}"


def hub_place(path: str) -> str:
    """Return the name of the repository to which a path in the hub's cache belongs; '' for any other path."""
    found = _IN_CACHE.search(path)
    return path[found.start() :] if found else ""


def read_origin(run: RunRecord) -> Origin | None:
    """Return the origin of a run's initial weights; None if the run began with random weights."""
    runs: list[Record] = []
    found: Record | None = run.lineage
    imported: Record | None = run.imported
    while found:
        runs.append(found)
        imported = found.get("imported")
        found = found.get("lineage")
    return Origin(tuple(runs), imported or None) if runs or imported else None


def _run_words(run: Record) -> str:
    return (
        f"the {run['weights']} weights of the run {run['plan']}, seed {run['seed']}, at step {run['at_step']:,} of "
        f"{run['steps']:,} (SHA-256 {run['sha256']})"
    )


@dataclass(frozen=True)
class CardRecord:
    """The record of a model's run, with further facts for the model's card."""

    run: RunRecord
    step: int
    """Step of the newest complete checkpoint; without a checkpoint, the last logged step."""
    weights_step: int
    """Step of the requested weights. For an average of another length, it is the step of the last snapshot."""
    evaluations: Sequence[Evaluation]
    older_evaluations: int
    """Number of evaluations at earlier steps or with other weights."""
    baseline: Baseline | None
    origin: Origin | None

    @property
    def events(self) -> Mapping[str, int]:
        """Return how often each kind of event is in the log, such as skipped steps and damaged checkpoints."""
        return Counter(kind for event in self.run.events if (kind := str(event["event"])) not in _OF_THE_ORIGIN)

    @property
    def on_gpu(self) -> bool:
        return any("memory_gb" in line for line in self.run.lines)

    @property
    def changes(self) -> dict[str, Change]:
        return diff(self.baseline.plan, self.run.plan) if self.baseline else {}

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Return the sources of the training data by name. A single source has the name ''."""
        found = {}
        for name, use in self.run.plan.data.uses(self.step, self.run.plan.train).items():
            identity = self.run.identities.get(f"data/{name}" if name else "data")
            count = None if use.images is None else use.data.count_images(identity)
            found[name] = Source(use.data, use.share, use.images, identity or "", count)
        return found

    @property
    def sources_read(self) -> dict[str, Source]:
        return {name: source for name, source in self.sources.items() if source.images is not None}

    @property
    def data_limits(self) -> list[str]:
        return list(dict.fromkeys(limit for source in self.sources_read.values() for limit in source.data.limits()))

    @property
    def intended_use(self) -> str:
        if not self.step:
            return "Nothing in the record says what the model is fit for: look at the card of what was imported."
        uses = {source.data.intended_use() for source in self.sources_read.values()}
        return uses.pop() if self.origin is None and len(uses) == 1 else self.run.plan.data.intended_use()

    @property
    def data_count(self) -> int | None:
        """Return the number of training images; None if a store is not on this machine."""
        counts = [source.count for source in self.sources_read.values()]
        return None if None in counts else sum(count for count in counts if count)

    @cached_property
    def other_seeds(self) -> list[int]:
        """Return the other seeds with which the run's study trained the same plan."""
        if self.run.study is None:
            return []
        plan, folders = self.run.plan, sorted((self.run.study / "runs").iterdir())
        plans = [RunRecord(folder).plan for folder in folders if is_run(folder)]
        return sorted({one.seed for one in plans if not diff(one, plan)} - {plan.seed})


def read_record(
    path: Path, baseline: str | None = None, ema_length: float | None = None, weights: str | None = None
) -> CardRecord:
    """Collect the record of a run.

    The card shows the scores of the checkpoint's weights or, with `ema_length`, of an average computed from snapshots.
    With `weights` (raw or average), scores of other weights are left out.
    """
    run = RunRecord(path)
    plan, step, origin = run.plan, run.whole_step or run.logged_step, read_origin(run)
    if not step and origin is None:
        raise UserError(
            f"{path} has not been trained for a single step yet",
            "train the run first (`tintype train`), then write its card",
        )
    results = [read_result(file) for file in run.result_files]
    every = [Evaluation(result, definitions(result.protocol, plan.data.of_scenes)) for result in results]
    fitting = [one for one in every if (one.result.ema.length if one.result.ema else None) == ema_length]
    fitting = [one for one in fitting if weights in (None, one.result.weights)]
    last = max((one.result.step for one in fitting if one.result.step <= step), default=None)
    chosen = [one for one in fitting if one.result.step == last]  # of an earlier step if `step` was not scored
    snapshots = checkpoint.steps(run.snapshots) if ema_length is not None else []
    return CardRecord(
        run=run,
        step=step,
        weights_step=max(snapshots, default=step),  # the checkpoint's step if the snapshots were deleted
        evaluations=chosen,
        older_evaluations=len(every) - len(chosen),
        baseline=_named_baseline(baseline) if baseline else _study_baseline(run),
        origin=origin,
    )


def _study_baseline(run: RunRecord) -> Baseline | None:
    """Return the baseline of the run's study, of several the one whose plan is nearest to the run's plan.

    A study has one baseline for each resolution.
    """
    if (study := run.study) is None:
        return None
    files = [*study.glob("baseline.yaml"), *sorted((study / "baselines").glob("*.yaml"))]
    if not files:
        return None
    plans = {file: stored_plan(file, remake_study(study)) for file in files}
    nearest = min(files, key=lambda file: len(diff(plans[file], run.plan)))
    document = read_yaml(read_sealed(study / "study.yaml", remake_study(study)), str(study / "study.yaml")).data
    name = document.get("name") if isinstance(document, dict) else None
    where = f" at the resolution {nearest.stem}" if nearest.parent.name == "baselines" else ""
    return Baseline(f"the baseline{where} of the study “{name or study.name}”", plans[nearest])


def _named_baseline(name: str) -> Baseline:
    if Path(name).is_dir():
        plan = RunRecord(Path(name)).plan
        return Baseline(f"the run {plan.hash}", plan)
    plan = read_plan(name)
    return Baseline(f"the recipe {name}" if name in packaged.names("plans") else f"the plan {Path(name).stem}", plan)
