"""`flux2`: FLUX.2's autoencoder, normalised by its own batch-norm statistics.

The statistics belong to latents folded into patches of 2 × 2, so they depend on the position in a patch. FLUX.2's
pipeline works on the folded latents, with 128 channels at a stride of 16 px. Here, the latents are normalised by the
same numbers but are not folded, so they have 32 channels at a stride of 8 px. The denoiser's `model.patch` folds them:
patches of 2 contain the same 128 numbers in the same order.

Tensor dimensions are C (channels), H (rows of a patch) and W (columns of a patch).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

from tintype.pretrained.packages import Untyped
from tintype.pretrained.settings import Revision, Source, Subfolder
from tintype.tokenizers.latent import Channels, Normalisation, StridePx
from tintype.tokenizers.published import KlPart


class Flux2Settings(KlPart):
    class_name: ClassVar[str] = "AutoencoderKLFlux2"
    why_not_exported: ClassVar[str | None] = (
        "FLUX.2's batch-norm statistics depend on a latent's place in a patch of 2 × 2, and PRXPipeline knows one "
        "scale and one shift"
    )

    kind: Literal["flux2"] = "flux2"
    weights: Source = "black-forest-labs/FLUX.2-klein-4B"
    revision: Revision = "e7b7dc27f91deacad38e78976d1f2b499d76a294"
    subfolder: Subfolder = "vae"
    channels: Channels = 32
    stride_px: StridePx = 8

    def stated_normalisation(self, network: Untyped, stated: Mapping[str, Untyped]) -> Normalisation:
        """Return the batch norm's running mean and variance as [C, row, column]; add eps before the square root."""
        config, norm = network.config, network.bn

        def unfolded(folded_C: Tensor) -> Tensor:
            return folded_C.float().reshape(config.latent_channels, *config.patch_size).clone()

        return Normalisation(unfolded(norm.running_mean), unfolded(norm.running_var + config.batch_norm_eps).rsqrt())

    def why_frozen(self) -> str | None:
        return "its own batch norm is of patches of 2 × 2 latents; take small-vae, flux1 or e2e-flux"
