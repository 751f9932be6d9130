"""Collect a study's results from the files of its runs, and compare each arm with the baseline of its resolution."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from pydantic import ValidationError

from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.protocol import Protocol, definitions
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
from tintype.losses.class_token import CLASS_TOKEN
from tintype.metrics import validation
from tintype.metrics.resample import mean_error
from tintype.metrics.throughput import images_per_s, seconds_until
from tintype.plan import Plan
from tintype.runtime.files import damaged, read_lines, read_sealed, run_of, without_seal
from tintype.runtime.notes import note_once
from tintype.sampling.sample import save_png
from tintype.settings import plain
from tintype.study import results, stats
from tintype.study.adaptive import Standing, follow, study_at
from tintype.study.along import with_along
from tintype.study.factorial import Contrast
from tintype.study.groups import MetricGroups, metric_groups
from tintype.study.interactions import expected_mean, factor_key, factor_pair, factor_verdict, means_of
from tintype.study.looks import (
    DECIDED,
    Look,
    MadeLook,
    SeedPlan,
    describe_looks,
    every_key,
    planned_looks,
    read_looks,
    replay,
    unplanned_looks,
    with_look,
)
from tintype.study.pairs import Key, Pair, pair_runs
from tintype.study.picked import read_picked
from tintype.study.replicate import read_replication
from tintype.study.results import arm_label
from tintype.study.runner import FAILURES
from tintype.study.shares import counts_of, is_tested, trend_metrics
from tintype.study.study import Along, ArmPlan, Study, remake_study
from tintype.study.trends import ANOTHER_SPACE, UNPAIRED, Level, relative_effect, trend_key, trend_pair, with_terms
from tintype.study.verdicts import compare, describe_method
from tintype.study.version import version_events
from tintype.train.folder import RunFolder

_CURVE_POINTS = 200
LogLine: TypeAlias = Mapping[str, Any]
"""A line of a run's metrics.jsonl, or another small record of a run."""
Runs: TypeAlias = Mapping[str, list[results.Run]]
"""The runs of each arm, by its label."""
PerImage: TypeAlias = Mapping[str, Mapping[str, list[float]]]
"""The numbers of a run's images by metric, by the run's hash."""
NO_IMAGES: PerImage = MappingProxyType({})
Rows: TypeAlias = Mapping[Key, results.Comparison]
Metrics: TypeAlias = Mapping[str, results.MetricInfo]
"""The metrics of a study by name: by the definitions of this version, or of that which scored its runs."""
COMMANDS_FILE = "commands.jsonl"
"""File in a study's folder: each command line that worked on it, oldest first."""


def collect(study: Study, out: Path, known: Runs | None = None, images: PerImage | None = None) -> results.StudyResults:
    """Read the runs of a study from its folder, and compare them.

    Where the runs are `known`, and the numbers of their `images`, only what is beside them is read, and nothing is
    written: for a page that looks at a study while others work on it.
    """
    protocol, settings = study.settings.evaluation, study.settings
    every = read_runs(study, out) if known is None else known
    _check_identities(every)
    per_image = _per_image(study, out) if images is None else images
    reading = read_at_looks(study, every, metric_infos(study), made_looks(out), per_image)
    study, runs = reading.study, reading.runs
    along = study.along(study.arms[0].plans[0])
    found = results.StudyResults(
        name=study.name,
        question=settings.question,
        metrics=list(reading.metrics.values()),
        arms=[reading.with_verdicts(_arm(arm, runs[arm.label])) for arm in study.arms],
        **reading.verdicts(),
        protocol=plain(protocol),
        encoders={name: one for of_arm in runs.values() for run in of_arm for name, one in run.encoders.items()},
        warnings=_warnings(runs),
        resolutions=[_resolution(arms, protocol, out, write=known is None) for arms in study.by_resolution()],
        commands=read_commands(out),
        along_images=along.protocol.count if along else 0,
        replication=read_replication(out),
        picked=read_picked(out),
    )
    return with_along(found)


def metric_infos(study: Study) -> dict[str, results.MetricInfo]:
    """Describe each metric of a study, by the definitions of this version."""
    return {
        name: results.MetricInfo(
            name=name,
            label=meaning.label,
            direction=meaning.direction,
            definition=meaning.definition,
            primary=name in study.settings.primary,
            range=meaning.range,
            revision=meaning.metric.revision,
        )
        for name, meaning in definitions(study.settings.evaluation, study.of_scenes).items()
    }


def standing_runs(study: Study, out: Path) -> dict[str, list[results.Run]]:
    """Read every run as it stands. One whose result is damaged is missing: a worker scores it again."""
    protocol = study.settings.evaluation

    def read(plan: Plan) -> results.Run:
        try:
            return read_run(plan, protocol, out, study.along(plan))
        except DamagedFileError:
            return results.Run(seed=plan.seed, hash=plan.hash, folder=f"runs/{plan.hash}", state="missing")

    return {arm.label: [read(plan) for plan in arm.plans] for arm in study.arms}


def read_runs(study: Study, out: Path) -> dict[str, list[results.Run]]:
    """Read every run that the study has or may get, by the arm's label."""
    protocol = study.settings.evaluation
    return {arm.label: [read_run(plan, protocol, out, study.along(plan)) for plan in arm.plans] for arm in study.arms}


@dataclass(frozen=True)
class Reading:
    """A study as its looks show it."""

    study: Study
    """The arms with the seeds that were read."""
    runs: Runs
    """The runs of these seeds."""
    at_looks: Sequence[Study]
    """The arms and seeds of each look; a row's `look` counts them from one."""
    metrics: Metrics
    family: Sequence[Key]
    """The comparisons that share the study's error, with those of arms that it no longer has."""
    rows: Rows
    looks: list[results.LookInfo]
    planned: bool
    stopped: Mapping[str, str]

    def with_verdicts(self, arm: results.Arm) -> results.Arm:
        """Return an arm of the results with its comparisons."""
        apart = incomparable(self.study)
        return arm.model_copy(
            update={
                "comparisons": {metric: row for (label, metric), row in self.rows.items() if label == arm.label},
                "incomparable": {metric: reason for (label, metric), reason in apart.items() if label == arm.label},
                "stopped": self.stopped.get(arm.name, ""),
            }
        )

    def verdicts(self) -> dict[str, Any]:
        """Return the fields of the results that follow from the comparisons, but for the arms."""
        seeds = [plan.seed for plan in self.study.arms[0].plans]
        trends = _trend_pairs(self.study, self.runs)
        method = _method(self.study, self.family, planned_comparisons(self.study, self.metrics))
        return {
            "seeds": seeds,
            "sketch": len(seeds) == 1,
            "confidence": stats.CONFIDENCE,
            "method": " ".join([method, describe_looks(self.looks, self.planned)]),
            "trends": [_trend(key, self.study, self.runs, pair, self.rows) for key, pair in trends.items()],
            "factors": self._factor_effects(),
            "looks": self.looks,
            "looks_planned": self.planned,
        }

    def _factor_effects(self) -> list[results.FactorEffect]:
        found = []
        for key, (arms, contrast) in _factor_contrasts(self.study).items():
            row, metric = self.rows.get(key), self.metrics[key[1]]
            if row is not None and row.look is not None:
                at_look = self.at_looks[row.look - 1]
                groups = _groups(at_look, _runs_of(at_look, self.runs), {metric.name: metric})
                of = groups[arms[0].resolution, metric.name]
                found.append(_factor_effect(row, metric, arms, contrast, of))
        return found


def read_at_looks(
    study: Study, runs: Runs, metrics: Metrics, made: Sequence[MadeLook], images: PerImage = NO_IMAGES
) -> Reading:
    """Compare the runs at each look: those that were `made`, and this one where its seeds or comparisons are others."""
    known = _looks_of(study, metrics, made)
    family = every_key(known, planned_comparisons(study, metrics))
    if isinstance(study.settings.seeds, SeedPlan):
        return _read_planned(study, study.settings.seeds, runs, metrics, images, family)
    every, looks = study.settings.every_seed, unplanned_looks(known)
    at_looks = [_known_arms(study_at(study, look), known[:number]) for number, look in enumerate(looks, 1)]
    held = [
        set(look.seeds) <= set(every.seeds) and set(look.control_seeds) <= set(every.control_seeds) for look in looks
    ]
    rows = [
        compare_at(study, at_look, look, runs, metrics, images, one.keys)
        if there
        else {}  # a study that dropped seeds paid for them
        for at_look, look, one, there in zip(at_looks, looks, known, held, strict=True)
    ]
    done = [number < len(made) or any(is_read(row) for row in of.values()) for number, of in enumerate(rows)]
    infos, of_study = _look_infos(looks, done), _runs_of(study, runs)
    return Reading(study, of_study, at_looks, metrics, family, replay(rows), infos, False, {})


def _looks_of(study: Study, metrics: Iterable[str], made: Sequence[MadeLook]) -> list[MadeLook]:
    """Return the looks at a study with their families: those that are planned, or those that were made and this one."""
    planned, seeds = planned_comparisons(study, metrics), study.settings.seeds
    if isinstance(seeds, SeedPlan):
        return [MadeLook.of(look.read, every_key(made, planned)) for look in planned_looks(seeds)]
    return with_look(made, study.settings.every_seed, planned)


def looks_to_record(study: Study, found: results.StudyResults, out: Path) -> list[MadeLook]:
    """Return the looks that were made at a study, the one of these results among them."""
    looks = _looks_of(study, [metric.name for metric in found.metrics], made_looks(out))
    return [look for look, info in zip(looks, found.looks, strict=True) if info.made]


def _known_arms(at_look: Study, looks: Sequence[MadeLook]) -> Study:
    """Return the study without arms that were added after these looks: their spread is not shared then either."""
    known = {label for look in looks for label in look.family}
    return replace(at_look, arms=tuple(arm for arm in at_look.arms if arm.role == "baseline" or arm.label in known))


def _read_planned(
    study: Study, plan: SeedPlan, runs: Runs, metrics: Metrics, images: PerImage, family: Sequence[Key]
) -> Reading:
    looks, standing = planned_looks(plan), follow_runs(study, runs, family, metrics=metrics, images=images)
    infos = _look_infos(looks, [look in standing.made for look in looks])
    if not standing.made:
        first = study_at(study, looks[0])
        rows = replay([compare_at(study, first, looks[0], runs, metrics, images, family)])
        return Reading(first, _runs_of(first, runs), [first], metrics, family, rows, infos, True, {})
    arms = [replace(arm, plans=arm.plans[: standing.counts[arm.name]]) for arm in study.arms]
    read = replace(study, arms=tuple(arms))
    of_read = _runs_of(read, runs)
    return Reading(read, of_read, standing.read, metrics, family, standing.rows, infos, True, standing.stopped)


def _look_infos(looks: Sequence[Look], made: Sequence[bool]) -> list[results.LookInfo]:
    return [
        results.LookInfo(**look.read.model_dump(), share=look.share, made=done)
        for look, done in zip(looks, made, strict=True)
    ]


def is_read(row: results.Comparison) -> bool:
    """Return whether a comparison was tested, so that reading it spends error."""
    return row.verdict in (*DECIDED, "undecided")


def made_looks(out: Path) -> list[MadeLook]:
    """Return each look that was made at a study. An older report, of which none is recorded, was one.

    A look of an older file has the comparisons of the last report: arms that the study has dropped since were read, and
    arms that it has got since were not.
    """
    recorded = read_looks(out)
    if recorded is not None and all(look.family for look in recorded):
        return recorded
    last = last_results(out)
    looks = _reported_looks(last) if recorded is None else recorded
    return [look if look.family or last is None else MadeLook.of(look, _reported_keys(last)) for look in looks]


def _reported_looks(last: results.StudyResults | None) -> list[MadeLook]:
    if last is None or not any(is_read(row) for arm in last.arms for row in arm.comparisons.values()):
        return []
    control = [run.seed for run in next((arm.runs for arm in last.arms if arm.role == "control"), [])]
    looks = [MadeLook(seeds=one.seeds, control_seeds=one.control_seeds) for one in last.looks if one.made]
    return looks or [MadeLook(seeds=last.seeds, control_seeds=control)]


def _reported_keys(last: results.StudyResults) -> list[Key]:
    """Return the comparisons that a report planned."""
    arms = [arm for arm in last.arms if arm.role != "baseline"]
    planned = [(arm.label, one.name) for arm in arms for one in last.metrics if one.name not in arm.incomparable]
    trends = [trend_key(trend.arm, trend.metric) for trend in last.trends if not trend.undefined]
    factors = [factor_key(Contrast(tuple(one.parts), {}), one.resolution, one.metric) for one in last.factors]
    return [*planned, *trends, *factors]


def every_comparison(study: Study, out: Path) -> list[Key]:
    """Return the comparisons that share the error of a study: those that it plans, and those of the looks at it."""
    return every_key(made_looks(out), planned_comparisons(study, metric_infos(study)))


def follow_runs(
    study: Study,
    runs: Runs,
    family: Sequence[Key],
    tried: Collection[tuple[str, int]] | None = None,
    metrics: Metrics | None = None,
    images: PerImage = NO_IMAGES,
) -> Standing:
    """Return how far a study with planned looks has come. The comparisons of its `family` share the error.

    A run that failed or diverged has ended if it is among those that were `tried`; by default it has.
    """
    assert isinstance(study.settings.seeds, SeedPlan)

    def ended(at_look: Study) -> bool:
        return all(
            run.state == "done" or (run.state != "missing" and (tried is None or (label, run.seed) in tried))
            for label, of_arm in _runs_of(at_look, runs).items()
            for run in of_arm
        )

    looks, known = planned_looks(study.settings.seeds), metrics or metric_infos(study)

    def compared(at_look: Study, look: Look) -> dict[Key, results.Comparison]:
        return compare_at(study, at_look, look, runs, known, images, family)

    return follow(study, looks, compared, ended)


def compare_at(
    study: Study,
    at_look: Study,
    look: Look,
    runs: Runs,
    metrics: Metrics,
    images: PerImage,
    family: Sequence[Key],
) -> dict[Key, results.Comparison]:
    """Compare the arms and seeds of a look, as far as they are of its `family`, which shares its error."""
    read = _runs_of(at_look, runs)
    planned = [key for key in planned_comparisons(study, metrics) if key in family]
    return _compared(at_look, read, metrics, _trend_pairs(at_look, read), planned, images, look.share, family)


def compare_fresh(study: Study, out: Path, keys: Sequence[Key]) -> dict[Key, results.Comparison]:
    """Compare the fresh runs of a replication. The family is that of the replicated comparisons alone."""
    study = replace(study, settings=study.settings.model_copy(update={"factorial": ()}))  # arms alone, no contrasts
    runs = read_runs(study, out)
    _check_identities(runs)
    return _compared(study, runs, metric_infos(study), {}, keys)


def _runs_of(study: Study, runs: Runs) -> dict[str, list[results.Run]]:
    """Return the runs of the seeds that the study's arms have."""
    return {
        arm.label: [run for run in runs[arm.label] if run.seed in {plan.seed for plan in arm.plans}]
        for arm in study.arms
    }


def read_commands(out: Path) -> list[results.Command]:
    file = out / COMMANDS_FILE
    try:
        lines = read_lines(file, remake_study(out), vouched=len(reported_commands(out)))
        return [results.Command.model_validate(line) for line in lines]
    except ValidationError as error:
        raise damaged(file, str(error.errors()[0]["msg"]), remake_study(out)) from None


def reported_commands(out: Path) -> list[results.Command]:
    """Return the command lines of the last report: a copy of those in the study's folder."""
    return last.commands if (last := last_results(out)) else []


def last_results(out: Path) -> results.StudyResults | None:
    """Return the results of the last report; None where there are none, damaged ones, or those of another version."""
    file = out / "results.json"
    try:
        return results.read_results_file(file)
    except DamagedFileError as error:
        note_once(str(file), f"{file} is damaged ({error.reason}); it is written again from the runs")
    except UserError:
        pass
    return None


def _resolution(arms: Sequence[ArmPlan], protocol: Protocol, out: Path, *, write: bool) -> results.Resolution:
    """Describe a resolution; `write` the real images that its samples are shown beside."""
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
    """Read a run from its files, with its scores along training where `along` says when they were taken.

    Without `logs` its curves, events and training time are left out, and its speed is that of its scoring.
    """
    path = out / "runs" / plan.hash
    folder = str(path.relative_to(out))
    stored = result_file(path, protocol, plan.train.steps)
    if not stored.exists():
        for state, name in FAILURES.items():
            if (path / name).exists():
                text = without_seal(read_sealed(path / name, remake_study(out), run=plan.hash))
                error = (text.strip().splitlines() or ["no reason is known"])[-1]
                return results.Run(seed=plan.seed, hash=plan.hash, folder=folder, state=state, error=error)
        return results.Run(seed=plan.seed, hash=plan.hash, folder=folder, state="missing")
    if (run_there := run_of(path)) != plan.hash:
        found = f"it is that of the run {run_there}" if run_there else "it is missing"
        raise damaged(path / "plan.yaml", found, remake_study(out))
    result = read_result(stored)
    if result.protocol_hash != protocol.hash:
        raise UserError(
            f"{stored} was scored by the protocol {result.protocol_hash}, this study by {protocol.hash}; "
            "remove the file to have the run scored again"
        )
    try:
        run = _finished_run(plan, folder, result, read_misread(stored), RunFolder(path), logs)
        if logs:
            run.events.extend(version_events(run.environment, out))
        return _with_along(run, plan, along, RunFolder(path)) if along else run
    except (ValidationError, KeyError, TypeError, AttributeError) as error:  # of another version
        raise damaged(path, f"{type(error).__name__}: {' '.join(str(error).split())}", remake_study(out)) from None


def _finished_run(
    plan: Plan, folder: str, result: EvaluationResult, wrong: list[list[WrongWords]], files: RunFolder, logs: bool
) -> results.Run:
    lines, environment = files.metrics() if logs else [], files.read_record("environment.json")
    loaded = files.read_record("loaded.json")
    metrics = dict(result.metrics)
    if lines:  # by today's definition, so that runs of several versions can be compared
        metrics.pop(results.SPEED, None)
        metrics[results.SPEED] = images_per_s(lines)
    return results.Run(
        seed=plan.seed,
        hash=plan.hash,
        folder=folder,
        state="done",
        metrics=metrics,
        errors=result.errors,
        warnings=list(result.warnings),
        encoders=result.encoders,
        details=result.details,
        curves={name: _curve(lines, name) for name in _curves_of(plan, lines) if logs},
        time_split=result.time_split,
        parameters=environment["parameters"],
        train_s=sum(line["seconds"] for line in lines),
        evaluate_s=result.seconds,
        events=files.events() if logs else [],
        environment=environment,
        tokenizer=_tokenizer(plan, loaded.get("tokenizer", ""), files.read_record("latents.json")),
        text=_text(plan, loaded.get("text", "")),
        lineage=files.read_record("lineage.json") or None,
        previews=[f"{folder}/{name}" for name in result.previews],
        wrong=wrong,
        copies={name: one.within(folder) for name, one in result.copies.items()},
    )


def _with_along(run: results.Run, plan: Plan, along: Along, files: RunFolder) -> results.Run:
    """Return the run with the scores along training that are there, and with the seconds of these.

    Throughput is not of a step, so it is left out. A run whose whole log was lost has no seconds to set scores against,
    and so no such scores; an event says that the log was lost.
    """
    lines, found, seconds = files.metrics(), list[results.ScoreAt](), run.evaluate_s
    for step in (*along.steps, plan.train.steps):
        file = result_file(files.path, along.protocol, step)
        if lines and file.exists():
            result = read_result(file)
            seconds += result.seconds
            found.append(
                results.ScoreAt(
                    step=step,
                    seconds=seconds_until(lines, step),
                    images=plan.train.images_before(step),
                    size_px=result.size_px,
                    metrics={name: value for name, value in result.metrics.items() if name != results.SPEED},
                    errors=result.errors,
                    previews=[f"{run.folder}/{name}" for name in result.previews],
                    wrong=read_misread(file),
                )
            )
    return run.model_copy(update={"along": found, "evaluate_s": seconds})


def _tokenizer(plan: Plan, identity: str, latents: LogLine) -> results.TokenizerInfo:
    part = plan.tokenizer
    return results.TokenizerInfo(
        kind=part.kind,
        settings=plain(part),
        channels=part.compression.channels,
        stride_px=part.compression.stride_px,
        identity=identity,
        tuned=plan.tuning is not None,
        images=latents.get("images", 0),
        mean=latents.get("mean", []),
        std=latents.get("std", []),
    )


def _text(plan: Plan, identity: str) -> results.TextInfo:
    return results.TextInfo(kind=plan.text.kind, settings=plain(plan.text), identity=identity)


def _check_identities(runs: Runs) -> None:
    """Refuse a study in which one name or one setting stood for several weights: arms would not differ as declared."""
    found: dict[str, tuple[str, str]] = {}
    for arm, run in ((arm, run) for arm, of_arm in runs.items() for run in of_arm):
        for part, settings, identity, remedy in _identities(run):
            who = f"'{arm}', seed {run.seed}"
            first, by = found.setdefault(f"{part} {settings}", (identity, who))
            if identity != first:
                raise UserError(
                    f"{part} was {first[:12]} for {by} and {identity[:12]} for {who}: its weights or its preprocessing "
                    f"changed in between. {remedy}, then run the study again"
                )


def _identities(run: results.Run) -> Iterator[tuple[str, str, str, str]]:
    """Yield (part, settings, SHA-256, remedy) of each frozen network of a run."""
    for name, encoder in run.encoders.items():
        remedy = f"Remove the folder evaluation of the runs that were scored by the wrong one ({run.folder})"
        yield f"the encoder '{name}'", "", encoder.identity + encoder.text, remedy
    remedy = f"Put the first weights back, remove {run.folder}"
    if run.tokenizer is not None:  # one that is trained with the run has another normalisation
        settings = json.dumps([run.tokenizer.settings, run.tokenizer.tuned], sort_keys=True)
        yield f"the tokenizer '{run.tokenizer.kind}'", settings, run.tokenizer.identity, remedy
    if run.text is not None:
        settings = json.dumps(run.text.settings, sort_keys=True)
        yield f"the text encoder '{run.text.kind}'", settings, run.text.identity, remedy


def _warnings(runs: Runs) -> list[str]:
    """Return each warning of the evaluations once, with the number of runs that gave it; numbers in it may differ."""
    counted: dict[str, list[str]] = {}
    for run in (run for of_arm in runs.values() for run in of_arm):
        for text in run.warnings:
            counted.setdefault(re.sub(r"[0-9][0-9.,e+-]*", "#", text), []).append(text)
    return [f"{texts[0]} ({len(texts)} runs)" if len(texts) > 1 else texts[0] for texts in counted.values()]


def _curves_of(plan: Plan, lines: Sequence[LogLine]) -> list[str]:
    """Return the names of the curves of a report; validation losses with the images of earlier stages come last."""
    of_stages = [validation.name_at(stage.size_px) for stage in plan.train.stages]
    logged = [name for name in of_stages if any(name in line for line in lines)]
    return ["flow", validation.METRIC.name, "grad_norm", *logged]


def _curve(lines: Sequence[LogLine], name: str) -> results.Curve:
    """Return a logged quantity, averaged into at most 200 points."""
    known = [line for line in lines if line.get(name) is not None]
    size = max(1, -(-len(known) // _CURVE_POINTS))
    bins = [known[start : start + size] for start in range(0, len(known), size)]
    return results.Curve(step=[b[-1]["step"] for b in bins], value=[fmean(line[name] for line in b) for b in bins])


_OF_NO_SPACE = ("compute", "sha256")
"""Settings of a tokenizer that change its latents by rounding, or not at all."""


def _class_token(plan: Plan) -> object:
    """Return the teacher whose class token of the clean image the denoiser reads, noised; None where it reads none."""
    return next((plain(loss)["teacher"] for loss in plan.losses if loss.kind == CLASS_TOKEN), None)


def another_space(new: Plan, old: Plan) -> str:
    """Return why an error in the latents of one plan cannot be compared with that of the other; empty where it can.

    The validation loss is taken in the latents of a run's own tokenizer. Those of another tokenizer have another scale
    and another share of noise in them, so a difference between the two says nothing of the denoisers, however small its
    p. The same holds for noise of another deviation: the velocity is noise - x, so its error grows with the noise. It
    is known from the plans alone, so that a study knows before its first run what it will compare.
    """
    if _class_token(new) != _class_token(old):
        return f"{ANOTHER_SPACE}: the denoisers do not read the same class token of the clean image beside the image"
    scales = [plan.objective.noise_scale for plan in (new, old)]
    if scales[0] != scales[1]:
        return (
            f"{ANOTHER_SPACE}: the velocity is noise - x, and the noise has the deviation {scales[0]:g} here and "
            f"{scales[1]:g} in the baseline"
        )
    own = "measured in the latents of the run's own tokenizer"
    if new.tuning is not None or old.tuning is not None:
        return f"{ANOTHER_SPACE}: it is {own}, and a tokenizer that is trained with the run is like no other"
    here, there = (plain(plan.tokenizer) for plan in (new, old))
    if all(here.get(key) == there.get(key) for key in {**here, **there} if key not in _OF_NO_SPACE):
        return ""
    kinds = new.tokenizer.kind, old.tokenizer.kind
    which = " here and ".join(kinds if kinds[0] != kinds[1] else (kinds[0], "with other settings or weights"))
    return f"{ANOTHER_SPACE}: it is {own}, {which} in the baseline"


def incomparable(study: Study) -> dict[Key, str]:
    """Return why arms are not compared with their baseline, by the arm's label and the metric."""
    meanings = definitions(study.settings.evaluation)
    found: dict[Key, str] = {}
    for arm, baseline in study.compared():
        if reason := another_space(arm.plans[0], baseline.plans[0]):
            found |= {(arm.label, name): reason for name, meaning in meanings.items() if meaning.metric.in_latents}
    return found


def planned_comparisons(study: Study, metrics: Iterable[str]) -> list[Key]:
    """Return every planned comparison, by the arm's label and the metric, trends by their `trend_key`.

    What cannot be compared does not count in the correction.
    """
    apart = incomparable(study)
    planned = [(arm.label, metric) for arm, _ in study.compared() for metric in metrics]
    trends = [trend_key(*key) for key, reason in _trends(study).items() if not reason]
    factors = [key for key, _ in _factor_contrasts(study).items()]
    return [*(key for key in planned if key not in apart), *trends, *factors]


def _factor_contrasts(study: Study) -> dict[Key, tuple[list[ArmPlan], Contrast]]:
    """Return the contrasts between factorial arms on the primary metrics that all their arms can be compared in."""
    apart = incomparable(study)
    return {
        factor_key(contrast, arms[0].resolution, metric): (arms, contrast)
        for arms, contrast in study.contrasts()
        for metric in study.settings.primary
        if is_tested(metric) and not any((arm.label, metric) in apart for arm in arms if arm.name in contrast.weights)
    }


def _by_name(arms: Sequence[ArmPlan]) -> dict[str, str]:
    """Return the labels of the arms of a resolution by name; '' is the baseline's."""
    return {"" if arm.role == "baseline" else arm.name: arm.label for arm in arms}


def _factor_effect(
    row: results.Comparison,
    metric: results.MetricInfo,
    arms: Sequence[ArmPlan],
    contrast: Contrast,
    of: MetricGroups,
) -> results.FactorEffect:
    """Describe a contrast by the runs of the look that its row is of."""
    fallen = [arm.name for arm in arms if arm.name in contrast.weights and of.fallen.get(arm.label)]
    if fallen:
        row = row.model_copy(update={"note": f"runs of {', '.join(fallen)} fell off"})
    means = means_of(contrast, of, _by_name(arms))
    return results.FactorEffect(
        parts=list(contrast.parts),
        metric=metric.name,
        resolution=arms[0].resolution,
        comparison=row,
        means=[results.ArmMean(arm=name, value=value) for name, value in means.items()],
        expected=expected_mean(contrast, means, of.log),
        verdict=factor_verdict(contrast, row, means, metric.direction),
    )


def _trends(study: Study) -> dict[Key, str]:
    """Return each arm and metric that several resolutions show; with the reason where they cannot have a trend."""
    resolutions, apart = study.by_resolution(), incomparable(study)
    reasons: dict[Key, str] = {}
    for arm in (arm for arms in resolutions if len(resolutions) > 1 for arm in arms[1:]):
        for metric in trend_metrics(study.settings.primary):
            reason = UNPAIRED if arm.role == "control" else apart.get((arm.label, metric), "")
            reasons[arm.name, metric] = reasons.get((arm.name, metric)) or reason
    return reasons


def _compared(
    study: Study,
    runs: Runs,
    meanings: Metrics,
    trends: Mapping[Key, Pair | str],
    planned: Sequence[Key],
    images: PerImage = NO_IMAGES,
    share: float = 1.0,
    family: Sequence[Key] = (),
) -> dict[Key, results.Comparison]:
    """Compare what is planned and measured.

    All comparisons of the `family` share the study's error, whatever their resolution; by default the planned ones.
    """
    pairs: dict[Key, Pair] = {}
    errors: dict[Key, float | None] = {}
    groups = _groups(study, runs, meanings)
    ratios = _groups(study, runs, {metric: meanings[metric] for _, metric in trends}, ratios=True)
    for arm, baseline in study.compared():
        new, old = runs[arm.label], runs[baseline.label]
        for key in ((arm.label, metric) for metric in meanings if (arm.label, metric) in planned):
            pair = pair_runs(new, old, key[1], arm.role == "arm")
            pairs[key] = groups[arm.resolution, key[1]].compared(pair, arm.label)
            errors[key] = _sampling_error(new, old, key[1], images)
    resolutions = list(dict.fromkeys(arm.resolution for arm in study.arms))
    for (arm_name, metric), trend in trends.items():
        if isinstance(trend, Pair):
            most, fewest = (
                ratios[one, metric].compared(trend, arm_label(arm_name, one))
                for one in (resolutions[-1], resolutions[0])
            )
            pairs[trend_key(arm_name, metric)] = with_terms(trend, most, fewest)
    for key, (arms, contrast) in _factor_contrasts(study).items():
        labels = _by_name(arms)
        of = {name: runs[label] for name, label in labels.items()}
        pairs[key] = factor_pair(contrast, of, key[1], groups[arms[0].resolution, key[1]], labels)
    measured = {key: pair for key, pair in pairs.items() if key in planned and (pair.new or pair.lost)}
    rows = compare(measured, meanings, study.settings.primary, study.settings.analysis, family or planned, share)
    return {key: row.model_copy(update={"sampling_error": errors.get(key)}) for key, row in rows.items()}


def _groups(study: Study, runs: Runs, meanings: Metrics, ratios: bool = False) -> dict[Key, MetricGroups]:
    """Return the values of each metric by (resolution, metric)."""
    return {
        (arms[0].resolution, metric): metric_groups(
            {arm.label: arm.role for arm in arms}, runs, metric, meaning, ratios
        )
        for arms in study.by_resolution()
        for metric, meaning in meanings.items()
    }


def _per_image(study: Study, out: Path) -> PerImage:
    plans, protocol = [plan for arm in study.arms for plan in arm.plans], study.settings.evaluation
    return {p.hash: read_per_image(result_file(out / "runs" / p.hash, protocol, p.train.steps)) for p in plans}


def _sampling_error(
    new: Sequence[results.Run], old: Sequence[results.Run], metric: str, images: PerImage
) -> float | None:
    """Return the standard error of a mean difference that comes from sampling.

    All runs share prompts and noises: where single images have numbers, it is that of the images' differences. The
    others, distances, are taken as independent.
    """
    values = [
        [images.get(run.hash, {}).get(metric, []) for run in runs if metric in run.metrics] for runs in (new, old)
    ]
    if all(values) and len({len(one) for of_arm in values for one in of_arm}) == 1 and values[0][0]:
        mean_new_N, mean_old_N = (torch.tensor(of_arm, dtype=torch.float64).mean(0) for of_arm in values)
        return mean_error(mean_new_N - mean_old_N)
    pairs = [(a.errors.get(metric), b.errors.get(metric)) for a, b in zip(new, old, strict=True)]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    return math.sqrt(sum(a * a + b * b for a, b in both)) / len(both) if both else None


def _levels(study: Study, runs: Runs, name: str) -> list[Level]:
    """Return an arm's runs at each resolution with the baseline's; an arm that stopped has its first seeds."""
    return [
        Level(arm.resolution, runs[arm.label], runs[baseline.label][: len(runs[arm.label])])
        for arm, baseline in study.compared()
        if arm.name == name
    ]


def _trend_pairs(study: Study, runs: Runs) -> dict[Key, Pair | str]:
    """Pair the effects at the most and the fewest tokens, by arm and metric; or say why there are none."""
    found: dict[Key, Pair | str] = {}
    for (arm, metric), reason in _trends(study).items():
        levels = _levels(study, runs, arm)
        found[arm, metric] = reason or trend_pair(levels[0], levels[-1], metric)
    return found


def _trend(key: Key, study: Study, runs: Runs, pair: Pair | str, rows: Rows) -> results.Trend:
    (arm, metric), undefined = key, pair if isinstance(pair, str) else ""
    every = [] if undefined.startswith(ANOTHER_SPACE) else _levels(study, runs, arm)
    levels = [_with_falls(level, rows.get((arm_label(arm, level.resolution), metric))) for level in every]
    effects = [relative_effect(level, metric, pair != UNPAIRED) for level in levels]
    known, comparison = [effect for effect in effects if effect is not None], rows.get(trend_key(*key))
    return results.Trend(arm=arm, metric=metric, effects=known, comparison=comparison, undefined=undefined)


def _with_falls(level: Level, row: results.Comparison | None) -> Level:
    """Return the level with the seeds of runs that fell off."""
    return level if row is None else replace(level, fallen=row.fallen, baseline_fallen=row.baseline_fallen)


def _method(study: Study, family: Sequence[Key], planned: Collection[Key]) -> str:
    settings, resolutions = study.settings, study.by_resolution()
    control = any(arm.role == "control" for arm in study.arms)
    tested = [key for key in family if is_tested(key[1])]
    dropped = sum(key not in planned for key in tested)
    counts = counts_of(tested, settings.primary)
    tokens = [arms[0].tokens for arms in resolutions] if len(resolutions) > 1 else []
    most, fewest = len(study.arms[0].plans), min(len(arm.plans) for arm in study.arms if arm.role != "control")
    text = describe_method(most, counts, control, settings.primary, settings.analysis, tokens, fewest)
    kept = [f"{dropped} of them were dropped after a look, and still count."] if dropped else []
    return " ".join([text, *kept, *_factor_words(study), *_not_compared(study)])


def _factor_words(study: Study) -> list[str]:
    """Say how main effects and interactions are compared; nothing in a study without factors."""
    if not (count := len(_factor_contrasts(study))):
        return []
    return [
        f"{count} of the comparisons on primary metrics are main effects and interactions of the factors: weighted "
        "sums of the means of arms, compared with zero by the same method."
    ]


def _not_compared(study: Study) -> list[str]:
    """Return a sentence for each reason and metric."""
    meanings = definitions(study.settings.evaluation)
    arms: dict[tuple[str, str], list[str]] = {}
    for (label, metric), reason in incomparable(study).items():
        arms.setdefault((metric, reason), []).append(label)
    return [
        f"The {meanings[metric].label} of {', '.join(labels)} is not compared, nor corrected for ({reason})."
        for (metric, reason), labels in arms.items()
    ]


def _arm(arm: ArmPlan, runs: list[results.Run]) -> results.Arm:
    """Return an arm of the results, without comparisons yet."""
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
    )


def real_folder(resolution: str) -> str:
    """Return the folder of a resolution's real images, relative to the study's."""
    return f"real/{resolution}" if resolution else "real"


def _shown_before(resolution: str, out: Path) -> tuple[list[str], list[str]]:
    """Return prompts and real images of the last report, for a report where the data are not at hand."""
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
    """Return the real images that an earlier report has written."""
    names = [f"{real_folder(baseline.resolution)}/preview-{index}.png" for index in range(PREVIEWS)]
    return [name for name in names if (out / name).is_file()]


def _reference(arms: Sequence[ArmPlan], protocol: Protocol, out: Path) -> dict[str, dict[str, float]]:
    """Return the metrics of real images: the same for every run of a resolution."""
    for plan in (plan for arm in arms for plan in arm.plans):
        stored = result_file(out / "runs" / plan.hash, protocol, plan.train.steps)
        if stored.exists():
            return read_result(stored).real
    return {}
