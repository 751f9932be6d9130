"""The user's protocol for an evaluation, which consists of samplings, metrics, and their settings."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tintype.evaluation.prompts import PromptFile, is_caption, read_prompts
from tintype.flow.guidance import Guidance
from tintype.flow.sampler import Method
from tintype.metrics.metric import AnyMetric, Measured
from tintype.metrics.table import (
    FEATURE_METRICS,
    HELD_OUT_METRICS,
    LOG_METRICS,
    ON_FEATURES,
    SCENE_METRICS,
    TEXT_METRICS,
    TRAINING_METRICS,
    revisions,
)
from tintype.plugins.load import added
from tintype.plugins.registry import is_built_in
from tintype.sampling.generate import SamplerSettings
from tintype.seams import Direction, Range
from tintype.settings import Named, NamesFile, Settings, chosen
from tintype.vision.encoders import EncoderChoice
from tintype.vision.inception import InceptionSettings
from tintype.vision.part import EncoderPart
from tintype.vision.scene_encoder import SceneEncoderSettings, scene_encoder_record

MetricKind = Annotated[str, Field(description="One of " + ", ".join(ON_FEATURES.built_in))]
FEWEST = 8
"""Minimum number of images for a distance. With fewer images, nearest neighbours or subsets would not exist."""
DEFAULT_METRICS = ("fd", "kid", "mmd", "precision", "recall")


class Condition(Settings):
    """An additional sampling of the model. Missing settings are those of the main sampling.

    A guidance is given as a whole, so its missing settings get their defaults.
    """

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]*$", description="Name of this sampling, appended to the names of its metrics"
    )
    prompts: Annotated[str, NamesFile(is_caption)] = Field(
        "long", min_length=1, description="Name of a caption column, or path of a prompt file (.txt, .jsonl, .tsv)"
    )
    count: int | None = Field(
        None, ge=2, description="Number of images; by default that of the main sampling, or of the prompts in the file"
    )
    per_prompt: int = Field(1, ge=1, description="Number of images for each prompt of a prompt file")
    method: Method | None = Field(None, description="Integrator; by default that of the main sampling")
    steps: int | None = Field(None, ge=1, description="Sampling steps; by default those of the main sampling")
    guidance: Guidance | None = Field(None, description="Guidance; by default that of the main sampling")
    distances: bool = Field(
        True, description="Compute distances to the reference for these images too; prompt files never have distances"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Condition:
        if is_caption(self.prompts):
            if self.per_prompt != 1:
                raise ValueError("per_prompt applies only to a prompt file; each caption of the data is used once")
        elif self.count is not None:
            raise ValueError("count applies only to captions of the data; every prompt of a prompt file is used")
        return self


class MemorisationSettings(Settings):
    """Settings of the metrics `memorised` and `memorised_own`, which sample captions of training and unseen images."""

    prompts: Annotated[str, NamesFile(is_caption)] | None = Field(
        None,
        min_length=1,
        description="Name of a caption column, or path of a file with captions of training images. By default "
        "the protocol's prompts if training reads them, else a caption column that training reads",
    )
    captions: int = Field(
        128,
        ge=2,
        description="Number of training captions and of unseen captions at each guidance scale; a file is used whole",
    )
    guidance: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (1.0, 3.0, 7.0),
        min_length=1,
        description="Guidance scales to test; the other settings are those of the main sampling",
    )

    def problems(self) -> Iterator[str]:
        if len(set(self.guidance)) < len(self.guidance):
            yield "guidance: a scale is given twice"

    @property
    def prompt_file(self) -> PromptFile | None:
        """Return the prompt file; None if prompts are captions of the data."""
        return None if self.prompts is None or is_caption(self.prompts) else read_prompts(Path(self.prompts))


class Protocol(Named):
    """Settings by which every arm is scored. All arms get the same prompts, noises and reference.

    The defaults are for scenes. On a store, `fit.fit_protocol` replaces each setting that was not given.
    """

    prompts: str = Field(
        "long", min_length=1, description="Caption column that the main sampling and the validation loss read"
    )
    count: int = Field(512, ge=2, description="Number of images of the main sampling")
    also: tuple[Condition, ...] = Field(
        (Condition(name="short", prompts="short", count=256, distances=False),),
        description="Further samplings with other prompts, guidance or steps",
    )
    reference_count: int = Field(2048, ge=2, description="Number of real held-out images for the distances")
    validation_count: int = Field(128, ge=1, description="Number of real held-out images for the validation loss")
    training_count: int = Field(
        10_000,
        ge=2,
        description="Number of training images in which `memorised` searches for copies; at most as many as "
        "unseen images",
    )
    memorisation: MemorisationSettings = Field(
        MemorisationSettings(),
        description="Prompts for the metric `memorised`, which searches for copies of training images",
    )
    shapes: Literal["square", "buckets"] = Field(
        "square",
        description="square: held-out images and samples are squares of data.size_px. buckets: they have the "
        "shapes of data.buckets, and each sample has the shape of its caption's image; distances and "
        "validation loss are also given per shape",
    )
    size: Literal["data", "stage"] = Field(
        "data",
        description="Size of held-out images and samples, either data.size_px at every step (data), or that of "
        "the training stage that last trained the weights (stage). Scores at different sizes are never compared",
    )
    seed: int = Field(0, ge=0, description="Seed of the sampling noise, independent of the training seed")
    encoders: tuple[EncoderChoice, ...] = Field((SceneEncoderSettings(),), description="Encoders for the distances")
    metrics: tuple[MetricKind, ...] = Field(
        DEFAULT_METRICS, description="Metrics computed from each encoder's features"
    )
    sampler: SamplerSettings = Field(SamplerSettings(), description="Settings of the main sampling")

    @model_validator(mode="after")
    def _known(self) -> Protocol:
        refuse_unknown(self.metrics, self.encoders, ON_FEATURES)
        _refuse_twice("also", "conditions", [condition.name for condition in self.also])
        if not is_caption(self.prompts):
            raise ValueError(
                f"prompts: {self.prompts} is a file, but the main sampling needs captions of the data, which "
                f"have real images to compare with. Put the file into `also`"
            )
        for index, condition in enumerate(self.conditions):
            key = f"also.{index - 1}" if index else "count"
            if not is_caption(condition.prompts) and not any(encoder.reads_text for encoder in self.encoders):
                raise ValueError(
                    f"{key}: the prompts of {condition.prompts} have no reference images, so their scores need "
                    f"an encoder that reads text, for example encoders: [scenes, clip]"
                )
            few = condition.count is not None and condition.count < FEWEST
            if self.encoders and condition.distances and few:
                raise ValueError(
                    f"{key}: {condition.count} images are too few for the distances: take at least {FEWEST}"
                )
        if self.encoders and self.reference_count < FEWEST:
            raise ValueError(f"reference_count: {self.reference_count} images are too few: take at least {FEWEST}")
        return self

    @property
    def conditions(self) -> tuple[Sampling, ...]:
        """Return the main sampling, which is named "", then the additional samplings. All defaults are filled in."""
        main = Sampling("", self.prompts, self.count, 1, self.sampler, True)
        return (main, *(self._resolve(condition) for condition in self.also))

    def _resolve(self, condition: Condition) -> Sampling:
        own = {key: value for key in ("method", "steps", "guidance") if (value := getattr(condition, key)) is not None}
        of_file = not is_caption(condition.prompts)
        return Sampling(
            condition.name,
            condition.prompts,
            None if of_file else condition.count or self.count,
            condition.per_prompt,
            self.sampler.model_copy(update=own),
            condition.distances and not of_file,
        )

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Return the parts in the protocol that plugins can provide, as pairs of group and name."""
        samplers = [sampling.sampler for sampling in self.conditions]
        return [
            *(("metrics", name) for name in self.metrics),
            *(("samplers", name) for name in dict.fromkeys(one.method for one in samplers)),
            *(("guidances", kind) for kind in dict.fromkeys(one.guidance.kind for one in samplers)),
        ]

    @property
    def reads_training_images(self) -> bool:
        return bool(self.encoders and self.training_metrics)

    @property
    def training_metrics(self) -> list[str]:
        return [kind for kind in self.metrics if kind in TRAINING_METRICS]

    @property
    def shaped(self) -> bool:
        """Return whether held-out images and samples have the shapes of the data's buckets."""
        return self.shapes == "buckets"

    @property
    def staged(self) -> bool:
        """Return whether held-out images and samples have the image size of the stage that trained the weights."""
        return self.size == "stage"

    @property
    def held_out_count(self) -> int:
        """Return the number of held-out images that the protocol needs."""
        return max(self.reference_count, self.validation_count, *(sampling.count or 0 for sampling in self.conditions))

    def encoders_of(self, sampling: Sampling) -> list[EncoderPart]:
        """Return the encoders that read the images of a sampling."""
        return [encoder for encoder in self.encoders if sampling.distances or encoder.reads_text]

    def with_prompts_in(self, folder: Path) -> Protocol:
        """Return the protocol with the relative paths of prompt files resolved against a folder."""
        return self.with_prompts(lambda prompts: str(folder / prompts))

    @property
    def prompt_files(self) -> list[str]:
        named = [self.memorisation.prompts] if self.reads_training_images else []
        named += [condition.prompts for condition in self.also]
        return [prompts for prompts in named if prompts is not None and not is_caption(prompts)]

    def with_prompts(self, moved: Callable[[str], str]) -> Protocol:
        files = {prompts: {"prompts": moved(prompts)} for prompts in self.prompt_files}
        if not files:
            return self
        also = tuple(one.model_copy(update=files.get(one.prompts)) for one in self.also)
        memorisation = self.memorisation.model_copy(update=files.get(self.memorisation.prompts or ""))
        return self.model_copy(update={"also": also, "memorisation": memorisation})

    def compute_hash(self) -> str:
        """Return a hash of everything that decides the scores, even the packaged encoder and the prompts' content."""
        content = {**chosen(self), "scene_encoder": scene_encoder_record()["sha256"]}
        content["sampler"] = {key: value for key, value in chosen(self.sampler).items() if key != "batch"}
        if not self.reads_training_images:
            for name in ("training_count", "memorisation"):
                content.pop(name, None)
        elif file := self.memorisation.prompt_file:
            content["memorisation"]["prompts"] = file.sha256
        others = [(group, name) for group, name in self.parts if not is_built_in(group, name)]
        if others:
            content["plugins"] = {
                name if group == "metrics" else f"{group}/{name}": added(group)[name].plugin.sha256
                for group, name in others
            }
        if changed := revisions(self.metrics, self.reference_count, [one.prompts for one in self.conditions]):
            content["revisions"] = changed
        content["also"] = [  # the hash of a file's content, not its path
            {**chosen(condition), "prompts": sampling.prompts_sha256}
            for condition, sampling in zip(self.also, self.conditions[1:], strict=True)
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


class ImageProtocol(Settings):
    """Settings of a comparison of two sets of images."""

    encoders: tuple[EncoderChoice, ...] = Field((InceptionSettings(),), min_length=1)
    metrics: tuple[MetricKind, ...] = Field(tuple(FEATURE_METRICS.built_in), min_length=1)
    limit: int | None = Field(
        None, ge=2, description="Number of images to use of each set, counted from the first; null: all"
    )
    paired: bool = Field(
        False, description="Image i is a reconstruction of reference image i; adds PSNR, SSIM and LPIPS"
    )

    @model_validator(mode="after")
    def _known(self) -> ImageProtocol:
        refuse_unknown(self.metrics, self.encoders, FEATURE_METRICS)
        return self


@dataclass(frozen=True)
class Sampling:
    """A sampling with all defaults filled in. `count` is None if a prompt file determines the number of images."""

    name: str
    prompts: str
    count: int | None
    per_prompt: int
    sampler: SamplerSettings
    distances: bool

    @property
    def prompt_file(self) -> PromptFile | None:
        return None if is_caption(self.prompts) else read_prompts(Path(self.prompts))

    @property
    def prompts_sha256(self) -> str:
        """Return the hash of the prompt file's content, or the caption column if there is no prompt file."""
        return file.sha256 if (file := self.prompt_file) else self.prompts

    def metric(self, name: str) -> str:
        return f"{name}_{self.name}" if self.name else name

    @property
    def words(self) -> str:
        """Return a description of the sampling, for the definitions of its metrics."""
        prompts = (
            f"{self.prompts} captions" if is_caption(self.prompts) else f"the prompts of {Path(self.prompts).name}"
        )
        return f"{prompts}, {self.sampler.method}, {self.sampler.steps} steps, {self.sampler.guidance.words}"


@dataclass(frozen=True)
class Definition:
    """A metric of one sampling, with the encoder whose features it needs, if any."""

    metric: AnyMetric
    label: str
    definition: str
    sampling: Sampling | None = None
    """The sampling; None if the metric needs no generated images."""
    count: int | None = None
    """Number of generated images; None if a prompt file determines it, or if the metric needs no generated images."""

    @property
    def direction(self) -> Direction:
        return self.metric.direction

    @property
    def range(self) -> Range:
        return self.metric.range


def metric_label(metric: AnyMetric, encoder: EncoderPart) -> str:
    """Return the metric's published name if its definition is the published one, else the metric and the encoder."""
    published = encoder.published.get(metric.name)
    if published and encoder.name is None:
        return published
    return f"{published or metric.label} ({encoder.title})"


def definitions(protocol: Protocol, of_scenes: bool = True) -> dict[str, Definition]:
    """Return the definition of each metric of an evaluation by name, the most important metric first.

    `of_scenes`: the scene encoder can read the images. An encoder's preprocessing is known only after loading, so it is
    recorded in the result.
    """
    found: dict[str, Definition] = {}
    for sampling in protocol.conditions:
        for metric, encoder in _on_samples(protocol, sampling, of_scenes):
            name = f"{metric.name}_{encoder.title}" if encoder else metric.name
            label = metric_label(metric, encoder) if encoder else metric.label
            features = f" Features: {encoder.title}." if encoder and metric.name in ON_FEATURES else ""
            found[sampling.metric(name)] = Definition(
                metric,
                f"{label}, {sampling.name}" if sampling.name else label,
                f"{metric.define(sampling.prompts)}.{features} Sampling: {sampling.words}.",
                sampling,
                sampling.count,
            )
    for encoder in protocol.encoders:
        for kind in protocol.training_metrics:
            of_training = TRAINING_METRICS[kind]
            text = f"{of_training.definition}. Features: {encoder.title}. {_asked_words(protocol)}"
            label = metric_label(of_training, encoder)
            found[f"{kind}_{encoder.title}"] = Definition(of_training, label, text)
    for one in HELD_OUT_METRICS:
        text = one.define(protocol.prompts)
        found[one.name] = Definition(one, one.label, text, count=protocol.validation_count)
    for of_log in LOG_METRICS:
        found[of_log.name] = Definition(of_log, of_log.label, of_log.definition)
    return found


def _on_samples(
    protocol: Protocol, sampling: Sampling, of_scenes: bool
) -> Iterator[tuple[AnyMetric, EncoderPart | None]]:
    """Yield the metrics of a sampling's images, each with the encoder whose features it needs."""
    if of_scenes:
        yield from ((metric, None) for metric in SCENE_METRICS.get(sampling.prompts, ()))
    yield from ((metric, encoder) for encoder in protocol.encoders if encoder.reads_text for metric in TEXT_METRICS)
    if sampling.distances:
        kinds = [kind for kind in protocol.metrics if kind not in TRAINING_METRICS]
        yield from ((ON_FEATURES[kind], encoder) for encoder in protocol.encoders for kind in kinds)


def _asked_words(protocol: Protocol) -> str:
    asked, file = protocol.memorisation, protocol.memorisation.prompt_file
    captions = f"the captions of {Path(asked.prompts or '').name}" if file else f"{asked.captions} training captions"
    scales = ", ".join(f"{scale:g}" for scale in asked.guidance)
    return f"Sampling: {captions} and as many unseen ones at guidance {scales}, each caption counted once."


def warnings_of(measured: Mapping[str, Measured], meanings: Mapping[str, Definition]) -> list[str]:
    """Return each warning once, preceded by the labels of the metrics that it concerns."""
    about: dict[str, list[str]] = {}
    for name, one in measured.items():
        for text in one.warnings:
            about.setdefault(text, []).append(meanings[name].label)
    return [f"{', '.join(labels)}: {text}" for text, labels in about.items()]


def nonfinite(measured: Mapping[str, Measured]) -> list[str]:
    return [name for name, one in measured.items() if not math.isfinite(one.value)]


def refuse_unknown(metrics: Sequence[str], encoders: Sequence[EncoderPart], known: Mapping[str, AnyMetric]) -> None:
    for kind in metrics:
        if kind not in known:
            raise ValueError(f"metrics: unknown metric '{kind}'; valid: {', '.join(known)}")
    _refuse_twice("encoders", "encoders", [encoder.title for encoder in encoders])


def _refuse_twice(key: str, what: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"{key}.{index}: two {what} have the name {name}; rename one of them")
