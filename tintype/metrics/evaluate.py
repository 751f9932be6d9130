"""Scores a run by a protocol: fixed prompts, one noise per image, the same for every arm.

N: generated images, M: real images, F: size of a feature vector.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from safetensors.torch import save_file
from torch import Tensor

from tintype.data.scenes.source import SceneSource, scene_source
from tintype.errors import UserError
from tintype.generate import SamplerSettings, generate
from tintype.images import save_png
from tintype.metrics import scene_accuracy, throughput, validation
from tintype.metrics.frechet import FrechetDistance
from tintype.metrics.mmd import GaussianMMD, KernelDistance
from tintype.metrics.precision_recall import NEIGHBOURS, Precision, Recall
from tintype.seams import Direction, Metric
from tintype.settings import DataSettings, Settings, plain
from tintype.train import checkpoint
from tintype.train.folder import RunFolder, write_json
from tintype.train.load import load_run
from tintype.train.parts import Parts
from tintype.vision.encoders import ENCODERS, scene_features
from tintype.vision.scene_encoder import scene_encoder_record

PromptKind = Literal["long", "short"]
PREVIEWS = 8


class Protocol(Settings):
    """How every arm is scored. Each prompt kind is sampled for itself; distances are taken on the long prompts."""

    count: int = Field(512, ge=2, description="Images generated from long prompts")
    short_count: int = Field(256, ge=0, description="Images generated from short prompts, for scene accuracy only")
    reference_count: int = Field(2048, ge=2, description="Real held-out images for the distances")
    validation_count: int = Field(128, ge=1, description="Real held-out images for the validation loss")
    seed: int = Field(0, ge=0, description="Seeds the noise; apart from the seed of training")
    encoders: tuple[str, ...] = ("scenes",)
    sampler: SamplerSettings = SamplerSettings()

    @model_validator(mode="after")
    def _known(self) -> Protocol:
        for name in self.encoders:
            if name not in ENCODERS:
                raise ValueError(f"unknown encoder '{name}'; valid: {', '.join(ENCODERS)}")
        if min(self.count, self.reference_count) <= NEIGHBOURS:
            raise ValueError(f"count and reference_count must be above {NEIGHBOURS}")
        return self

    @property
    def hash(self) -> str:
        """Names the evaluation: the protocol, and the weights that read the pictures."""
        text = json.dumps({**plain(self), "scene_encoder": scene_encoder_record()["sha256"]}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Definition:
    label: str
    direction: Direction
    definition: str


def feature_metrics(encoder: str) -> list[Metric]:
    return [
        FrechetDistance(f"fd_{encoder}"),
        KernelDistance(f"kid_{encoder}"),
        GaussianMMD(f"mmd_{encoder}"),
        Precision(f"precision_{encoder}"),
        Recall(f"recall_{encoder}"),
    ]


_LABELS = {"fd": "Fréchet distance", "kid": "KID", "mmd": "MMD", "precision": "precision", "recall": "recall"}


def definitions(protocol: Protocol) -> dict[str, Definition]:
    """Name, direction and exact meaning of each number that an evaluation gives, the most important first."""
    found = {
        "scene_accuracy": Definition("scene accuracy", "higher", scene_accuracy.definition("long")),
    }
    for encoder in protocol.encoders:
        on = f" Features: {ENCODERS[encoder](torch.device('cpu')).definition}."
        for metric in feature_metrics(encoder):
            kind = metric.name.removesuffix(f"_{encoder}")
            label = f"{_LABELS[kind]} ({encoder})"
            found[metric.name] = Definition(label, metric.direction, metric.definition + "." + on)
    if protocol.short_count:
        text = scene_accuracy.definition("short")
        found["scene_accuracy_short"] = Definition("scene accuracy, short prompts", "higher", text)
    found["validation_loss"] = Definition("validation loss", "lower", validation.DEFINITION)
    found["images_per_s"] = Definition("training images/s", "higher", throughput.DEFINITION)
    return found


def evaluate(
    path: Path,
    protocol: Protocol,
    on_step: Callable[[int, int], None] = lambda done, total: None,
    device: str | None = None,
) -> dict[str, Any]:
    """The evaluation of a run's newest checkpoint; done once for each protocol and step, and kept in the run's folder.

    `on_step` is told how many of the sampler's image-steps are done.
    """
    whole = checkpoint.newest_whole_step(RunFolder(path).checkpoints)
    if whole is not None and (stored := result_file(path, protocol, whole)).exists():
        result: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8"))
        return result
    parts, step = load_run(path, device)
    stored = result_file(path, protocol, step)
    folder = stored.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from None
    began = time.perf_counter()
    images = _sample(parts, protocol, on_step)
    metrics, details = _score(parts, protocol, images)
    bad = [name for name, value in metrics.items() if not math.isfinite(value)]
    if bad:
        raise UserError(f"{path}: {', '.join(bad)} came out as no finite number; the model has diverged")
    lines = RunFolder(path).metrics()
    if lines:
        metrics["images_per_s"] = throughput.images_per_s(lines)
    result = {
        "step": step,
        "weights": "average" if parts.plan.ema else "raw",
        "protocol": plain(protocol),
        "metrics": metrics,
        "details": details,
        "reference": real_accuracy(parts.plan.data, protocol),
        "time_split": throughput.time_split(lines) if lines else {},
        "seconds": time.perf_counter() - began,
    }
    save_file({kind: tensor.contiguous() for kind, tensor in images.items()}, folder / "samples.safetensors")
    result["previews"] = _save_previews(images["long"], folder)
    write_json(stored, result)
    return result


def result_file(path: Path, protocol: Protocol, step: int) -> Path:
    return path / "evaluation" / f"{protocol.hash}-step-{step:09d}" / "result.json"


def _sample(parts: Parts, protocol: Protocol, on_step: Callable[[int, int], None]) -> dict[str, Tensor]:
    counts: dict[PromptKind, int] = {"long": protocol.count, "short": protocol.short_count}
    total, done = sum(counts.values()) * protocol.sampler.steps, 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        on_step(done, total)

    return {
        kind: generate(
            parts,
            prompts(parts.plan.data, protocol, kind, count),
            protocol.sampler,
            seed=protocol.seed,
            size_px=parts.plan.data.size_px,
            on_step=advance,
        )
        for kind, count in counts.items()
        if count
    }


def _score(
    parts: Parts, protocol: Protocol, images: dict[str, Tensor]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    data, size_px = parts.plan.data, parts.plan.data.size_px
    metrics: dict[str, float] = {}
    details: dict[str, dict[str, float]] = {}
    for name in protocol.encoders:
        fake_NF = ENCODERS[name](parts.device).features(images["long"])
        real_MF = _reference_features(data, protocol.reference_count, name, parts.device)
        for metric in feature_metrics(name):
            metrics[metric.name] = metric(fake_NF, real_MF)
    source = evaluation_source(data, protocol)
    accuracies: dict[PromptKind, str] = {"long": "scene_accuracy", "short": "scene_accuracy_short"}
    for kind, name in accuracies.items():
        if kind in images:
            reading = scene_features(parts.device).read(images[kind])
            scenes = [record.attributes for record in source.records(range(len(images[kind])))]
            scores = scene_accuracy.score(reading, scenes, kind, size_px)
            metrics[name] = scores.pop("overall")
            details[name] = scores
    loss, at_time = validation.validation_loss(
        parts, source, protocol.validation_count, protocol.sampler.batch, protocol.seed
    )
    metrics["validation_loss"] = loss
    details["validation_loss"] = {f"t={t:g}": value for t, value in zip(validation.TIMES, at_time, strict=True)}
    return metrics, details


def evaluation_source(data: DataSettings, protocol: Protocol) -> SceneSource:
    """Held-out scenes: the first are the prompts, all are the reference."""
    count = max(protocol.count, protocol.short_count, protocol.reference_count, protocol.validation_count)
    return scene_source(data.model_copy(update={"count": count}), "eval", torch.device("cpu"))


def prompts(data: DataSettings, protocol: Protocol, kind: PromptKind, count: int) -> list[str]:
    return [record.captions[kind] for record in evaluation_source(data, protocol).records(range(count))]


@lru_cache(maxsize=8)
def real_accuracy(data: DataSettings, protocol: Protocol) -> dict[str, dict[str, float]]:
    """The encoder's own score on the real images of the prompts: what a perfect model would get."""
    source = evaluation_source(data, protocol)
    reading = scene_features(torch.device("cpu")).read(source.images(range(protocol.count)))
    scenes = [record.attributes for record in source.records(range(protocol.count))]
    found = {"scene_accuracy": scene_accuracy.score(reading, scenes, "long", data.size_px)}
    if protocol.short_count:
        found["scene_accuracy_short"] = scene_accuracy.score(reading, scenes, "short", data.size_px)
    return found


@lru_cache(maxsize=8)
def _reference_features(data: DataSettings, count: int, encoder: str, device: torch.device) -> Tensor:
    source = scene_source(data.model_copy(update={"count": count}), "eval", torch.device("cpu"))
    return ENCODERS[encoder](device).features(source.images(range(count)))


def _save_previews(images: Tensor, folder: Path) -> list[str]:
    names = [f"preview-{index}.png" for index in range(min(PREVIEWS, len(images)))]
    for name, image in zip(names, images, strict=False):
        save_png(image, folder / name)
    return [str((folder / name).relative_to(folder.parent.parent)) for name in names]
