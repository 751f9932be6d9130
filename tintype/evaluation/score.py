"""Measure a protocol's metrics on samples and held-out images. The first rank has the numbers of all ranks.

N: images, F: size of a feature vector, T: times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor

from tintype.data.buckets import Shape
from tintype.data.sample_shards import digest
from tintype.evaluation.memorised import AskedSamples, FoundCopies, find_copies
from tintype.evaluation.progress import Counter
from tintype.evaluation.protocol import FEWEST, Protocol, definitions, warnings_of
from tintype.evaluation.reference import (
    BLOCK,
    ScoredData,
    data_reference,
    held_out,
    rows_by_shape,
    shared_features,
)
from tintype.evaluation.results import EncoderInfo
from tintype.evaluation.samples import Samples, repeat
from tintype.metrics import validation
from tintype.metrics.clip_score import TextFeatures
from tintype.metrics.metric import Measured
from tintype.metrics.misread import Misread, misread_words
from tintype.metrics.pair import FeaturePair, Reference
from tintype.metrics.scene_accuracy import ReadScenes
from tintype.metrics.table import FEATURE_METRICS, HELD_OUT_METRICS, SCENE_METRICS, TEXT_METRICS, TRAINING_METRICS
from tintype.runtime.dist import current
from tintype.sampling.generate import spans
from tintype.seams import Encoder, TextImageEncoder
from tintype.train.parts import Model
from tintype.vision.part import EncoderPart
from tintype.vision.scene_encoder import READ_TOGETHER, SceneReading, scene_features

_FEATURE = "feature"


@dataclass
class Scorecard:
    """Numbers of an evaluation, filled in while they are measured. Only the first rank's scorecard is filled."""

    measured: dict[str, Measured] = field(default_factory=dict)
    encoders: dict[str, EncoderInfo] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    real: dict[str, dict[str, float]] = field(default_factory=dict)
    """Scene metrics on the real images of the prompts. A perfect model would get these scores."""
    misread: list[list[Misread]] = field(default_factory=list)
    """The words that the first images of the first sampling got wrong; empty if its prompts do not describe scenes."""
    copies: dict[str, FoundCopies] = field(default_factory=dict)
    """Near-copies of training images by encoder; empty if not measured."""


def score(
    parts: Model,
    scored: ScoredData,
    protocol: Protocol,
    samples: Sequence[Samples],
    counter: Counter,
    previews: int = 0,
    asked: AskedSamples | None = None,
) -> Scorecard:
    """Score the samples of all samplings. Record the words that the first `previews` images got wrong.

    `asked` are the samples in which copies of training images are searched.
    """
    card = Scorecard()
    for one in samples:
        counter.begin("checking the images")
        if current().leads:
            card.warnings += _duplicates(one)  # the first pass over the images, which also verifies the shards
        if scored.data.of_scenes and one.sampling.prompts in SCENE_METRICS:
            _score_scenes(card, parts, scored, protocol, one, previews if one is samples[0] else 0)
        for settings in protocol.encoders_of(one.sampling):
            _score_features(card, parts, scored, protocol, settings, one, counter)
    if asked is not None:
        _score_copies(card, parts, protocol, asked, counter)
    counter.begin("validation loss")
    _score_held_out(card, parts, scored, protocol)
    card.warnings += warnings_of(card.measured, definitions(protocol, scored.data.of_scenes))
    return card


def encoder_info(settings: EncoderPart, encoder: Encoder) -> EncoderInfo:
    text = cast(TextImageEncoder, encoder).text_identity if settings.reads_text else ""
    return EncoderInfo(identity=encoder.identity, definition=encoder.definition, text=text)


def _score_features(
    card: Scorecard,
    parts: Model,
    scored: ScoredData,
    protocol: Protocol,
    settings: EncoderPart,
    samples: Samples,
    counter: Counter,
) -> None:
    sampling = samples.sampling
    counter.begin(f"loading the encoder {settings.title}")
    encoder = settings.build(parts.device)
    card.encoders[encoder.name] = encoder_info(settings, encoder)
    counter.begin(f"encoding with {encoder.name}", len(samples))
    fake_NF = shared_features(encoder, samples.blocks(BLOCK), samples.read, counter.count)
    counter.begin(f"comparing with the reference ({encoder.name})")
    reference = data_reference(scored, protocol, encoder, parts.device) if sampling.distances else None
    if fake_NF is None:
        return
    if reference is not None:
        pair = FeaturePair(fake_NF, reference)
        shaped, left_out = _pairs_by_shape(scored, protocol, samples, fake_NF, reference)
        if left_out:
            card.warnings.append(
                f"no distances of {', '.join(left_out)} by {encoder.name} ({sampling.words}): they need {FEWEST} "
                "images of the shape, generated and held out (count, reference_count)"
            )
        for kind in protocol.metrics:
            if kind in FEATURE_METRICS:
                measure = FEATURE_METRICS[kind].measure
                by_shape = {shape: measure(one).value for shape, one in shaped.items()}
                card.measured[sampling.metric(f"{kind}_{encoder.name}")] = _with_parts(measure(pair), by_shape)
    if settings.reads_text:
        features = _text_features(cast(TextImageEncoder, encoder), fake_NF, samples)
        for metric in TEXT_METRICS:
            card.measured[sampling.metric(f"{metric.name}_{encoder.name}")] = metric.measure(features)


def _score_copies(card: Scorecard, parts: Model, protocol: Protocol, asked: AskedSamples, counter: Counter) -> None:
    card.warnings += [asked.questions.note] if asked.questions.note and current().leads else []
    for settings in protocol.encoders:
        counter.begin(f"looking for copies of training images ({settings.title})")
        encoder = settings.build(parts.device)
        card.encoders[encoder.name] = encoder_info(settings, encoder)
        if (found := find_copies(asked, encoder, counter.count)) is not None:
            card.copies[encoder.name] = found
            for kind in protocol.training_metrics:
                card.measured[f"{kind}_{encoder.name}"] = TRAINING_METRICS[kind].measure(found.recall)


def _pairs_by_shape(
    scored: ScoredData, protocol: Protocol, samples: Samples, fake_NF: Tensor, reference: Reference
) -> tuple[dict[str, FeaturePair], list[str]]:
    """Return, for each shape, the features of samples and real images, and the shapes with too few images.

    Both returned values are empty if all images have one shape.
    """
    if not samples.shapes:
        return {}, []
    real_MF = reference.points.offset_NF + reference.mean_F
    found, left_out = dict[str, FeaturePair](), list[str]()
    for shape, row_M in rows_by_shape(held_out(scored, protocol), protocol.reference_count).items():
        row_N = torch.tensor([row for row, one in enumerate(samples.shapes) if one == shape], dtype=torch.int64)
        if min(len(row_M), len(row_N)) >= FEWEST:
            real = Reference(real_MF[row_M.to(real_MF.device)], reference.device)
            found[shape_name(shape)] = FeaturePair(fake_NF[row_N], real)
        else:
            left_out.append(shape_name(shape))
    return found, left_out


def shape_name(shape: Shape) -> str:
    """Return the name of a shape in results: width x height."""
    return f"{shape[1]}x{shape[0]}"


def _with_parts(measured: Measured, more: Mapping[str, float]) -> Measured:
    return replace(measured, parts={**measured.parts, **more}) if more else measured


def _text_features(encoder: TextImageEncoder, fake_NF: Tensor, samples: Samples) -> TextFeatures:
    rows = {prompt: row for row, prompt in enumerate(dict.fromkeys(samples.prompts))}
    file, per_prompt = samples.sampling.prompt_file, samples.sampling.per_prompt
    groups = {group: repeat(labels, per_prompt) for group, labels in (file.groups if file else {}).items()}
    text_PF = encoder.encode_text(list(rows)).cpu()
    return TextFeatures(fake_NF, text_PF, [rows[prompt] for prompt in samples.prompts], groups)


def _score_scenes(
    card: Scorecard, parts: Model, scored: ScoredData, protocol: Protocol, samples: Samples, previews: int
) -> None:
    kind = samples.sampling.prompts
    reading = _read(samples.blocks(READ_TOGETHER), samples.read, parts.device)
    real = _read_real(scored, protocol, len(samples), parts.device)
    if reading is None or real is None:
        return
    scenes = [record.attributes for record in held_out(scored, protocol).records(range(len(samples)))]
    read = ReadScenes(reading, real, scenes, "long" if kind == "long" else "short", scored.data.size_px)
    for metric in SCENE_METRICS[kind]:
        name = samples.sampling.metric(metric.name)
        of_real = metric.measure(replace(read, reading=real))
        card.measured[name], card.real[name] = metric.measure(read), {**of_real.parts, "overall": of_real.value}
    if previews:
        card.misread = misread_words(read, samples.prompts[:previews])


@lru_cache(maxsize=8)
def _read_real(scored: ScoredData, protocol: Protocol, count: int, device: torch.device) -> SceneReading | None:
    """Return the scene encoder's readings of the real images that belong to the prompts."""
    source = held_out(scored, protocol)
    return _read(spans(0, count, READ_TOGETHER), lambda first, last: source.images(range(first, last)), device)


def _read(
    blocks: Sequence[tuple[int, int]], images: Callable[[int, int], Tensor], device: torch.device
) -> SceneReading | None:
    """Read all images in blocks, so that not all of them must fit into memory. The first rank has the result."""

    def read(block: tuple[int, int]) -> dict[str, Tensor]:
        reading = scene_features(device).read(images(*block))
        return {_FEATURE: reading.feature_BF, **reading.logits}

    found = current().share_named(blocks, read)
    return None if found is None else SceneReading(found.pop(_FEATURE), found)


def _score_held_out(card: Scorecard, parts: Model, scored: ScoredData, protocol: Protocol) -> None:
    source = held_out(scored, protocol)
    batches = validation.batches_of_one_shape(source, protocol.validation_count, protocol.sampler.batch)
    error_NT = current().share(
        batches, lambda ids: validation.batch_errors(parts, source, ids, protocol.seed, protocol.prompts).T
    )
    if error_NT is not None:
        error_TN = error_NT.T.contiguous()
        rows = rows_by_shape(source, protocol.validation_count)
        for metric in HELD_OUT_METRICS:
            by_shape = {shape_name(shape): metric.measure(error_TN[:, row_N]).value for shape, row_N in rows.items()}
            card.measured[metric.name] = _with_parts(metric.measure(error_TN), by_shape)


def _duplicates(samples: Samples) -> list[str]:
    """Warn about images with equal pixels.

    Either noise was repeated, or the model maps different noises or prompts to one image. Sampling errors still treat
    these images as independent, since each image had its own noise.
    """
    different = {digest(image) for shard in samples.shards() for image in shard}
    copies = len(samples) - len(different)
    if not copies:
        return []
    return [
        f"{copies:,} of {len(samples):,} images ({samples.sampling.words}) are exact copies of another: "
        f"the model gives {len(different):,} different images"
    ]
