"""`dc-ae` is the deep-compression autoencoder (arXiv 2410.10733), by default Sana's (32 channels, stride 32 px)."""

from __future__ import annotations

from typing import ClassVar, Literal

from tintype.pretrained.settings import Revision, Source
from tintype.tokenizers.latent import Channels, StridePx
from tintype.tokenizers.published import DiffusersPart


class DcAeSettings(DiffusersPart):
    class_name: ClassVar[str] = "AutoencoderDC"
    why_not_exported: ClassVar[str | None] = None

    kind: Literal["dc-ae"] = "dc-ae"
    weights: Source = "mit-han-lab/dc-ae-f32c32-sana-1.0-diffusers"
    revision: Revision = "8589aeeb0a1ab152a305081d83d3794e089c0326"
    channels: Channels = 32
    stride_px: StridePx = 32
