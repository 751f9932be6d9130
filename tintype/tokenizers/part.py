"""Define the settings that all tokenizers share, and the autoencoder interface of trainable tokenizers.

Tensor dimensions are B (images), C (channels), H (rows) and W (columns).
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
    """A Gaussian distribution for each number of the latents, before normalisation."""

    mean_BCHW: Tensor
    logvar_BCHW: Tensor

    def sample(self, noise_BCHW: Tensor) -> Tensor:
        return self.mean_BCHW + (0.5 * self.logvar_BCHW).exp() * noise_BCHW

    def kl(self) -> Tensor:
        """Return the KL divergence of each image from a standard normal distribution, in nats per latent number."""
        each_BCHW = 0.5 * (self.mean_BCHW.square() + self.logvar_BCHW.exp() - 1.0 - self.logvar_BCHW)
        return each_BCHW.mean(dim=(1, 2, 3))


def to_floats(image_BCHW: Tensor) -> Tensor:
    """Convert uint8 to floats in [-1, 1]."""
    return image_BCHW.float() / 127.5 - 1


def to_bytes(x_BCHW: Tensor) -> Tensor:
    return ((x_BCHW.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


class Autoencoder(Protocol):
    """An autoencoder as an `nn.Module` in fp32, with a Gaussian for each latent. Images are floats in [-1, 1]."""

    @property
    def diffusers_network(self) -> nn.Module | None:
        """Return the network as a diffusers module; None if diffusers has no class for the network."""

    def posterior(self, x_BCHW: Tensor) -> Posterior: ...
    def decode_raw(self, raw_BCHW: Tensor) -> Tensor:
        """Decode latents before normalisation, as sampled from the posterior."""


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation of each channel of a tokenizer's latents, with z = (latent - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def channel_statistics(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel over images and positions, as float64 [C] on the CPU."""
    sums, count = [], 0
    for z_BCHW in batches:
        z_BCHW = z_BCHW.double()
        sums.append(torch.stack([z_BCHW.mean((2, 3)).sum(0), z_BCHW.square().mean((2, 3)).sum(0)]).cpu())
        count += len(z_BCHW)
    mean_C, square_C = torch.stack(sums).sum(0) / count
    return mean_C, (square_C - mean_C.square()).clamp_min(0).sqrt()


@dataclass(frozen=True)
class Compression:
    """Size of latents: Latents with `channels` numbers for each square of `stride_px` × `stride_px` pixels."""

    channels: int
    stride_px: int


Known: TypeAlias = Mapping[str, Compression]
"""Latent sizes of tokenizer folders, by the folder's name in the plan. The folders may be missing on this machine."""
NONE_KNOWN: Known = MappingProxyType({})


@dataclass(frozen=True)
class AutoencoderOutline:
    """An autoencoder in fp32 on the meta device, without weight values."""

    network: nn.Module
    encode: Callable[[Tensor], object]
    """Encodes images in [-1, 1]."""
    decode: Callable[[Tensor], object]
    number_bytes: int = 4
    """Number of bytes of each number in the frozen tokenizer's computation."""

    @property
    def numbers(self) -> int:
        return sum(one.numel() for one in self.network.parameters())


class TokenizerPart(Part):
    pipeline: ClassVar[Pipeline] = "PRXPipeline"
    """The diffusers pipeline that decodes the latents."""
    class_name: ClassVar[str | None] = None
    """Name of the tokenizer's class in diffusers."""
    why_not_exported: ClassVar[str | None] = "PRXPipeline has no class for it"
    """The reason why the pipeline cannot contain the tokenizer; None if it can."""
    scale_is_convention: ClassVar[bool] = False
    """Whether the scale of the latents is a convention, and is not measured on images."""

    def obstacles(self, form: ExportForm) -> Iterator[Obstacle]:
        if form != "safetensors" and self.why_not_exported is not None:
            yield Obstacle(
                f"tokenizer '{self.kind}': {self.why_not_exported}; train on flux1, e2e-flux or dc-ae, or "
                "`--to safetensors` writes the denoiser for loaders of your own"
            )

    @property
    def compression(self) -> Compression:
        """Return the size of latents from the settings alone, so that a plan can be checked without weights."""
        raise NotImplementedError

    def resolved(self, known: Known = NONE_KNOWN) -> Self:
        """Return the settings completed from the tokenizer's files; plans contain these and open no file."""
        return self

    def build(self, device: torch.device) -> Tokenizer:
        """Load the weights; raise a `UserError` if they are missing or do not fit these settings."""
        raise NotImplementedError

    def outline(self) -> AutoencoderOutline | None:
        """Return the network without weights, for cost estimates; None if its size is unknown or there is none."""
        return None

    def training_record(self) -> Plain:
        """Return how the tokenizer was trained, if known; for information only."""
        return {}

    def why_uncacheable(self) -> str | None:
        """Return the reason why caching the latents is useless; None if caching is useful."""
        return None

    def why_frozen(self) -> str | None:
        """Return the reason why the network cannot be trained with the denoiser; None if it can be trained."""
        return "its encoder gives latents without a Gaussian to draw them from; take small-vae, flux1 or e2e-flux"

    def open(self) -> Autoencoder:
        """Return the trainable network with the weights that `build` loads; without one, `why_frozen` says why."""
        raise NotImplementedError

    def write_tuned(self, folder: Path, network: Any, normalisation: Statistics, about: Plain) -> str:
        """Write a trained network of `open` as a frozen tokenizer; return the tokenizer's name in a plan."""
        raise NotImplementedError
