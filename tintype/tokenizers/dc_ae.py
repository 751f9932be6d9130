"""`dc-ae`: the deep-compression autoencoder (arXiv 2410.10733), by default Sana's: 32 channels at 32 px."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tintype.pretrained.settings import Revision, Source
from tintype.tokenizers.latent import Channels, LatentPart, LatentTokenizer, Posterior, StridePx
from tintype.tokenizers.published import load_published


class DcAeSettings(LatentPart):
    kind: Literal["dc-ae"] = "dc-ae"
    weights: Source = "mit-han-lab/dc-ae-f32c32-sana-1.0-diffusers"
    revision: Revision = "8589aeeb0a1ab152a305081d83d3794e089c0326"
    channels: Channels = 32
    stride_px: StridePx = 32

    def build(self, device: torch.device) -> LatentTokenizer:
        found = load_published(self.checkpoint, "AutoencoderDC")
        config = found.network.config
        self.check_compression(config.latent_channels, 2 ** (len(config.encoder_block_out_channels) - 1))
        return _DcAe(self, found.network, self.normalisation(lambda: found.scaling(self.channels)), device)


class _DcAe(LatentTokenizer):
    def _encode(self, x_BCHW: Tensor) -> Posterior:
        return Posterior(self._network.encode(x_BCHW).latent)

    def _decode(self, latent_BCHW: Tensor) -> Tensor:
        image_BCHW: Tensor = self._network.decode(latent_BCHW).sample
        return image_BCHW
