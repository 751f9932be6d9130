"""Score a run by a protocol, once per protocol and step. The result is stored in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from tintype.config.strict import Document, parse
from tintype.data.sources import open_held_out
from tintype.errors import DamagedFileError, DivergedError, UserError, as_user_error
from tintype.evaluation import results
from tintype.evaluation.fit import data_problems, file_problems, fit_protocol, readiness_problems, refuse
from tintype.evaluation.memorised import AskedSamples, FoundCopies, ask_for_copies
from tintype.evaluation.progress import Counter, OnScoring, Scoring
from tintype.evaluation.protocol import Protocol, nonfinite
from tintype.evaluation.reference import ScoredData, held_out, scored_data
from tintype.evaluation.results import AverageInfo, EvaluationResult, result_file, result_of
from tintype.evaluation.samples import Samples, samples_of, sampling_prompts, sampling_shapes
from tintype.evaluation.score import Scorecard, encoder_info, score
from tintype.evaluation.tracking import track_result
from tintype.metrics.memorisation import Figure
from tintype.metrics.table import LOG_METRICS
from tintype.plan import Plan
from tintype.runtime.dist import current, refuse_other_steps
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import remove_unfinished, set_aside, sha256_of
from tintype.runtime.machine import choose_device, cpu_threads
from tintype.runtime.memory import checked_memory
from tintype.runtime.notes import note_once
from tintype.runtime.watchdog import watch_ranks
from tintype.sampling.sample import save_png
from tintype.settings import plain
from tintype.train.agreement import agree_on_plan
from tintype.train.folder import RunFolder
from tintype.train.guide import with_guides
from tintype.train.load import load_run, weights_words
from tintype.train.parts import Model
from tintype.train.reconstruct import Reconstruction
from tintype.train.record import EVALUATION, RunRecord

PREVIEWS = 8
_SAMPLES = Path(EVALUATION) / "samples"


def evaluate(
    path: Path,
    protocol: Protocol,
    on_progress: OnScoring = lambda scoring: None,
    device: str | None = None,
    average: Reconstruction | None = None,
    threads: int | None = None,
    whole_step: int | None = None,
    kept_step: int | None = None,
    fence: Fence = OPEN,
) -> EvaluationResult:
    """Score a run's newest checkpoint, an average computed from its snapshots, or the weights kept at `kept_step`.

    A caller that has just verified the newest checkpoint gives its step as `whole_step`. Protocol settings that were
    not given are chosen to fit the run's data. Images are generated once. The ranks share the work. The first rank has
    the numbers, writes the result and broadcasts it. On a CPU, scoring uses the run's number of threads, or `threads`.
    The `fence` stops writes of a process that has lost the run's lease.
    """
    world, record = current(), RunRecord(path)
    plan = record.plan
    with watch_ranks(world, plan.run.watchdog):
        on_progress(Scoring("loading the run", 0, None, 0.0))
        record.refuse_diverged()
        protocol, notes = _fit(path, plan, protocol)
        agree_on_plan(plan, world, evaluation=plain(protocol))
        on_device = choose_device(device or plan.run.device)
        found = _stored(path, protocol, on_device, average, kept_step or whole_step, fence) if world.leads else None
        if (known := world.broadcast(found.dump() if found else None)) is not None:
            return result_of(known)
        _check_readiness(protocol, plan, on_device)
        parts, step = load_run(path, device, average, kept_step=kept_step)
        refuse_other_steps(world.all_gather(step), path)
        parts = with_guides(path, parts, step, [one.sampler.guidance.guide for one in protocol.conditions])
        scored = scored_data(parts.plan, protocol, step)
        record.check_identity(parts.plan.data.scored_name, held_out(scored, protocol).identity)
        began = time.perf_counter()
        file = result_file(path, protocol, step, average.name if average else "")
        with as_user_error(OSError, f"cannot write to {file.parent}"):
            file.parent.mkdir(parents=True, exist_ok=True)
            remove_unfinished(file.parent)
        samples = _samples(path, step, scored, protocol, average)
        weights = average.name if average else ""
        asked = ask_for_copies(path / _SAMPLES, step, parts.plan, scored, protocol, weights)
        with checked_memory():
            card = _sample_and_score(parts, scored, protocol, samples, asked, on_progress, threads, fence)
        if not world.leads:
            return result_of(world.broadcast())
        if bad := nonfinite(card.measured):
            raise DivergedError(f"{path}: the model has diverged; these scores are not finite: {', '.join(bad)}")
        init_warning = plan.ema.init_warning(step) if plan.ema and average is None else None
        previews = _save_previews(next(samples[0].shards()), file.parent, path, fence)
        results.write_misread(file, samples[0].prompts, card.misread, fence)
        of_log = {metric.name: metric.measure(record.lines) for metric in LOG_METRICS if record.lines}
        measured = {**card.measured, **of_log}
        result = EvaluationResult(
            plan=parts.plan.hash,
            step=step,
            size_px=scored.data.size_px if protocol.staged else None,
            weights=weights_words(path, parts.plan, average),
            ema=AverageInfo(length=average.length, residual=average.residual) if average else None,
            protocol=protocol,
            protocol_hash=protocol.hash,
            encoders=card.encoders,
            **results.numbers_of(measured),
            warnings=(*card.warnings, *notes, *([init_warning] if init_warning else [])),
            details={name: dict(one.parts) for name, one in measured.items() if one.parts},
            samples={
                one.sampling.name: str(one.folder.relative_to(path))
                for one in (*samples, *(asked.every if asked else ()))
            },
            real=card.real,
            time_split=record.time_split,
            seconds=time.perf_counter() - began,
            previews=previews,
            previews_sha256=tuple(sha256_of(path / name) for name in previews),
            copies={name: _save_copies(found, name, file.parent, path, fence) for name, found in card.copies.items()},
        )
        results.write_result(file, result, {name: one.per_image for name, one in measured.items()}, fence)
        track_result(path, plan, file, result, fence)
        world.broadcast(result.dump())
        return result


def _fit(path: Path, plan: Plan, protocol: Protocol) -> tuple[Protocol, list[str]]:
    """Fit the protocol on the first rank for all ranks, since other machines may have other encoder weights."""
    world, found = current(), None
    with world.fail_together():
        if world.leads:
            fitted = fit_protocol(protocol, plan.data)
            if fitted.problems:
                source = open_held_out(plan.data, 1, torch.device("cpu"), fitted.protocol.shaped)
                given = data_problems(plan.data, source, fitted.protocol)
                refuse([*fitted.problems, *given])
            found = {"protocol": plain(fitted.protocol), "notes": list(fitted.notes)}
    found = world.broadcast(found)
    return parse(Protocol, Document(str(path), found["protocol"])), found["notes"]


def _check_readiness(protocol: Protocol, plan: Plan, device: torch.device) -> None:
    """Raise if the protocol cannot work. One rank of each machine downloads the encoders' weights first."""
    world = current()
    with world.fail_together():
        if world.size > 1 and world.local_rank == 0:
            for settings in protocol.encoders:
                with suppress(UserError):  # reported below, together with all other problems
                    settings.build(device)
    with world.fail_together():
        refuse(readiness_problems(protocol, [plan.data], device))


def _stored(
    path: Path,
    protocol: Protocol,
    device: torch.device,
    average: Reconstruction | None,
    whole_step: int | None,
    fence: Fence,
) -> EvaluationResult | None:
    """Return the stored result if a new scoring would only repeat it, otherwise None."""
    step = average.step if average else whole_step or RunRecord(path).whole_step
    if step is None or file_problems(protocol):
        return None
    file = result_file(path, protocol, step, average.name if average else "")
    if not file.exists():
        return None
    try:
        result = results.read_result(file)
        results.read_per_image(file)
        results.read_misread(file)
    except DamagedFileError as error:
        _discard(path, file, step, error, fence)
        return None
    # an encoder's weights may have changed since, although its name is the same
    same = (result.encoders.get(one.title) == encoder_info(one, one.build(device)) for one in protocol.encoders)
    return result if all(same) else None


def _discard(path: Path, file: Path, step: int, error: DamagedFileError, fence: Fence) -> None:
    """Set a damaged result aside, and log an event that the report shows. The run is then scored again."""
    note_once(str(file), f"{error.marked}; the run is scored again")
    fence.check()
    moved_to = set_aside(file)
    folder = RunFolder(path, fence=fence)
    if folder.metrics_file.exists():
        name = str(file.relative_to(path))
        folder.log_event("damaged-file", step, file=name, reason=str(error), moved_to=str(moved_to))


def _samples(
    path: Path, step: int, scored: ScoredData, protocol: Protocol, average: Reconstruction | None
) -> list[Samples]:
    folder, size_px, weights = path / _SAMPLES, scored.data.size_px, average.name if average else ""
    found = []
    for one in protocol.conditions:
        prompts, shapes = sampling_prompts(scored, protocol, one), sampling_shapes(scored, protocol, one)
        found.append(samples_of(folder, step, one, prompts, protocol.seed, size_px, weights, shapes))
    return found


def _sample_and_score(
    parts: Model,
    scored: ScoredData,
    protocol: Protocol,
    samples: Sequence[Samples],
    asked: AskedSamples | None,
    on_progress: OnScoring,
    threads: int | None,
    fence: Fence,
) -> Scorecard:
    for_copies = asked.every if asked else []
    missing = {one: sum(last - first for first, last in one.missing()) for one in (*samples, *for_copies)}
    sampled = sum(count * one.sampling.sampler.steps for one, count in missing.items())
    encoded = sum(len(one) * len(protocol.encoders_of(one.sampling)) for one in samples)
    encoded += sum(len(one) * len(protocol.encoders) for one in for_copies)
    counter = Counter(sampled + encoded, on_progress)
    counter.begin("sampling", sum(missing.values()))
    with cpu_threads(parts.plan.run.device, threads or parts.plan.run.threads):
        for one in missing:
            one.make(parts, partial(counter.count, steps=one.sampling.sampler.steps), fence)
        return score(parts, scored, protocol, samples, counter, PREVIEWS, asked)


def _save_previews(images: Tensor, folder: Path, run: Path, fence: Fence) -> tuple[str, ...]:
    files = [folder / f"preview-{index}.png" for index in range(min(PREVIEWS, len(images)))]
    for file, image in zip(files, images, strict=False):
        save_png(image, file, fence=fence)
    return tuple(str(file.relative_to(run)) for file in files)


def _save_copies(found: FoundCopies, encoder: str, folder: Path, run: Path, fence: Fence) -> results.Copies:
    """Write the nearest pairs as PNG files. Return their record for the result."""
    recalled, pairs = found.recall, list[results.CopyPair]()
    for index, pair in enumerate(found.pairs):
        file = folder / f"copy-{encoder}-{index}.png"
        save_png(pair.image_CHW, file, fence=fence)
        pairs.append(
            results.CopyPair(
                image=str(file.relative_to(run)),
                sha256=sha256_of(file),
                caption=pair.caption,
                guidance=pair.scale,
                distance=pair.distance,
                own=pair.own,
                counts=pair.copy,
            )
        )
    scales: dict[str, float | None] = {results.ALL_SCALES: None, **{f"{one:g}": one for one in found.asked.scales}}
    rates = {
        figure: {name: recalled.rate(figure, scale) for name, scale in scales.items()} for figure in get_args(Figure)
    }
    return results.Copies(
        verdict=recalled.verdict,
        captions=recalled.captions,
        images=recalled.images,
        unlike=recalled.unlike,
        pairs=pairs,
        **rates,
    )
