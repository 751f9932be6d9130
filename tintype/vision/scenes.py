"""`scenes`: tintype's own encoder of scenes, as an encoder and as a teacher. It is packaged.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import torch
from torch import Tensor

from tintype.pretrained.frozen import FrozenNetwork, frozen_arithmetic
from tintype.pretrained.preprocess import Resampling, check_bytes, resize
from tintype.seams import Encoder
from tintype.vision.part import EncoderPart, Grid, Teacher, TeacherPart, row_by_row
from tintype.vision.scene_encoder import (
    FEATURES,
    INPUT_PX,
    SceneEncoder,
    SceneReading,
    load_scene_encoder,
    prepared,
    scene_encoder_record,
)

READ_TOGETHER = 128
_MAP_RESIZE = Resampling("bilinear", clip=False)


class SceneEncoderSettings(EncoderPart):
    """tintype's own small encoder of scenes; packaged, needs no download."""

    kind: Literal["scenes"] = "scenes"

    def _make(self, device: torch.device) -> Encoder:
        return SceneFeatures(device, self.title)


class SceneFeatures:
    """Features and readings of the packaged scene encoder."""

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
        check_bytes(image_BCHW)
        return prepared(image_BCHW.to(self._device))

    def encode(self, input_BCHW: Tensor) -> Tensor:
        with frozen_arithmetic(self._device):
            map_BCHW: Tensor = self._encoder.trunk(input_BCHW.contiguous(memory_format=torch.channels_last))
            return map_BCHW.mean(dim=(2, 3))

    @torch.no_grad()
    def read(self, image_BCHW: Tensor) -> SceneReading:
        """Return what the images show."""
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
    """The last map of tintype's own encoder of scenes, resized to the grid; packaged, needs no download."""

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


class _SceneInput:
    definition = f"uint8, scaled to [-2, 2], resized to {INPUT_PX} px (bilinear, antialiased when shrinking)"
    hash_input = definition

    def __call__(self, image_BCHW: Tensor) -> Tensor:
        check_bytes(image_BCHW)
        return prepared(image_BCHW)


class _SceneTeacher(Teacher):
    def _features(self, input_BCHW: Tensor) -> Tensor:
        map_BCHW = self._network(input_BCHW.contiguous(memory_format=torch.channels_last))
        return row_by_row(resize(map_BCHW, *self.grid, _MAP_RESIZE))
