"""`scenes` is a small convolutional network that predicts every attribute in an image of a scene.

The network is both an encoder for metrics and a teacher. `train_scene_encoder.py` has trained the network on tintype's
own scenes. The weights are part of the package, so that scores of image content need no download. The pooled output of
the trunk is a feature vector for Fréchet distances.

Tensor dimensions are B (images), C (channels), H (rows), W (columns), P (positions), Q (queries), K (classes) and F
(size of the feature vector).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tintype.data.scenes.render import POSITION_XY
from tintype.data.scenes.scene import OBJECT_VOCABULARY, POSITIONS, SCENE_VOCABULARY
from tintype.pretrained.frozen import FrozenNetwork, frozen_arithmetic
from tintype.pretrained.preprocess import Resampling, check_bytes, resize
from tintype.pretrained.published import Outline, without_numbers
from tintype.seams import Encoder
from tintype.vision.part import EncoderPart, Grid, Teacher, TeacherPart, row_by_row

WEIGHTS_PATH = Path(__file__).with_name("scene_encoder.safetensors")
RECORD_PATH = Path(__file__).with_name("scene_encoder.json")
INPUT_PX = 64
FEATURES = 128
VISIBLE_ACCURACY = 0.95

READ_TOGETHER = 128
_MAP_RESIZE = Resampling("bilinear", clip=False)
_GRID = 8  # rows and columns of the trunk's last map
_FIRST_LOOK_WIDTH = 0.1
_GROUPS = 8
_WIDTHS = (32, 48, 96, FEATURES)


@dataclass(frozen=True)
class SceneReading:
    """Predicted attributes: `logits` has "presence" [B, P], object attributes [B, P, K], scene attributes [B, K]."""

    feature_BF: Tensor
    logits: Mapping[str, Tensor]


class _Convolution(nn.Module):
    """Convolution, group norm, ReLU. A batch norm would mix the statistics of sharp and enlarged images."""

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(_GROUPS, channels_out)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        normed_BCHW: Tensor = self.norm(self.convolution(x_BCHW))
        return normed_BCHW.relu()


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _Convolution(channels, channels)
        self.second = _Convolution(channels, channels)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        added_BCHW: Tensor = self.second(self.first(x_BCHW))
        return x_BCHW + added_BCHW


class SceneEncoder(nn.Module):
    """Map uint8 images of any size to a `SceneReading`.

    Images are scaled to [-2, 2] and resized to 64 px (bilinear, antialiased when shrinking). Each position and each
    scene attribute has a separate learned attention map over the last grid of the trunk.
    """

    def __init__(self) -> None:
        super().__init__()
        stem, low, middle, high = _WIDTHS
        self.trunk = nn.Sequential(
            _Convolution(3, stem, stride=2),
            _Convolution(stem, low),
            _Convolution(low, middle, stride=2),
            _Residual(middle),
            _Convolution(middle, high, stride=2),
            _Residual(high),
        )
        self.look = nn.Parameter(_first_looks())
        self.mix = nn.Linear(high, high)
        self.presence = nn.Linear(high, 1)
        self.object_heads = nn.ModuleDict({name: nn.Linear(high, len(w)) for name, w in OBJECT_VOCABULARY.items()})
        self.scene_heads = nn.ModuleDict({name: nn.Linear(high, len(w)) for name, w in SCENE_VOCABULARY.items()})

    def forward(self, image_BCHW: Tensor) -> SceneReading:
        map_BCHW = self.trunk(prepared(image_BCHW))
        looked_BQC = self.look.softmax(dim=1) @ map_BCHW.flatten(2).transpose(1, 2)
        seen_BQC = looked_BQC + self.mix(looked_BQC).relu()
        object_BPC, scene_BQC = seen_BQC[:, : len(POSITIONS)], seen_BQC[:, len(POSITIONS) :]
        logits = {"presence": self.presence(object_BPC)[..., 0]}
        logits |= {name: head(object_BPC) for name, head in self.object_heads.items()}
        logits |= {name: head(scene_BQC[:, query]) for query, (name, head) in enumerate(self.scene_heads.items())}
        return SceneReading(feature_BF=map_BCHW.mean(dim=(2, 3)), logits=logits)


def _first_looks() -> Tensor:
    """Return the initial attention of each query, as logits over the grid.

    A position's query attends to that position, and a scene attribute's query to all positions equally.
    """
    tick = (torch.arange(_GRID) + 0.5) / _GRID
    looks = [((tick - x) ** 2 + (tick[:, None] - y) ** 2).flatten() for x, y in POSITION_XY.values()]
    everywhere = [torch.zeros(_GRID * _GRID)] * len(SCENE_VOCABULARY)
    return torch.stack([-look / (2.0 * _FIRST_LOOK_WIDTH**2) for look in looks] + everywhere)


def prepared(image_BCHW: Tensor) -> Tensor:
    """Return the images in the format of the trunk's input, scaled to [-2, 2] at 64 px."""
    check_bytes(image_BCHW)
    scaled_BCHW = image_BCHW.to(torch.float32) * (4.0 / 255.0) - 2.0
    if scaled_BCHW.shape[-2:] != (INPUT_PX, INPUT_PX):
        scaled_BCHW = interpolate(scaled_BCHW, (INPUT_PX, INPUT_PX), mode="bilinear", antialias=True)
    return scaled_BCHW.contiguous(memory_format=torch.channels_last)  # 1.5 times as fast on a CPU


def load_scene_encoder(device: torch.device | str = "cpu") -> SceneEncoder:
    """Load the packaged encoder, frozen, in evaluation mode."""
    return _load(WEIGHTS_PATH, RECORD_PATH).to(device)


def _load(weights_path: Path, record_path: Path) -> SceneEncoder:
    stored = weights_path.read_bytes()
    expected = json.loads(record_path.read_text())["sha256"]
    if hashlib.sha256(stored).hexdigest() != expected:
        raise RuntimeError(f"{weights_path} does not match its record {record_path.name} (expected SHA-256 {expected})")
    encoder = SceneEncoder()
    encoder.load_state_dict({name: value.to(torch.float32) for name, value in load(stored).items()})
    return encoder.eval().requires_grad_(False)


@cache
def scene_encoder_record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD_PATH.read_text())
    return record


def visible_attributes(size_px: int) -> frozenset[str]:
    """Return the attributes that the encoder predicts with at least 95% accuracy in every style at this size."""
    return _visible(scene_encoder_record()["accuracy"], size_px)


def _visible(accuracy: Mapping[str, Mapping[str, Mapping[str, float]]], size_px: int) -> frozenset[str]:
    """Return the recognisable attributes at the largest measured size up to `size_px`.

    `accuracy` is nested by size, style and attribute.
    """
    below = [measured for measured in map(int, accuracy) if measured <= size_px]
    if not below:
        return frozenset()
    styles = accuracy[str(max(below))].values()
    names = set.intersection(*(set(style) for style in styles)) - {"overall"}
    return frozenset(name for name in names if min(style[name] for style in styles) >= VISIBLE_ACCURACY)


def _outline(features: int = 0) -> Outline:
    encoder = without_numbers(SceneEncoder)
    return Outline(encoder, (INPUT_PX, INPUT_PX), encoder.trunk, features=features)


class SceneEncoderSettings(EncoderPart):
    """Settings of tintype's own small encoder of scenes, which is part of the package and needs no download."""

    kind: Literal["scenes"] = "scenes"

    def _make(self, device: torch.device) -> Encoder:
        return SceneFeatures(device, self.title)

    def outline(self) -> Outline:
        return _outline(FEATURES)


class SceneFeatures:
    definition = (
        f"pooled last map ({FEATURES} numbers) of tintype's scene encoder; input uint8, scaled to [-2, 2], resized to "
        f"{INPUT_PX} px (bilinear, antialiased when shrinking), fp32"
    )

    def __init__(self, device: torch.device, name: str = "scenes") -> None:
        self.name = name
        self.identity = hashlib.sha256((scene_encoder_record()["sha256"] + self.definition).encode()).hexdigest()
        self._device = device
        self._encoder: SceneEncoder = load_scene_encoder(device)

    def prepare(self, image_BCHW: Tensor) -> Tensor:
        return prepared(image_BCHW.to(self._device))

    def encode(self, input_BCHW: Tensor) -> Tensor:
        with frozen_arithmetic(self._device):
            map_BCHW: Tensor = self._encoder.trunk(input_BCHW.contiguous(memory_format=torch.channels_last))
            return map_BCHW.mean(dim=(2, 3))

    @torch.no_grad()
    def read(self, image_BCHW: Tensor) -> SceneReading:
        readings = [self._encoder(chunk.to(self._device)) for chunk in image_BCHW.split(READ_TOGETHER)]
        return SceneReading(
            torch.cat([reading.feature_BF for reading in readings]).cpu(),
            {name: torch.cat([r.logits[name] for r in readings]).cpu() for name in readings[0].logits},
        )


def scene_features(device: torch.device) -> SceneFeatures:
    encoder = SceneEncoderSettings().build(device)
    assert isinstance(encoder, SceneFeatures), "the settings of the scene encoder build it"
    return encoder


class SceneTeacherSettings(TeacherPart):
    """Settings of a teacher whose tokens are the last map of tintype's packaged scene encoder, resized to the grid."""

    kind: Literal["scenes"] = "scenes"

    def width(self) -> int:
        return FEATURES

    def build(self, grid: Grid, device: torch.device) -> Teacher:
        network = FrozenNetwork(
            load_scene_encoder().trunk,
            _SceneInput(),
            words="tintype's scene encoder",
            output=f"last map (8 × 8), resized to the grid ({_MAP_RESIZE.definition}): tokens",
            weights_digest=scene_encoder_record()["sha256"],
        )
        return _SceneTeacher(self.kind, network, device, grid, FEATURES)

    def outline(self, grid: Grid) -> Outline:
        return _outline()


class _SceneInput:
    definition = f"uint8, scaled to [-2, 2], resized to {INPUT_PX} px (bilinear, antialiased when shrinking)"
    hash_input = definition

    def __call__(self, image_BCHW: Tensor) -> Tensor:
        return prepared(image_BCHW)


class _SceneTeacher(Teacher):
    def _features(self, input_BCHW: Tensor) -> Tensor:
        map_BCHW = self._network(input_BCHW.contiguous(memory_format=torch.channels_last))
        return row_by_row(resize(map_BCHW, *self.grid, _MAP_RESIZE))
