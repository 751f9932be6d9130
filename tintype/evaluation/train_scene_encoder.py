"""Train the packaged scene encoder, and write its weights with a record of its training and accuracy.

Images are drawn during training, and no image is used twice. Accuracy is measured on scenes with another seed.

B: images. C: channels. H, W: rows, columns. P: positions. K: classes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import Field
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from tintype import rng
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import OBJECT_VOCABULARY, SCENE_VOCABULARY, STYLES, SceneBatch, Style, draw_batch
from tintype.optim.adamw import AdamWSettings
from tintype.runtime.files import write_bytes
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.settings import Settings
from tintype.train.folder import RunFolder
from tintype.train.simple import SimpleTraining, claim_folder
from tintype.train.start import resume
from tintype.train.state import TrainState
from tintype.train.steps import Cadence, Progress, run_steps
from tintype.vision.scene_encoder import RECORD_PATH, WEIGHTS_PATH, SceneEncoder, SceneReading
from tintype.wording import option

TRAIN_SIZES_PX = (16, 20, 24, 32, 40, 48, 64, 64, 96, 128)
MEASURED_SIZES_PX = (16, 24, 32, 48, 64, 128)

_LEARNING_RATE, _WEIGHT_DECAY, _WARMUP_STEPS = 2e-3, 1e-2, 200
_NOISE_LEVELS = 5.0  # largest noise that is added in training, in levels of 255
_MEASURE_BATCH = 256

Accuracy = dict[str, dict[str, dict[str, float]]]


class SceneEncoderTraining(Settings):
    """Settings of the encoder's training, and how often the encoder is saved and logged."""

    seed: int = Field(0, ge=0)
    steps: int = Field(8000, ge=1)
    batch: int = Field(512, ge=1)
    measured_scenes: int = Field(
        4096, ge=1, description="Number of scenes of each size and style on which accuracy is measured"
    )
    save_every_steps: int = Field(500, ge=1)
    log_every_steps: int = Field(10, ge=1)


@dataclass(frozen=True)
class TrainedEncoder:
    """The content of the JSON file next to the weights."""

    sha256: str
    command: str
    seed: int
    steps: int
    batch: int
    torch: str
    measured_scenes: int
    accuracy: Accuracy


@dataclass(frozen=True)
class Outcome:
    """Result of the training. `record` is None if a signal stopped the training."""

    step: int
    record: TrainedEncoder | None


def train(
    settings: SceneEncoderTraining,
    out: Path,
    device: str,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Train the encoder or resume its training, measure it, and write `scene_encoder.safetensors` and `.json`."""
    folder = RunFolder(out)
    with locked(out):
        claim_folder(folder, settings, free=("save_every_steps", "log_every_steps"))
        encoder = _new_encoder(settings.seed, device)
        state = _new_state(encoder)
        resume(folder, state)
        training = SimpleTraining(
            folder,
            state,
            Cadence(settings.steps, settings.log_every_steps, settings.save_every_steps),
            interrupt,
            batch=settings.batch,
            losses=lambda: {"loss": _loss(encoder, settings.seed, state.step, settings.batch, device)},
            lr_at=lambda step: _LEARNING_RATE * _schedule(step, settings.steps),
            remedy=f"train with another {option('seed')}",
        )
        run_steps(training, on_progress)
        if state.step < settings.steps:
            return Outcome(state.step, None)
        return Outcome(state.step, _finish(out, settings, encoder, device))


def _new_state(encoder: SceneEncoder) -> TrainState:
    modules = nn.ModuleDict({"encoder": encoder})
    adamw = AdamWSettings(lr=_LEARNING_RATE, beta2=0.999, eps=1e-8, weight_decay=_WEIGHT_DECAY)
    return TrainState(modules, adamw.build(modules.named_parameters()), None)


def _finish(out: Path, settings: SceneEncoderTraining, encoder: SceneEncoder, device: str) -> TrainedEncoder:
    stored = {name: _stored(value) for name, value in encoder.state_dict().items()}
    encoder.load_state_dict({name: value.to(torch.float32) for name, value in stored.items()})
    seed, steps, batch, scenes = settings.seed, settings.steps, settings.batch, settings.measured_scenes
    accuracy = measure(encoder, seed + 1, scenes, device)
    command = f"tintype encoder train --out DIR --seed {seed} --steps {steps} --batch {batch} --device {device}"
    weights = save(stored)
    digest = hashlib.sha256(weights).hexdigest()
    record = TrainedEncoder(digest, command, seed, steps, batch, str(torch.__version__), scenes, accuracy)
    write_bytes(out / WEIGHTS_PATH.name, weights)
    write_bytes(out / RECORD_PATH.name, (json.dumps(asdict(record), indent=2) + "\n").encode())
    return record


def _new_encoder(seed: int, device: str) -> SceneEncoder:
    with torch.random.fork_rng(devices=[]):  # torch's initialisers can only use the global generator
        torch.manual_seed(seed)
        encoder = SceneEncoder()
    return encoder.to(device).train()


def _schedule(step: int, steps: int) -> float:
    """Return the factor of the learning rate. Its schedule is a linear warm-up, then half a cosine down to zero."""
    warm = min(1.0, (step + 1) / _WARMUP_STEPS)
    return warm * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def _loss(encoder: SceneEncoder, seed: int, step: int, batch: int, device: str) -> Tensor:
    index_B = torch.arange(step * batch, (step + 1) * batch, device=device)
    scenes = draw_batch(seed, index_B)
    size_choice = rng.integers(seed, "encoder/size", torch.tensor([step]), len(TRAIN_SIZES_PX))
    image_BCHW = render(scenes, TRAIN_SIZES_PX[int(size_choice)], seed, index_B, device)
    return reading_loss(encoder(_with_noise(image_BCHW, seed, index_B)), scenes)


def _with_noise(image_BCHW: Tensor, seed: int, index_B: Tensor) -> Tensor:
    """Add light noise of random strength to each image, so that small flaws of an image do not mislead the encoder."""
    level_B = _NOISE_LEVELS * rng.uniform(seed, "encoder/noise level", index_B)
    noise_BCHW = rng.normal(seed, "encoder/noise", index_B, tuple(image_BCHW.shape[1:]))
    noisy_BCHW = image_BCHW + noise_BCHW * level_B[:, None, None, None]
    return noisy_BCHW.round().clamp(0, 255).to(torch.uint8)


def _targets(scenes: SceneBatch) -> dict[str, Tensor]:
    """Return the class index of every attribute, by the attribute's name in a reading."""
    objects = {name: vars(scenes)[f"{name}_BP"] for name in OBJECT_VOCABULARY}
    return {**objects, **{name: vars(scenes)[f"{name}_B"] for name in SCENE_VOCABULARY}}


def reading_loss(reading: SceneReading, scenes: SceneBatch) -> Tensor:
    """Return the sum of all cross entropies. An object's attributes only count at positions with an object."""
    targets, logits = _targets(scenes), reading.logits
    loss = binary_cross_entropy_with_logits(logits["presence"], scenes.present_BP.to(torch.float32))
    for name in OBJECT_VOCABULARY:
        loss = loss + cross_entropy(logits[name][scenes.present_BP], targets[name][scenes.present_BP])
    for name in SCENE_VOCABULARY:
        loss = loss + cross_entropy(logits[name], targets[name])
    return loss


@torch.no_grad()
def measure(encoder: SceneEncoder, seed: int, scenes: int, device: str) -> Accuracy:
    """Return the accuracy for each size, style and attribute, and the mean of these accuracies as "overall"."""
    encoder.eval()
    return {
        str(size_px): {style: _measure_one(encoder, seed, scenes, size_px, style, device) for style in STYLES}
        for size_px in MEASURED_SIZES_PX
    }


def _measure_one(
    encoder: SceneEncoder, seed: int, scenes: int, size_px: int, style: Style, device: str
) -> dict[str, float]:
    right: dict[str, list[Tensor]] = {}
    for start in range(0, scenes, _MEASURE_BATCH):
        index_B = torch.arange(start, min(scenes, start + _MEASURE_BATCH), device=device)
        drawn = draw_batch(seed, index_B, "eval", style)
        reading = encoder(render(drawn, size_px, seed, index_B, device))
        for name, answer in _right_answers(reading, drawn):
            right.setdefault(name, []).append(answer.to(torch.float32))
    accuracy = {name: round(torch.cat(answers).mean().item(), 5) for name, answers in right.items()}
    return {**accuracy, "overall": round(sum(accuracy.values()) / len(accuracy), 5)}


def _right_answers(reading: SceneReading, scenes: SceneBatch) -> Iterator[tuple[str, Tensor]]:
    targets, read_BP = _targets(scenes), reading.logits["presence"] > 0
    yield "presence", (read_BP == scenes.present_BP).flatten()
    yield "count", read_BP.sum(dim=1) == scenes.present_BP.sum(dim=1)
    for name in OBJECT_VOCABULARY:
        yield name, (reading.logits[name].argmax(dim=-1) == targets[name])[scenes.present_BP]
    for name in SCENE_VOCABULARY:
        yield name, reading.logits[name].argmax(dim=-1) == targets[name]


def _stored(value: Tensor) -> Tensor:
    return value.detach().to("cpu", torch.float16 if value.is_floating_point() else value.dtype).contiguous()
