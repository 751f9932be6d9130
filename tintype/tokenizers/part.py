"""Settings of tokenizers: what all kinds do, and the autoencoder that some can be trained as.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from tintype.seams import Tokenizer
from tintype.settings import Part


@dataclass(frozen=True)
class Posterior:
    """A Gaussian for each number of the latents, before normalisation."""

    mean_BCHW: Tensor
    logvar_BCHW: Tensor

    def sample(self, noise_BCHW: Tensor) -> Tensor:
        return self.mean_BCHW + (0.5 * self.logvar_BCHW).exp() * noise_BCHW

    def kl(self) -> Tensor:
        """The divergence from a standard normal of each image, in nats for each number of its latents."""
        each_BCHW = 0.5 * (self.mean_BCHW.square() + self.logvar_BCHW.exp() - 1.0 - self.logvar_BCHW)
        return each_BCHW.mean(dim=(1, 2, 3))


class Autoencoder(Protocol):
    """An `nn.Module` in fp32 with a Gaussian for each latent. Images are floats in [-1, 1]."""

    def posterior(self, x_BCHW: Tensor) -> Posterior: ...
    def decode_raw(self, raw_BCHW: Tensor) -> Tensor:
        """Latents as the posterior has them, not normalised, to an image."""


@dataclass(frozen=True)
class Statistics:
    """Of each channel of a tokenizer's latents: z = (latent - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Compression:
    """What a tokenizer makes of pixels: one latent for each square of `stride_px`, of so many channels."""

    channels: int
    stride_px: int


Known: TypeAlias = Mapping[str, Compression]
"""What folders of tokenizers hold that may not be on this machine, by the name that a plan gives them."""
NONE_KNOWN: Known = MappingProxyType({})


class TokenizerPart(Part):
    @property
    def compression(self) -> Compression:
        """Known from the settings alone: a plan is checked without any weights."""
        raise NotImplementedError

    def resolved(self, known: Known = NONE_KNOWN) -> Self:
        """Return the settings with what files say filled in. Plans are made of resolved settings and open no file."""
        return self

    def build(self, device: torch.device) -> Tokenizer:
        """Loads its weights; what is missing or does not fit these settings is a UserError."""
        raise NotImplementedError

    def why_uncacheable(self) -> str | None:
        """Return why its latents are not worth a cache; None where they are."""
        return None

    def why_frozen(self) -> str | None:
        """Why its network cannot be trained with the denoiser; None where it can."""
        return "its encoder gives latents without a Gaussian to draw them from; take small-vae, flux1 or e2e-flux"

    def open(self) -> Autoencoder:
        """The network itself, to be trained, as `build` would load it; `why_frozen` says whether there is one."""
        raise NotImplementedError

    def write_tuned(self, folder: Path, network: Any, normalisation: Statistics, about: dict[str, Any]) -> str:
        """Writes a network that `open` gave and that was trained, to be used frozen; says how to name it in a plan."""
        raise NotImplementedError
