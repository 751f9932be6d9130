"""Autoencoders of diffusers, from the Hugging Face hub or a local folder. A kind of tokenizer names the class and the
size of an autoencoder.

If a checkpoint does not state a value, the default of the class in diffusers is never used. Otherwise FLUX.2's
autoencoder, loaded with FLUX.1's class, would be scaled by 0.18215 without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.pretrained.packages import Untyped
from tintype.pretrained.published import PUBLISHED
from tintype.seams import DiffusersForm
from tintype.tokenizers.latent import LatentPart, Normalisation, PublishedTokenizer, filled
from tintype.tokenizers.part import AutoencoderOutline, Posterior


class DiffusersPart(LatentPart):
    """Settings of an autoencoder that has a class in diffusers."""

    class_name: ClassVar[str]

    def build(self, device: torch.device) -> DiffusersTokenizer:
        network, stated = self.checkpoint.autoencoder(self.class_name)
        blocks = network.config.get("encoder_block_out_channels") or network.config.block_out_channels
        self.check_compression(network.config.latent_channels, 2 ** (len(blocks) - 1))
        normalisation = self.normalisation(lambda: self.stated_normalisation(network, stated))
        return DiffusersTokenizer(self, network, normalisation, device)

    def outline(self) -> AutoencoderOutline | None:
        if self.weights not in PUBLISHED:
            return None
        network = PUBLISHED[self.weights].build()
        return AutoencoderOutline(network, network.encode, network.decode, 2 if self.compute == "bf16" else 4)

    def stated_normalisation(self, network: Untyped, stated: Mapping[str, Untyped]) -> Normalisation:
        """Return `latents_mean` and `latents_std`, as REPA-E's code does, or else the factors for scale and shift."""
        mean, std = stated.get("latents_mean"), stated.get("latents_std")
        if mean is not None and std is not None:
            if len(mean) != self.channels or len(std) != self.channels:
                raise UserError(
                    f"{self.checkpoint.words}: latents_mean and latents_std must have {self.channels} numbers each"
                )
            return Normalisation(filled(mean, self.channels), filled(std, self.channels).reciprocal())
        scale, shift = stated.get("scaling_factor"), stated.get("shift_factor")
        if not scale:
            raise UserError(
                f"{self.checkpoint.words}: the file config.json has no scaling_factor, so the normalisation of "
                f"the latents (to mean 0 and standard deviation 1) is unknown",
                "set tokenizer.shift and tokenizer.scale",
            )
        return Normalisation(filled(shift or 0.0, self.channels), filled(scale, self.channels))


class KlPart(DiffusersPart):
    """Settings of an autoencoder with a Gaussian for each latent."""

    posterior: Literal["mean", "sample"] = Field(
        "mean",
        description="Latents of an image: the mean of the encoder's posterior, or a new sample from it at each step",
    )

    @property
    def sampled(self) -> bool:
        return self.posterior == "sample"


class DiffusersTokenizer(PublishedTokenizer):
    def diffusers_form(self) -> DiffusersForm | None:
        scale_CHW, shift_CHW = self.normalisation.scale_CHW, self.normalisation.shift_CHW
        if scale_CHW.shape[1:] != (1, 1) or shift_CHW.shape[1:] != (1, 1):
            return None  # the normalisation depends on the place in a patch
        return DiffusersForm(self.network, shift_CHW.flatten(), scale_CHW.flatten())

    def _posterior(self, x_BCHW: Tensor) -> tuple[Tensor, Tensor | None]:
        (found,) = self.network.encode(x_BCHW, return_dict=False)
        return (found, None) if isinstance(found, Tensor) else (found.mean, found.std)

    def _decoded(self, latent_BCHW: Tensor) -> Tensor:
        image_BCHW: Tensor = self.network.decode(latent_BCHW).sample
        return image_BCHW


class KlAutoencoder(nn.Module):
    """Wrapper that makes a diffusers autoencoder a trainable network."""

    def __init__(self, network: Untyped) -> None:
        super().__init__()
        self.network = network.requires_grad_(True)

    @property
    def diffusers_network(self) -> nn.Module:
        found: nn.Module = self.network
        return found

    def posterior(self, x_BCHW: Tensor) -> Posterior:
        found = self.network.encode(x_BCHW).latent_dist
        return Posterior(found.mean.float(), found.logvar.float())

    def decode_raw(self, raw_BCHW: Tensor) -> Tensor:
        x_BCHW: Tensor = self.network.decode(raw_BCHW).sample
        return x_BCHW.float()
