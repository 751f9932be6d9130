"""`flux1` is FLUX.1's autoencoder. `e2e-flux` is the same network after tuning with REPA-E (arXiv 2504.10483)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import torch

from tintype.pretrained.settings import Revision, Source, Subfolder
from tintype.runtime.files import write_json
from tintype.settings import Plain
from tintype.tokenizers.latent import Channels, StridePx
from tintype.tokenizers.part import Statistics
from tintype.tokenizers.published import KlAutoencoder, KlPart


class _KlFluxPart(KlPart):
    class_name: ClassVar[str] = "AutoencoderKL"
    why_not_exported: ClassVar[str | None] = None

    channels: Channels = 16
    stride_px: StridePx = 8

    def why_frozen(self) -> str | None:
        if self.compute != "fp32":
            return f"tokenizer.compute {self.compute} is for frozen networks; leave it fp32 and set tuning.compute"
        return None

    def open(self) -> KlAutoencoder:
        return KlAutoencoder(self.build(torch.device("cpu")).network)

    def write_tuned(self, folder: Path, network: KlAutoencoder, normalisation: Statistics, about: Plain) -> str:
        """Write a diffusers folder, whose config contains the mean and standard deviation of the latents.

        Readers prefer these to `scaling_factor` and `shift_factor`, which belong to the network before tuning.
        """
        stated = {"latents_mean": list(normalisation.mean), "latents_std": list(normalisation.std)}
        network.network.register_to_config(**stated)
        network.network.save_pretrained(folder)
        write_json(folder / "tuned.json", about)
        size = f"channels: {self.channels}, stride_px: {self.stride_px}"
        return f"tokenizer: {{kind: {self.kind}, weights: {folder}, {size}}}"


class Flux1Settings(_KlFluxPart):
    kind: Literal["flux1"] = "flux1"
    weights: Source = "black-forest-labs/FLUX.1-schnell"
    revision: Revision = "741f7c3ce8b383c54771c7003378a50191e9efe9"
    subfolder: Subfolder = "vae"


class E2eFluxSettings(_KlFluxPart):
    kind: Literal["e2e-flux"] = "e2e-flux"
    weights: Source = "REPA-E/e2e-flux-vae"
