"""`taef1`: a tiny autoencoder of FLUX.1's latents. They are those of FLUX.1 after its scale and shift."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tintype.pretrained.settings import Source
from tintype.tokenizers.latent import Channels, LatentPart, LatentTokenizer, Posterior, StridePx
from tintype.tokenizers.published import load_published


class Taef1Settings(LatentPart):
    kind: Literal["taef1"] = "taef1"
    weights: Source = "madebyollin/taef1"
    channels: Channels = 16
    stride_px: StridePx = 8

    def build(self, device: torch.device) -> LatentTokenizer:
        found = load_published(self.checkpoint, "AutoencoderTiny")
        config = found.network.config
        self.check_compression(config.latent_channels, 2 ** (len(config.encoder_block_out_channels) - 1))
        return _Taef1(self, found.network, self.normalisation(lambda: found.scaling(self.channels)), device)


class _Taef1(LatentTokenizer):
    def _encode(self, x_BCHW: Tensor) -> Posterior:
        return Posterior(self._network.encode(x_BCHW).latents)

    def _decode(self, latent_BCHW: Tensor) -> Tensor:
        image_BCHW: Tensor = self._network.decode(latent_BCHW).sample
        return image_BCHW
