"""The table of image encoders whose features metrics can be taken on."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from tintype.seams import Encoder
from tintype.vision.scene_encoder import FEATURES, INPUT_PX, SceneEncoder, SceneReading, load_scene_encoder

_BATCH = 128


class SceneFeatures:
    """The packaged scene encoder as a source of features and of readings."""

    name = "scenes"
    definition = (
        f"pooled last map ({FEATURES} numbers) of tintype's scene encoder; input uint8, scaled to [-2, 2], resized to "
        f"{INPUT_PX} px (bilinear, antialiased when shrinking), fp32"
    )

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._encoder: SceneEncoder = load_scene_encoder(device)

    def features(self, image_BCHW: Tensor) -> Tensor:
        return self.read(image_BCHW).feature_BF

    @torch.no_grad()
    def read(self, image_BCHW: Tensor) -> SceneReading:
        readings = [self._encoder(chunk.to(self._device)) for chunk in image_BCHW.split(_BATCH)]
        return SceneReading(
            torch.cat([reading.feature_BF for reading in readings]).cpu(),
            {name: torch.cat([r.logits[name] for r in readings]).cpu() for name in readings[0].logits},
        )


@lru_cache(maxsize=2)
def scene_features(device: torch.device) -> SceneFeatures:
    return SceneFeatures(device)


ENCODERS: dict[str, Callable[[torch.device], Encoder]] = {"scenes": scene_features}
