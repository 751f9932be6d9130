"""`pixels`: no tokenizer. The denoiser works on pixels scaled to [-1, 1]."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tintype.settings import TokenizerPart


class PixelsSettings(TokenizerPart):
    kind: Literal["pixels"] = "pixels"

    def build(self) -> Pixels:
        return Pixels()


class Pixels:
    channels = 3
    stride_px = 1

    def encode(self, image_BCHW: Tensor) -> Tensor:
        if image_BCHW.dtype != torch.uint8:
            raise TypeError(f"images must be uint8, not {image_BCHW.dtype}")
        return image_BCHW.float() / 127.5 - 1

    def decode(self, z_BCHW: Tensor) -> Tensor:
        return ((z_BCHW.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
