"""Read the runs of a study from their files, with metrics, curves, identities of frozen networks, and sample images."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from pydantic import ValidationError

from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.protocol import Definition, Protocol, definitions
from tintype.evaluation.reference import ScoredData, held_out, in_blocks
from tintype.evaluation.results import (
    EvaluationResult,
    WrongWords,
    read_misread,
    read_per_image,
    read_result,
    result_file,
)
from tintype.evaluation.run import PREVIEWS
from tintype.evaluation.samples import sampling_prompts
from tintype.metrics import validation
from tintype.plan import Plan
from tintype.runtime.files import PLAN, damaged, read_lines, run_of
from tintype.runtime.notes import note_once
from tintype.sampling.sample import save_png
from tintype.settings import plain
from tintype.study import results
from tintype.study.stats.cells import PAD
from tintype.study.study import Along, ArmPlan, Study, remake_study
from tintype.study.version import version_events
from tintype.train.record import RunRecord
from tintype.train.speed import seconds_until

T = TypeVar("T")
_CURVE_POINTS = 200
Runs: TypeAlias = Mapping[str, list[results.Run]]
"""The runs of each arm, by the arm's label."""
PerImage: TypeAlias = Mapping[str, Mapping[str, list[float]]]
"""Values of a run's single images for each metric, by the run's hash."""
NO_IMAGES: PerImage = MappingProxyType({})
Metrics: TypeAlias = Mapping[str, results.MetricInfo]
"""The metrics of a study by name, as defined by this version or by the version that scored the study's runs."""
COMMANDS_FILE = "commands.jsonl"
"""File in a study's folder with each command line that worked on the study, oldest first."""


def metric_infos(study: Study) -> dict[str, results.MetricInfo]:
    """Describe each metric of a study, as defined by this version."""
    return {
        name: results.MetricInfo(
            name=name,
            label=meaning.label,
            direction=meaning.direction,
            definition=meaning.definition,
            primary=name in study.settings.primary,
            range=meaning.range,
            scale=meaning.metric.compared,
            pad=_pad(meaning),
            revision=meaning.metric.revision,
            margin=study.settings.analysis.margin_words(name, meaning.metric.margin),
        )
        for name, meaning in definitions(study.settings.evaluation, study.of_scenes).items()
    }


def _pad(meaning: Definition) -> float:
    """Return a fraction's continuity correction, which is half an image, or two deviations if chance was subtracted."""
    count = meaning.count or round(0.5 / PAD)
    return 1 / math.sqrt(count) if meaning.metric.corrected_for_chance else 0.5 / count


def standing_runs(study: Study, out: Path) -> dict[str, list[results.Run]]:
    """Read every run of the study. A run with a damaged result counts as missing, so that it is scored again."""
    protocol = study.settings.evaluation

    def read(plan: Plan) -> results.Run:
        try:
            return read_run(plan, protocol, out, study.along(plan))
        except DamagedFileError:
            return results.Run(seed=plan.seed, hash=plan.hash, folder=f"runs/{plan.hash}", state="missing")

    return {arm.label: [read(plan) for plan in arm.plans] for arm in study.arms}


def read_runs(study: Study, out: Path) -> dict[str, list[results.Run]]:
    """Read every run that the study has or can get, by the arm's label."""
    protocol = study.settings.evaluation
    return {arm.label: [read_run(plan, protocol, out, study.along(plan)) for plan in arm.plans] for arm in study.arms}


def read_commands(out: Path) -> list[results.Command]:
    file = out / COMMANDS_FILE
    try:
        lines = read_lines(file, remake_study(out), vouched=len(reported_commands(out)))
        return [results.Command.model_validate(line) for line in lines]
    except ValidationError as error:
        raise damaged(file, str(error.errors()[0]["msg"]), remake_study(out)) from None


def reported_commands(out: Path) -> list[results.Command]:
    """Return the command lines in the last report, which are a copy of those in the study's folder."""
    return _last_report(out, results.read_commands_of) or []


def last_results(out: Path) -> results.StudyResults | None:
    """Return the results of the last report; None if they are missing, damaged or from another version."""
    return _last_report(out, results.read_results_file)


def _last_report(out: Path, read: Callable[[Path], T]) -> T | None:
    file = out / "results.json"
    try:
        return read(file)
    except DamagedFileError as error:
        note_once(str(file), f"{file} is damaged ({error.reason}); it is written again from the runs")
    except UserError:
        pass
    return None


def describe_resolution(arms: Sequence[ArmPlan], protocol: Protocol, out: Path, *, write: bool) -> results.Resolution:
    """Describe a resolution; if `write` is given, write the real images next to the samples."""
    plan = arms[0].plans[0]
    if plan.data.at_hand:
        prompts = list(sampling_prompts(ScoredData(plan.data), protocol, protocol.conditions[0])[:PREVIEWS])
        real_previews = _real_previews(arms[0], protocol, out) if write else _written_previews(arms[0], out)
    else:
        prompts, real_previews = _shown_before(arms[0].resolution, out)
    return results.Resolution(
        name=arms[0].resolution,
        plan=plan.to_yaml(),
        prompts=prompts,
        real_previews=real_previews,
        reference=_reference(arms, protocol, out),
    )


def read_run(
    plan: Plan, protocol: Protocol, out: Path, along: Along | None = None, *, logs: bool = True
) -> results.Run:
    """Read a run; without `logs`, leave out curves, events and training time, and use the speed from scoring."""
    path = out / "runs" / plan.hash
    folder, record = str(path.relative_to(out)), RunRecord(path, plan)
    stored = result_file(path, protocol, plan.train.steps)
    if not stored.exists():
        state, error = record.failure or "missing", record.reason(remake_study(out)) or None
        return results.Run(seed=plan.seed, hash=plan.hash, folder=folder, state=state, error=error)
    if (run_there := run_of(path)) != plan.hash:
        found = f"it is that of the run {run_there}" if run_there else "it is missing"
        raise damaged(path / PLAN, found, remake_study(out))
    result = read_result(stored)
    if result.protocol_hash != protocol.hash:
        raise UserError(
            f"{stored} was scored with the evaluation protocol {result.protocol_hash}, but this study uses "
            f"{protocol.hash}",
            "remove the file to score the run again",
        )
    try:
        run = _finished_run(record, folder, result, read_misread(stored), logs)
        if logs:
            run.events.extend(version_events(run.environment, out))
        return _with_along(run, record, along) if along else run
    except (ValidationError, KeyError, TypeError, AttributeError) as error:  # of another version
        raise damaged(path, f"{type(error).__name__}: {' '.join(str(error).split())}", remake_study(out)) from None


def _finished_run(
    record: RunRecord, folder: str, result: EvaluationResult, wrong: list[list[WrongWords]], logs: bool
) -> results.Run:
    plan, metrics = record.plan, dict(result.metrics)
    if logs and (speed := record.images_per_s) is not None:  # by today's definition, as runs may be of several versions
        metrics.pop(results.SPEED, None)
        metrics[results.SPEED] = speed
    of_stages = [validation.name_at(stage.size_px) for stage in plan.train.stages if logs]
    curves = ["flow", validation.METRIC.name, "grad_norm", *(name for name in of_stages if record.curve(name))]
    return results.Run(
        seed=plan.seed,
        hash=plan.hash,
        folder=folder,
        state="done",
        metrics=metrics,
        errors=result.errors,
        biases=result.biases,
        warnings=list(result.warnings),
        encoders=result.encoders,
        details=result.details,
        curves={name: _curve(record.curve(name)) for name in curves if logs},
        time_split=result.time_split,
        parameters=record.environment["parameters"],
        train_s=(record.logged_s or 0) if logs else 0,
        evaluate_s=result.seconds,
        events=list(record.events) if logs else [],
        environment=dict(record.environment),
        tokenizer=_tokenizer(record),
        text=_text(plan, record.identities.get("text", "")),
        lineage=dict(record.lineage) or None,
        previews=[f"{folder}/{name}" for name in result.previews],
        wrong=wrong,
        copies={name: one.within(folder) for name, one in result.copies.items()},
    )


def _with_along(run: results.Run, record: RunRecord, along: Along) -> results.Run:
    """Return the run with scores during training, but without throughput, which does not belong to a single step.

    A run whose log was lost has no training seconds, and so no scores during training; an event records this.
    """
    plan, found, seconds = record.plan, list[results.ScoreAt](), run.evaluate_s
    for step in (*along.steps, plan.train.steps):
        file = result_file(record.path, along.protocol, step)
        if record.lines and file.exists():
            result = read_result(file)
            seconds += result.seconds
            found.append(
                results.ScoreAt(
                    step=step,
                    seconds=seconds_until(record.lines, step),
                    images=plan.train.images_before(step),
                    size_px=result.size_px,
                    metrics={name: value for name, value in result.metrics.items() if name != results.SPEED},
                    errors=result.errors,
                    previews=[f"{run.folder}/{name}" for name in result.previews],
                    wrong=read_misread(file),
                )
            )
    return run.model_copy(update={"along": found, "evaluate_s": seconds})


def _tokenizer(record: RunRecord) -> results.TokenizerInfo:
    part, latents = record.plan.tokenizer, record.latents
    return results.TokenizerInfo(
        kind=part.kind,
        settings=plain(part),
        channels=part.compression.channels,
        stride_px=part.compression.stride_px,
        identity=record.identities.get("tokenizer", ""),
        tuned=record.plan.tuning is not None,
        images=latents.get("images", 0),
        mean=latents.get("mean", []),
        std=latents.get("std", []),
    )


def _text(plan: Plan, identity: str) -> results.TextInfo:
    return results.TextInfo(kind=plan.text.kind, settings=plain(plan.text), identity=identity)


def check_identities(runs: Runs) -> None:
    """Raise if one name stood for different weights in a study: arms would differ in undeclared ways."""
    found: dict[str, tuple[str, str]] = {}
    for arm, run in ((arm, run) for arm, of_arm in runs.items() for run in of_arm):
        for part, settings, identity, remedy in identities_of(run):
            who = f"'{arm}', seed {run.seed}"
            first, by = found.setdefault(f"{part} {settings}", (identity, who))
            if identity != first:
                raise UserError(
                    f"{part} had the identity {first[:12]} for {by}, but {identity[:12]} for {who}: its weights "
                    f"or preprocessing changed during the study",
                    f"{remedy}, then run the study again",
                )


def identities_of(run: results.Run) -> Iterator[tuple[str, str, str, str]]:
    """Yield (component, settings, SHA-256, fix) for each frozen network of a run."""
    for name, encoder in run.encoders.items():
        remedy = f"remove the folder evaluation of the runs that were scored by the wrong one ({run.folder})"
        yield f"the encoder '{name}'", "", encoder.identity + encoder.text, remedy
    remedy = f"put the first weights back, remove {run.folder}"
    if run.tokenizer is not None:  # one that is trained with the run has another normalisation
        settings = json.dumps([run.tokenizer.settings, run.tokenizer.tuned], sort_keys=True)
        yield f"the tokenizer '{run.tokenizer.kind}'", settings, run.tokenizer.identity, remedy
    if run.text is not None:
        settings = json.dumps(run.text.settings, sort_keys=True)
        yield f"the text encoder '{run.text.kind}'", settings, run.text.identity, remedy


def warnings_of(runs: Runs) -> list[str]:
    """Return each warning of the evaluations once, with its number of runs; numbers in the warnings may differ."""
    counted: dict[str, list[str]] = {}
    for run in (run for of_arm in runs.values() for run in of_arm):
        for text in run.warnings:
            counted.setdefault(re.sub(r"[0-9][0-9.,e+-]*", "#", text), []).append(text)
    return [f"{texts[0]} ({len(texts)} runs)" if len(texts) > 1 else texts[0] for texts in counted.values()]


def _curve(logged: Mapping[int, float]) -> results.Curve:
    """Return the curve of a logged quantity, averaged into at most 200 points."""
    points = list(logged.items())
    if len(points) <= _CURVE_POINTS:
        return results.Curve(step=list(logged), value=[float(value) for value in logged.values()])
    size = -(-len(points) // _CURVE_POINTS)
    bins = [points[start : start + size] for start in range(0, len(points), size)]
    return results.Curve(step=[b[-1][0] for b in bins], value=[fmean(value for _, value in b) for b in bins])


def read_images(study: Study, out: Path) -> PerImage:
    plans, protocol = [plan for arm in study.arms for plan in arm.plans], study.settings.evaluation
    return {p.hash: read_per_image(result_file(out / "runs" / p.hash, protocol, p.train.steps)) for p in plans}


def describe_arm(arm: ArmPlan, runs: list[results.Run], alone: results.Alone | None = None) -> results.Arm:
    """Return an arm for the results, before its comparisons. `alone` has the arm's measurements alone on a GPU."""
    papers = [application.technique.paper for application in arm.applications if application.technique.paper]
    return results.Arm(
        name=arm.name,
        role=arm.role,
        summary=arm.summary,
        techniques=[application.technique.name for application in arm.applications],
        papers=papers,
        changes=[results.Change(key=key, before=old, after=new) for key, (old, new) in arm.decisions.items()],
        all_changes=[results.Change(key=key, before=old, after=new) for key, (old, new) in arm.changes.items()],
        runs=runs,
        comparisons={},
        resolution=arm.resolution,
        tokens=arm.tokens if arm.resolution else None,
        alone=alone,
    )


def real_folder(resolution: str) -> str:
    """Return the folder with a resolution's real images, relative to the study's folder."""
    return f"real/{resolution}" if resolution else "real"


def _shown_before(resolution: str, out: Path) -> tuple[list[str], list[str]]:
    """Return the prompts and real images of the last report, for a report that is made without the data."""
    last = last_results(out)
    for one in last.resolutions if last else ():
        if one.name == resolution:
            return one.prompts, [name for name in one.real_previews if (out / name).is_file()]
    return [], []


def _real_previews(baseline: ArmPlan, protocol: Protocol, out: Path) -> list[str]:
    source = held_out(ScoredData(baseline.plans[0].data), protocol)
    ids, _ = in_blocks(source, protocol.count)
    images = [source.images([id_])[0] for id_ in ids[:PREVIEWS]]
    folder = real_folder(baseline.resolution)
    (out / folder).mkdir(parents=True, exist_ok=True)
    names = [f"{folder}/preview-{index}.png" for index in range(len(images))]
    for name, image in zip(names, images, strict=True):
        save_png(image, out / name)
    return names


def _written_previews(baseline: ArmPlan, out: Path) -> list[str]:
    """Return the paths of the real images that an earlier report has written."""
    names = [f"{real_folder(baseline.resolution)}/preview-{index}.png" for index in range(PREVIEWS)]
    return [name for name in names if (out / name).is_file()]


def _reference(arms: Sequence[ArmPlan], protocol: Protocol, out: Path) -> dict[str, dict[str, float]]:
    """Return the metrics of real images, which are equal for all runs of a resolution."""
    for plan in (plan for arm in arms for plan in arm.plans):
        stored = result_file(out / "runs" / plan.hash, protocol, plan.train.steps)
        if stored.exists():
            return read_result(stored).real
    return {}
