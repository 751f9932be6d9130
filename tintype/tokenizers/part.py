"""Settings of tokenizers: what all kinds do, and the autoencoder that some can be trained as.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

import torch
from torch import Tensor, nn

from tintype.seams import Tokenizer
from tintype.settings import ExportForm, Obstacle, Part, Plain

Pipeline = Literal["PRXPipeline", "PRXPixelPipeline"]


@dataclass(frozen=True)
class Posterior:
    """A Gaussian for each number of the latents, before normalisation."""

    mean_BCHW: Tensor
    logvar_BCHW: Tensor

    def sample(self, noise_BCHW: Tensor) -> Tensor:
        return self.mean_BCHW + (0.5 * self.logvar_BCHW).exp() * noise_BCHW

    def kl(self) -> Tensor:
        """Return the divergence from a standard normal of each image, in nats for each number of its latents."""
        each_BCHW = 0.5 * (self.mean_BCHW.square() + self.logvar_BCHW.exp() - 1.0 - self.logvar_BCHW)
        return each_BCHW.mean(dim=(1, 2, 3))


def to_floats(image_BCHW: Tensor) -> Tensor:
    """uint8 to [-1, 1]."""
    return image_BCHW.float() / 127.5 - 1


def to_bytes(x_BCHW: Tensor) -> Tensor:
    return ((x_BCHW.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


class Autoencoder(Protocol):
    """An `nn.Module` in fp32 with a Gaussian for each latent. Images are floats in [-1, 1]."""

    @property
    def diffusers_network(self) -> nn.Module | None:
        """The network of diffusers, where it is one."""

    def posterior(self, x_BCHW: Tensor) -> Posterior: ...
    def decode_raw(self, raw_BCHW: Tensor) -> Tensor:
        """Decode latents as the posterior has them, not normalised."""


@dataclass(frozen=True)
class Statistics:
    """Mean and deviation of each channel of a tokenizer's latents: z = (latent - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def channel_statistics(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel of latents, over images and places: float64 [C] on the CPU."""
    sums, count = [], 0
    for z_BCHW in batches:
        z_BCHW = z_BCHW.double()
        sums.append(torch.stack([z_BCHW.mean((2, 3)).sum(0), z_BCHW.square().mean((2, 3)).sum(0)]).cpu())
        count += len(z_BCHW)
    mean_C, square_C = torch.stack(sums).sum(0) / count
    return mean_C, (square_C - mean_C.square()).clamp_min(0).sqrt()


@dataclass(frozen=True)
class Compression:
    """Size of latents: one for each square of `stride_px` pixels, of so many channels."""

    channels: int
    stride_px: int


Known: TypeAlias = Mapping[str, Compression]
"""Contents of folders of tokenizers that may not be on this machine, by the name that a plan gives them."""
NONE_KNOWN: Known = MappingProxyType({})


@dataclass(frozen=True)
class AutoencoderOutline:
    """An autoencoder with shapes and no numbers, in fp32."""

    network: nn.Module
    encode: Callable[[Tensor], object]
    """Encodes images in [-1, 1]."""
    decode: Callable[[Tensor], object]
    """Decodes latents."""
    number_bytes: int = 4
    """Bytes of a number that it computes in as a frozen tokenizer."""

    @property
    def numbers(self) -> int:
        return sum(one.numel() for one in self.network.parameters())


class TokenizerPart(Part):
    pipeline: ClassVar[Pipeline] = "PRXPipeline"
    """The pipeline of diffusers that decodes its latents."""
    class_name: ClassVar[str | None] = None
    """The class that diffusers has for it."""
    why_not_exported: ClassVar[str | None] = "PRXPipeline has no class for it"
    """Why its pipeline cannot hold it; None where it can."""
    scale_is_convention: ClassVar[bool] = False
    """Whether no statistics of images decided the scale of its latents."""

    def obstacles(self, form: ExportForm) -> Iterator[Obstacle]:
        if form != "safetensors" and self.why_not_exported is not None:
            yield Obstacle(
                f"tokenizer '{self.kind}': {self.why_not_exported}; train on flux1, e2e-flux or dc-ae, or "
                "`--to safetensors` writes the denoiser for loaders of your own"
            )

    @property
    def compression(self) -> Compression:
        """Return the size of latents from the settings alone: a plan is checked without any weights."""
        raise NotImplementedError

    def resolved(self, known: Known = NONE_KNOWN) -> Self:
        """Return the settings with what files say filled in. Plans are made of resolved settings and open no file."""
        return self

    def build(self, device: torch.device) -> Tokenizer:
        """Load its weights; raise a `UserError` for what is missing or does not fit these settings."""
        raise NotImplementedError

    def outline(self) -> AutoencoderOutline | None:
        """Return its network without the weights, for costs; None where its sizes are not known, or it has none."""
        return None

    def training_record(self) -> Plain:
        """Return how it was trained, where that is known; nothing depends on it."""
        return {}

    def why_uncacheable(self) -> str | None:
        """Return why its latents are not worth a cache; None where they are."""
        return None

    def why_frozen(self) -> str | None:
        """Return why its network cannot be trained with the denoiser; None where it can."""
        return "its encoder gives latents without a Gaussian to draw them from; take small-vae, flux1 or e2e-flux"

    def open(self) -> Autoencoder:
        """Return the network itself, to be trained, as `build` would load it; `why_frozen` says whether there is
        one."""
        raise NotImplementedError

    def write_tuned(self, folder: Path, network: Any, normalisation: Statistics, about: Plain) -> str:
        """Write a network that `open` returned and that was trained, to be used frozen. Return how a plan names it."""
        raise NotImplementedError
