"""`flux1`: FLUX.1's autoencoder. `e2e-flux`: the same network as REPA-E (arXiv 2504.10483) tuned it, frozen."""

from __future__ import annotations

from typing import Literal

import torch

from tintype.tokenizers.latent import Channels, Revision, Source, StridePx, Subfolder
from tintype.tokenizers.published import KlPart, KlTokenizer, load_published


class _KlFluxPart(KlPart):
    channels: Channels = 16
    stride_px: StridePx = 8

    def build(self, device: torch.device) -> KlTokenizer:
        found = load_published(self.checkpoint, "AutoencoderKL")
        config = found.network.config
        self.check_compression(config.latent_channels, 2 ** (len(config.block_out_channels) - 1))
        normalisation = self.normalisation(lambda: found.scaling(self.channels))
        return KlTokenizer(self, found.network, normalisation, device, sampled=self.posterior == "sample")


class Flux1Settings(_KlFluxPart):
    kind: Literal["flux1"] = "flux1"
    weights: Source = "black-forest-labs/FLUX.1-schnell"
    revision: Revision = "741f7c3ce8b383c54771c7003378a50191e9efe9"
    subfolder: Subfolder = "vae"


class E2eFluxSettings(_KlFluxPart):
    kind: Literal["e2e-flux"] = "e2e-flux"
    weights: Source = "REPA-E/e2e-flux-vae"
