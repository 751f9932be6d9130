"""`taef1` is a tiny autoencoder with the latents of FLUX.1, after FLUX.1's scale and shift."""

from __future__ import annotations

from typing import ClassVar, Literal

from tintype.pretrained.settings import Source
from tintype.tokenizers.latent import Channels, StridePx
from tintype.tokenizers.published import DiffusersPart


class Taef1Settings(DiffusersPart):
    class_name: ClassVar[str] = "AutoencoderTiny"
    why_not_exported: ClassVar[str | None] = (
        "PRXPipeline takes AutoencoderKL and AutoencoderDC, and this is an AutoencoderTiny, of flux1's latents"
    )

    kind: Literal["taef1"] = "taef1"
    weights: Source = "madebyollin/taef1"
    channels: Channels = 16
    stride_px: StridePx = 8
