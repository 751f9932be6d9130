"""Scores a run by a protocol, once for each protocol and step; the result is kept in the run's folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tintype.config.strict import Document, parse
from tintype.data.sample_shards import digest
from tintype.data.sources import open_held_out
from tintype.errors import DamagedFileError, DivergedError, UserError
from tintype.evaluation.data import Problem, data_problems, fit_protocol, refuse
from tintype.evaluation.prompts import CAPTIONS, PromptFile, is_caption, read_prompts
from tintype.evaluation.protocol import Protocol, Sampling, definitions, nonfinite, warnings_of
from tintype.evaluation.reference import BLOCK, data_reference, held_out, shared_features
from tintype.evaluation.results import (
    AverageInfo,
    EncoderInfo,
    EvaluationResult,
    numbers_of,
    read_result,
    result_file,
    result_of,
    write_result,
)
from tintype.evaluation.samples import Samples, samples_of
from tintype.metrics import throughput, validation
from tintype.metrics.clip_score import TextFeatures
from tintype.metrics.metric import Measured
from tintype.metrics.pair import FeaturePair
from tintype.metrics.scene_accuracy import ReadScenes
from tintype.metrics.table import FEATURE_METRICS, HELD_OUT_METRICS, LOG_METRICS, SCENE_METRICS, TEXT_METRICS
from tintype.plan import Plan, plan_from_folder
from tintype.runtime.dist import current, refuse_other_steps
from tintype.runtime.files import remove_unfinished, set_aside, sha256_of
from tintype.runtime.watchdog import watch_ranks
from tintype.sampling.generate import cut
from tintype.sampling.images import save_png
from tintype.seams import Encoder, ImageSource, TextImageEncoder
from tintype.settings import DataPart, plain
from tintype.train import checkpoint
from tintype.train.agreement import agree_on_plan
from tintype.train.folder import RunFolder
from tintype.train.load import load_run, weights_words
from tintype.train.parts import Parts, choose_device, cpu_threads
from tintype.train.reconstruct import Reconstruction
from tintype.vision.encoders import READ_TOGETHER, EncoderPart, scene_features
from tintype.vision.scene_encoder import SceneReading

PREVIEWS = 8
_FEATURE = "feature"


@dataclass
class Scorecard:
    """The numbers of an evaluation as they come in."""

    measured: dict[str, Measured] = field(default_factory=dict)
    encoders: dict[str, EncoderInfo] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scoring:
    """Progress passed to the callback: images of the part under way, and the share of the evaluation that is done."""

    doing: str
    done: float
    total: int | None
    share: float


OnScoring = Callable[[Scoring], None]


class _Counter:
    """Count images: once for each step of the sampler, once for each encoder that looks at them."""

    def __init__(self, work: int, on_progress: OnScoring) -> None:
        self._work, self._on_progress = work, on_progress
        self._worked, self._ranks = 0, current().size

    def begin(self, doing: str, total: int | None = None) -> None:
        self._doing, self._total, self._done = doing, total, 0.0
        self._report()

    def count(self, images: int, steps: int = 1) -> None:
        """Count images that one of so many steps was made of; the other ranks are as far as this one."""
        self._worked = min(self._worked + images * self._ranks, self._work)
        self._done += images * self._ranks / steps
        self._report()

    def _report(self) -> None:
        share = self._worked / self._work if self._work else 1.0
        done = self._done if self._total is None else min(self._done, self._total)
        self._on_progress(Scoring(self._doing, done, self._total, share))


def readiness_problems(protocol: Protocol, data: Iterable[DataPart], device: torch.device) -> list[Problem]:
    """List all that keeps a protocol from working: data that it does not fit, missing prompt files and weights.

    Builds the encoders, which fetches their weights once.
    """
    found = [
        problem
        for one in data
        for problem in data_problems(one, open_held_out(one, protocol.held_out_count, torch.device("cpu")), protocol)
    ]
    found += _file_problems(protocol)
    for settings in protocol.encoders:
        try:
            encoder = settings.build(device)
            if settings.reads_text:
                cast(TextImageEncoder, encoder).encode_text(["a picture"])
        except UserError as error:
            found.append(Problem(f"encoders: {error}"))
    return list(dict.fromkeys(found))


def _file_problems(protocol: Protocol) -> list[Problem]:
    found = []
    for sampling in protocol.conditions:
        try:
            sampling_file(sampling)
        except UserError as error:
            found.append(Problem(str(error), ("also=[]",)))
    return found


def evaluate(
    path: Path,
    protocol: Protocol,
    on_progress: OnScoring = lambda scoring: None,
    device: str | None = None,
    average: Reconstruction | None = None,
    threads: int | None = None,
    whole_step: int | None = None,
) -> EvaluationResult:
    """Score a run's newest checkpoint, or an average made of its snapshots.

    `whole_step` is the newest checkpoint's step for a caller that has just checked it.

    Settings of the protocol that were not given follow from the run's data. Images are made once; `on_progress` gets
    the progress. Ranks share the work; the first has the numbers, writes the result and broadcasts it. On a CPU it
    computes with the run's number of threads, or `threads`.
    """
    with watch_ranks(current(), plan_from_folder(path).run.watchdog):
        return _evaluate(path, protocol, on_progress, device, average, threads, whole_step)


def _evaluate(
    path: Path,
    protocol: Protocol,
    on_progress: OnScoring,
    device: str | None,
    average: Reconstruction | None,
    threads: int | None,
    whole_step: int | None,
) -> EvaluationResult:
    world = current()
    on_progress(Scoring("loading the run", 0, None, 0.0))
    RunFolder(path).refuse_diverged()
    protocol, notes = _fitted(path, protocol)
    agree_on_plan(plan_from_folder(path), world, evaluation=plain(protocol))
    found = _known(path, protocol, device, average, whole_step) if world.leads else None
    if (known := world.lead(found.dump() if found else None)) is not None:
        return result_of(known)
    plan = plan_from_folder(path)
    on_device = choose_device(device or plan.run.device)
    _fetch_once(protocol, on_device)
    with world.together():
        refuse(readiness_problems(protocol, [plan.data], on_device))
    parts, step = load_run(path, device, average)
    refuse_other_steps(world.tell(step), path)
    RunFolder(path).check_identity(parts.plan.data.scored_name, held_out(parts.plan.data, protocol).identity)
    began, name = time.perf_counter(), average.name if average else ""
    stored = result_file(path, protocol, step, name)
    try:
        stored.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(stored.parent)
    except OSError as error:
        raise UserError(f"cannot write to {stored.parent}: {error.strerror}") from None
    samples = [_samples(path, step, parts.plan.data, protocol, sampling, name) for sampling in protocol.conditions]
    counter = _Counter(_work(protocol, samples), on_progress)
    counter.begin("sampling", sum(last - first for one in samples for first, last in one.missing()))
    with cpu_threads(parts.plan.run, threads):
        for one in samples:
            one.make(parts, partial(counter.count, steps=one.sampling.sampler.steps))
        card = _score(parts, protocol, samples, counter)
        real = _real_accuracy(parts, protocol)
    card.warnings += notes
    if not world.leads:
        return result_of(world.lead())
    if bad := nonfinite(card.measured):
        raise DivergedError(f"{path}: the model has diverged; not finite: {', '.join(bad)}")
    lines = RunFolder(path).metrics()
    if lines:
        card.measured |= {metric.name: metric.measure(lines) for metric in LOG_METRICS}
    previews = _save_previews(next(samples[0].shards()), stored.parent, path)
    result = EvaluationResult(
        plan=parts.plan.hash,
        step=step,
        weights=weights_words(path, parts.plan, average),
        ema=AverageInfo(length=average.length, residual=average.residual) if average else None,
        protocol=protocol,
        protocol_hash=protocol.hash,
        encoders=card.encoders,
        **numbers_of(card.measured),
        warnings=(*card.warnings, *_init_warnings(parts.plan, step, average)),
        details={name: dict(one.parts) for name, one in card.measured.items() if one.parts},
        samples={one.sampling.name: str(one.folder.relative_to(path)) for one in samples},
        real=real,
        time_split=throughput.time_split(lines) if lines else {},
        seconds=time.perf_counter() - began,
        previews=tuple(previews),
        previews_sha256=tuple(sha256_of(path / name) for name in previews),
    )
    write_result(stored, result)
    world.lead(result.dump())
    return result


def _init_warnings(plan: Plan, step: int, average: Reconstruction | None) -> list[str]:
    """Warns where the scored average still has much of the initial weights."""
    found = plan.ema.init_warning(step) if plan.ema and average is None else None
    return [found] if found else []


def _fitted(path: Path, protocol: Protocol) -> tuple[Protocol, list[str]]:
    """Fit the protocol to the run's data. The first rank decides for all, since machines may have other weights."""
    world, found = current(), None
    with world.together():
        if world.leads:
            data = plan_from_folder(path).data
            fitted = fit_protocol(protocol, data)
            if fitted.problems:
                given = data_problems(data, open_held_out(data, 1, torch.device("cpu")), fitted.protocol)
                refuse([*fitted.problems, *given])
            found = {"protocol": plain(fitted.protocol), "notes": list(fitted.notes)}
    found = world.lead(found)
    return parse(Protocol, Document(str(path), found["protocol"])), found["notes"]


def _fetch_once(protocol: Protocol, device: torch.device) -> None:
    """On each machine one rank fetches what the encoders need; the others find it there."""
    world = current()
    with world.together():
        if world.size > 1 and world.local_rank == 0:
            for settings in protocol.encoders:
                with suppress(UserError):  # named with everything else that is wrong
                    settings.build(device)


def _known(
    path: Path, protocol: Protocol, device: str | None, average: Reconstruction | None, whole_step: int | None
) -> EvaluationResult | None:
    """The stored result, if there is one that scoring again would only repeat."""
    step = average.step if average else whole_step or checkpoint.newest_whole_step(RunFolder(path).checkpoints)
    if (
        step is None
        or _file_problems(protocol)
        or not (stored := result_file(path, protocol, step, average.name if average else "")).exists()
    ):
        return None
    try:
        result = read_result(stored)
    except DamagedFileError as error:
        _discard(path, stored, step, error)
        return None
    return result if _read_by(result, protocol, choose_device(device or plan_from_folder(path).run.device)) else None


def _read_by(result: EvaluationResult, protocol: Protocol, device: torch.device) -> bool:
    """Whether a stored result was made by the encoders as they are now: weights can change behind the same name."""
    return all(
        result.encoders.get(settings.title) == _about(settings, settings.build(device))
        for settings in protocol.encoders
    )


def _about(settings: EncoderPart, encoder: Encoder) -> EncoderInfo:
    text = cast(TextImageEncoder, encoder).text_identity if settings.reads_text else ""
    return EncoderInfo(identity=encoder.identity, definition=encoder.definition, text=text)


def _discard(path: Path, stored: Path, step: int, error: DamagedFileError) -> None:
    """Set a damaged result aside, and say so where the report will: the run is scored again."""
    sys.stderr.write(f"note: {error}; the run is scored again\n")
    moved_to = set_aside(stored)
    if RunFolder(path).metrics_file.exists():
        file = str(stored.relative_to(path))
        RunFolder(path).log_event("damaged-file", step, file=file, reason=str(error), moved_to=str(moved_to))


def _samples(path: Path, step: int, data: DataPart, protocol: Protocol, sampling: Sampling, weights: str) -> Samples:
    prompts = sampling_prompts(data, protocol, sampling)
    return samples_of(path / "evaluation" / "samples", step, sampling, prompts, protocol.seed, data.size_px, weights)


def sampling_prompts(data: DataPart, protocol: Protocol, sampling: Sampling) -> Sequence[str]:
    """One prompt for each image of a condition."""
    if is_caption(sampling.prompts):
        assert sampling.count is not None
        records = held_out(data, protocol).records(range(sampling.count))
        return [record.captions[sampling.prompts] for record in records]
    file = sampling_file(sampling)
    assert file is not None
    return _repeat(file.prompts, sampling.per_prompt)


def sampling_file(sampling: Sampling) -> PromptFile | None:
    """The prompt file of a condition that has one."""
    return None if is_caption(sampling.prompts) else read_prompts(Path(sampling.prompts))


def _repeat(values: Sequence[str], times: int) -> list[str]:
    return [value for value in values for _ in range(times)]


def _work(protocol: Protocol, samples: Sequence[Samples]) -> int:
    """Return what a `_Counter` will have counted at the end."""
    made = sum((last - first) * one.sampling.sampler.steps for one in samples for first, last in one.missing())
    seen = sum(len(one) for one in samples for _, looks in _looks(protocol, one.sampling) if looks)
    return made + seen


def _looks(protocol: Protocol, sampling: Sampling) -> list[tuple[Any, bool]]:
    """Each encoder's settings, and whether it looks at a condition's images."""
    return [(encoder, sampling.distances or encoder.reads_text) for encoder in protocol.encoders]


def _score(parts: Parts, protocol: Protocol, samples: Sequence[Samples], counter: _Counter) -> Scorecard:
    """Every rank looks at its share of the images; the first fills in the numbers."""
    card = Scorecard()
    for one in samples:
        counter.begin("checking the images")
        if current().leads:
            card.warnings += _duplicates(one)  # the first pass, which checks the shards
        _score_accuracy(card, parts, protocol, one)
        for settings, looks in _looks(protocol, one.sampling):
            if looks:
                _score_features(card, parts, protocol, settings, one, counter)
    counter.begin("validation loss")
    _score_validation(card, parts, protocol)
    card.warnings += warnings_of(card.measured, definitions(protocol, parts.plan.data.of_scenes))
    return card


def _score_features(
    card: Scorecard,
    parts: Parts,
    protocol: Protocol,
    settings: Any,
    samples: Samples,
    counter: _Counter,
) -> None:
    counter.begin(f"loading the encoder {settings.title}")
    encoder = settings.build(parts.device)
    card.encoders[encoder.name] = _about(settings, encoder)
    counter.begin(f"encoding with {encoder.name}", len(samples))
    fake_NF = shared_features(encoder, samples.blocks(BLOCK), samples.read, counter.count)
    counter.begin(f"comparing with the reference ({encoder.name})")
    distances = samples.sampling.distances
    reference = data_reference(parts.plan.data, protocol, encoder, parts.device) if distances else None
    if fake_NF is None:
        return
    if reference is not None:
        pair = FeaturePair(fake_NF, reference)
        for kind in protocol.metrics:
            card.measured[samples.sampling.metric(f"{kind}_{encoder.name}")] = FEATURE_METRICS[kind].measure(pair)
    if settings.reads_text:
        _score_text(card, encoder, fake_NF, samples)


def _score_accuracy(card: Scorecard, parts: Parts, protocol: Protocol, samples: Samples) -> None:
    kind = samples.sampling.prompts
    if kind not in CAPTIONS or not parts.plan.data.of_scenes:
        return
    reading = _read(samples.blocks(READ_TOGETHER), samples.read, parts.device)
    if reading is None:
        return
    read = _read_scenes(reading, held_out(parts.plan.data, protocol), kind, len(samples), parts.plan.data.size_px)
    card.measured |= {samples.sampling.metric(metric.name): metric.measure(read) for metric in SCENE_METRICS}


def _read(
    blocks: Sequence[tuple[int, int]], images: Callable[[int, int], Tensor], device: torch.device
) -> SceneReading | None:
    """What all the pictures show, on the first rank; they need not be in memory at once."""

    def read(block: tuple[int, int]) -> dict[str, Tensor]:
        reading = scene_features(device).read(images(*block))
        return {_FEATURE: reading.feature_BF, **reading.logits}

    found = current().share_named(blocks, read)
    return None if found is None else SceneReading(found.pop(_FEATURE), found)


def _read_scenes(reading: SceneReading, source: ImageSource, kind: str, count: int, size_px: int) -> ReadScenes:
    scenes = [record.attributes for record in source.records(range(count))]
    return ReadScenes(reading, scenes, "long" if kind == "long" else "short", size_px)


def _score_text(card: Scorecard, encoder: TextImageEncoder, fake_NF: Tensor, samples: Samples) -> None:
    rows = {prompt: row for row, prompt in enumerate(dict.fromkeys(samples.prompts))}
    file, sampling = sampling_file(samples.sampling), samples.sampling
    groups = {group: _repeat(labels, sampling.per_prompt) for group, labels in (file.groups if file else {}).items()}
    text_PF = encoder.encode_text(list(rows)).cpu()
    features = TextFeatures(fake_NF, text_PF, [rows[prompt] for prompt in samples.prompts], groups)
    for metric in TEXT_METRICS:
        card.measured[sampling.metric(f"{metric.name}_{encoder.name}")] = metric.measure(features)


def _score_validation(card: Scorecard, parts: Parts, protocol: Protocol) -> None:
    source = held_out(parts.plan.data, protocol)
    batches = validation.batches(protocol.validation_count, protocol.sampler.batch)
    error_NT = current().share(
        batches, lambda ids: validation.batch_errors(parts, source, ids, protocol.seed, protocol.prompts).T
    )
    if error_NT is None:
        return
    error_TN = error_NT.T.contiguous()
    card.measured |= {metric.name: metric.measure(error_TN) for metric in HELD_OUT_METRICS}


def _duplicates(samples: Samples) -> list[str]:
    """Note images with the same pixels: noise was repeated, or the model gives one image for many noises and prompts.

    The errors of sampling stay those of independent images, since each was drawn with a noise of its own.
    """
    different = {digest(image) for shard in samples.shards() for image in shard}
    copies = len(samples) - len(different)
    if not copies:
        return []
    return [
        f"{copies:,} of {len(samples):,} images ({samples.sampling.words}) are exact copies of another: "
        f"the model gives {len(different):,} different images"
    ]


def _real_accuracy(parts: Parts, protocol: Protocol) -> dict[str, dict[str, float]]:
    """The scene encoder's own score on the real images of the prompts: what a perfect model would get."""
    found: dict[str, dict[str, float]] = {}  # of ranks that do not lead it is empty
    if not parts.plan.data.of_scenes:
        return found
    for sampling in protocol.conditions:
        if sampling.prompts in CAPTIONS and sampling.count is not None:
            asked = (parts.plan.data, protocol, sampling.prompts, sampling.count, parts.device)
            if (scores := _accuracy_of_real(*asked)) is not None:
                found |= {sampling.metric(metric.name): scores for metric in SCENE_METRICS}
    return found


@lru_cache(maxsize=8)
def _accuracy_of_real(
    data: DataPart, protocol: Protocol, kind: str, count: int, device: torch.device
) -> dict[str, float] | None:
    source = held_out(data, protocol)
    reading = _read(cut(0, count, READ_TOGETHER), lambda first, last: source.images(range(first, last)), device)
    if reading is None:
        return None
    scores = _read_scenes(reading, source, kind, count, data.size_px).scores
    return {**scores.by_attribute, "overall": scores.overall}


def _save_previews(images: Tensor, folder: Path, run: Path) -> list[str]:
    names = [f"preview-{index}.png" for index in range(min(PREVIEWS, len(images)))]
    for name, image in zip(names, images, strict=False):
        save_png(image, folder / name)
    return [str((folder / name).relative_to(run)) for name in names]
