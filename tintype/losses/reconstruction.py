"""Perceptual loss of autoencoders: the distance of images and reconstructions in a frozen network's features.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype.errors import UserError
from tintype.losses.lpips import load_distance
from tintype.losses.perceptual import Distance, resized
from tintype.settings import PathText, Settings
from tintype.vision.lpips import SMALLEST_PX, Net
from tintype.vision.scene_encoder import INPUT_PX, load_scene_encoder, scene_encoder_record
from tintype.wording import setting


class PerceptualSettings(Settings):
    """Settings of a perceptual distance that is added to the pixel distance. By default, there is none."""

    way_out: ClassVar[str] = f"Or train without: {setting('perceptual.kind', 'none')} (or scenes)"

    kind: Literal["none", "scenes", "lpips"] = Field(
        "none",
        description="Network of the perceptual distance (scenes is the packaged scene encoder, lpips needs its "
        "weights, none turns it off)",
    )
    weight: float = Field(0.1, gt=0)
    net: Net = Field("vgg16", description="lpips: its network")
    weights: PathText | None = Field(
        None, description="File with the weights for the kind lpips; by default the published weights"
    )

    def check(self, size_px: int, size_setting: str, where: str = "") -> None:
        if self.kind == "lpips" and size_px < SMALLEST_PX[self.net]:
            raise ValueError(f"{where}lpips with {self.net} needs {size_setting} of at least {SMALLEST_PX[self.net]}")

    def load(self, device: torch.device) -> Distance | None:
        if self.kind == "none":
            return None
        if self.kind == "scenes":
            return SceneDistance(device)
        try:
            return load_distance(self.net, device, self.weights)
        except UserError as error:
            raise UserError(error.marked, f"\n{self.way_out}") from None


class SceneDistance:
    """The mean squared difference between the last feature maps of the packaged scene encoder.

    A Fréchet distance that uses the same encoder's features favours models trained with this loss.
    """

    def __init__(self, device: torch.device) -> None:
        self.identity = str(scene_encoder_record()["sha256"])
        self._trunk = load_scene_encoder(device).trunk

    def __call__(self, predicted_BCHW: Tensor, true_BCHW: Tensor) -> Tensor:
        predicted_map, true_map = self._map(predicted_BCHW), self._map(true_BCHW)
        return (predicted_map - true_map).square().mean(dim=(1, 2, 3))

    def _map(self, x_BCHW: Tensor) -> Tensor:
        """Return the encoder's last feature map. Images are scaled to [-2, 2], as in the encoder's training."""
        small_BCHW = x_BCHW if x_BCHW.shape[-2:] == (INPUT_PX, INPUT_PX) else resized(x_BCHW, INPUT_PX, INPUT_PX)
        map_BCHW: Tensor = self._trunk((2.0 * small_BCHW).contiguous(memory_format=torch.channels_last))
        return map_BCHW
