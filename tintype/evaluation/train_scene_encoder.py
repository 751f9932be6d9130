"""Trains the packaged scene encoder and writes its weights with a record of how, and of how well it reads.

Pictures are drawn as training goes, so none is seen twice. Accuracy is measured on scenes of another seed.

B: pictures. C: channels. H, W: rows, columns. P: positions. K: classes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from tintype import rng
from tintype.data.scenes import OBJECT_VOCABULARY, SCENE_VOCABULARY, STYLES, SceneBatch, Style, draw_batch, render
from tintype.runtime.files import write_bytes
from tintype.vision.scene_encoder import RECORD_PATH, WEIGHTS_PATH, SceneEncoder, SceneReading

TRAIN_SIZES_PX = (16, 20, 24, 32, 40, 48, 64, 64, 96, 128)
MEASURED_SIZES_PX = (16, 24, 32, 48, 64, 128)

_LEARNING_RATE, _WEIGHT_DECAY, _WARMUP_STEPS = 2e-3, 1e-2, 200
_NOISE_LEVELS = 5.0  # of 255: the most noise that is added in training
_MEASURE_BATCH = 256

Progress = Callable[[int, float], None]
Accuracy = dict[str, dict[str, dict[str, float]]]


def train(
    out_dir: Path,
    seed: int,
    steps: int,
    batch: int,
    device: str,
    progress: Progress,
    measured_scenes: int = 4096,
) -> dict[str, Any]:
    """Trains, measures, and writes `scene_encoder.safetensors` and `.json`; `progress` gets each step and its loss.

    Returns the record that the JSON holds.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    encoder = _new_encoder(seed, device)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * _schedule(step, steps)
        loss = _train_step(encoder, optimizer, seed, step, batch, device)
        progress(step, loss)
    stored = {name: _stored(value) for name, value in encoder.state_dict().items()}
    encoder.load_state_dict({name: value.to(torch.float32) for name, value in stored.items()})
    accuracy = measure(encoder, seed + 1, measured_scenes, device)
    command = f"tintype encoder train --out DIR --seed {seed} --steps {steps} --batch {batch} --device {device}"
    record = {"command": command, "seed": seed, "steps": steps, "batch": batch, "torch": torch.__version__}
    return _write(out_dir, save(stored), {**record, "measured_scenes": measured_scenes, "accuracy": accuracy})


def _new_encoder(seed: int, device: str) -> SceneEncoder:
    with torch.random.fork_rng(devices=[]):  # torch's own initialisers know only the global generator
        torch.manual_seed(seed)
        encoder = SceneEncoder()
    return encoder.to(device).train()


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    warm = min(1.0, (step + 1) / _WARMUP_STEPS)
    return warm * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def _train_step(
    encoder: SceneEncoder, optimizer: torch.optim.Optimizer, seed: int, step: int, batch: int, device: str
) -> float:
    index_B = torch.arange(step * batch, (step + 1) * batch, device=device)
    scenes = draw_batch(seed, index_B)
    size_choice = rng.integers(seed, "encoder/size", torch.tensor([step]), len(TRAIN_SIZES_PX))
    image_BCHW = render(scenes, TRAIN_SIZES_PX[int(size_choice)], seed, index_B, device)
    loss = reading_loss(encoder(_with_noise(image_BCHW, seed, index_B)), scenes)
    optimizer.zero_grad()
    torch.autograd.backward([loss])
    optimizer.step()
    return loss.item()


def _with_noise(image_BCHW: Tensor, seed: int, index_B: Tensor) -> Tensor:
    """Light noise of a strength of its own on each picture, so that small flaws of generated ones do not mislead."""
    level_B = _NOISE_LEVELS * rng.uniform(seed, "encoder/noise level", index_B)
    noise_BCHW = rng.normal(seed, "encoder/noise", index_B, tuple(image_BCHW.shape[1:]))
    noisy_BCHW = image_BCHW + noise_BCHW * level_B[:, None, None, None]
    return noisy_BCHW.round().clamp(0, 255).to(torch.uint8)


def _targets(scenes: SceneBatch) -> dict[str, Tensor]:
    """The index of every attribute under the name that a reading gives it."""
    return {
        "shape": scenes.shape_BP,
        "colour": scenes.colour_BP,
        "size": scenes.size_BP,
        "texture": scenes.texture_BP,
        "sky": scenes.sky_B,
        "ground": scenes.ground_B,
        "light": scenes.light_B,
        "style": scenes.style_B,
    }


def reading_loss(reading: SceneReading, scenes: SceneBatch) -> Tensor:
    """The sum of all cross entropies; attributes of an object count only where one stands."""
    targets, logits = _targets(scenes), reading.logits
    loss = binary_cross_entropy_with_logits(logits["presence"], scenes.present_BP.to(torch.float32))
    for name in OBJECT_VOCABULARY:
        loss = loss + cross_entropy(logits[name][scenes.present_BP], targets[name][scenes.present_BP])
    for name in SCENE_VOCABULARY:
        loss = loss + cross_entropy(logits[name], targets[name])
    return loss


@torch.no_grad()
def measure(encoder: SceneEncoder, seed: int, scenes: int, device: str) -> Accuracy:
    """The share of right answers for each size, style and attribute, and their mean as "overall"."""
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


def _write(out_dir: Path, weights: bytes, record: dict[str, Any]) -> dict[str, Any]:
    full = {"sha256": hashlib.sha256(weights).hexdigest(), **record}
    write_bytes(out_dir / WEIGHTS_PATH.name, weights)
    write_bytes(out_dir / RECORD_PATH.name, (json.dumps(full, indent=2) + "\n").encode())
    return full
