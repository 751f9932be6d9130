"""`pixels`: no tokenizer. The denoiser then works on pixels that are scaled to [-1, 1]."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from tintype.seams import Draws
from tintype.tokenizers.part import Compression, Pipeline, TokenizerPart, to_bytes, to_floats

LEAST_STD = 0.02
"""Smallest standard deviation of the pixels of many images, which is about 2.5 grey levels."""


class PixelsSettings(TokenizerPart):
    pipeline: ClassVar[Pipeline] = "PRXPixelPipeline"
    why_not_exported: ClassVar[str | None] = None
    scale_is_convention: ClassVar[bool] = True

    kind: Literal["pixels"] = "pixels"

    @property
    def compression(self) -> Compression:
        return Compression(Pixels.channels, Pixels.stride_px)

    def build(self, device: torch.device) -> Pixels:
        return Pixels()

    def why_uncacheable(self) -> str | None:
        return (
            "the tokenizer 'pixels' has no latents to cache: its latents are the pixels, four times as large on a disk "
            "and no work to make"
        )

    def why_frozen(self) -> str | None:
        return "it has no network; take small-vae, flux1 or e2e-flux"


class Pixels:
    channels = 3
    stride_px = 1
    identity = None
    arithmetic = "fp32"
    moment_channels = 3

    def encode(self, image_BCHW: Tensor, draws: Draws | None = None) -> Tensor:
        if image_BCHW.dtype != torch.uint8:
            raise TypeError(f"images must be uint8, not {image_BCHW.dtype}")
        return to_floats(image_BCHW)

    def moments(self, image_BCHW: Tensor) -> Tensor:
        return self.encode(image_BCHW)

    def drawn(self, moment_BCHW: Tensor, draws: Draws) -> Tensor:
        return moment_BCHW

    def decode_float(self, z_BCHW: Tensor) -> Tensor:
        return z_BCHW.float()

    def decode(self, z_BCHW: Tensor) -> Tensor:
        return to_bytes(z_BCHW)

    def diffusers_form(self) -> None:
        return None

    def check_latents(self, mean_C: Tensor, std_C: Tensor) -> str | None:
        """Describe the problem if images have almost no contrast; their scale is a convention (JiT's, PRX's)."""
        if float(std_C.max()) >= LEAST_STD:
            return None
        return (
            f"the images are nearly all of one colour: the deviation of their pixels, scaled to [-1, 1], is "
            f"{float(std_C.max()):.2g} at most; look at the data (`data`)"
        )
