"""Autoencoders of diffusers, from the hub or from a local folder.

Only safetensors are read. Nothing is taken from a default of diffusers' classes that the checkpoint does not state
itself: FLUX.2's autoencoder in the class of FLUX.1's would be scaled by 0.18215 without a word.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.pretrained.hub import Checkpoint, explained, json_object
from tintype.tokenizers.latent import LatentPart, LatentTokenizer, Posterior
from tintype.tokenizers.normalise import Normalisation, filled
from tintype.tokenizers.part import Posterior as Gaussian


@dataclass(frozen=True)
class Published:
    """A network with what its config.json states, defaults left out."""

    network: Any
    stated: Mapping[str, Any]
    words: str

    def scaling(self, channels: int) -> Normalisation:
        """`latents_mean` and `latents_std` where it states them, as REPA-E's code does; else its two factors."""
        mean, std = self.stated.get("latents_mean"), self.stated.get("latents_std")
        if mean is not None and std is not None:
            if len(mean) != channels or len(std) != channels:
                raise UserError(f"{self.words}: latents_mean and latents_std must have {channels} numbers each")
            return Normalisation(filled(mean, channels), filled(std, channels).reciprocal())
        scale, shift = self.stated.get("scaling_factor"), self.stated.get("shift_factor")
        if not scale:
            raise UserError(
                f"{self.words}: its config.json has no scaling_factor, so it is not known how its latents are brought "
                "to mean 0 and deviation 1; set tokenizer.shift and tokenizer.scale"
            )
        return Normalisation(filled(shift or 0.0, channels), filled(scale, channels))


def load_published(checkpoint: Checkpoint, class_name: str) -> Published:
    """The autoencoder in fp32, which must be of this class of diffusers and whole."""
    diffusers = diffusers_package()
    checkpoint.check_folder()
    file = checkpoint.file("config.json")
    if file is None:
        raise UserError(f"{checkpoint.words} has no config.json: it is not an autoencoder of diffusers")
    stated = json_object(file)
    if stated.get("_class_name") != class_name:
        raise UserError(
            f"{checkpoint.words} is a '{stated.get('_class_name')}'; this kind of tokenizer takes {class_name}"
        )
    with explained(checkpoint):
        network, loading = getattr(diffusers, class_name).from_pretrained(
            **checkpoint.arguments,
            use_safetensors=True,
            torch_dtype=torch.float32,
            low_cpu_mem_usage=False,
            output_loading_info=True,
        )
    if missing := sorted(loading["missing_keys"]):
        raise UserError(
            f"{checkpoint.words} lacks tensors of its network, which would be left as they happen to be: "
            f"{', '.join(missing[:3])}; is it the whole checkpoint?"
        )
    checkpoint.hold_network(network)
    return Published(network, stated, checkpoint.words)


def diffusers_package() -> Any:
    try:
        return importlib.import_module("diffusers")
    except ImportError as error:
        raise UserError(f"this needs diffusers ({error}): pip install 'tintype[diffusers]'") from None


class KlPart(LatentPart):
    """Autoencoders that give a Gaussian for each latent."""

    posterior: Literal["mean", "sample"] = Field(
        "mean", description="The mean of the encoder's Gaussian, or a draw from it, anew at each step"
    )


class KlAutoencoder(nn.Module):
    """diffusers' network as one that can be trained."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network.requires_grad_(True)

    def posterior(self, x_BCHW: Tensor) -> Gaussian:
        found = self.network.encode(x_BCHW).latent_dist
        return Gaussian(found.mean.float(), found.logvar.float())

    def picture(self, raw_BCHW: Tensor) -> Tensor:
        x_BCHW: Tensor = self.network.decode(raw_BCHW).sample
        return x_BCHW.float()


class KlTokenizer(LatentTokenizer):
    def autoencoder(self) -> KlAutoencoder:
        """The network, to be trained; this tokenizer is of no use then."""
        return KlAutoencoder(self._network)

    def _encode(self, x_BCHW: Tensor) -> Posterior:
        found = self._network.encode(x_BCHW).latent_dist
        return Posterior(found.mean, found.std)

    def _decode(self, latent_BCHW: Tensor) -> Tensor:
        image_BCHW: Tensor = self._network.decode(latent_BCHW).sample
        return image_BCHW
