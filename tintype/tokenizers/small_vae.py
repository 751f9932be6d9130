"""`small-vae` is a convolutional variational autoencoder of tintype, with a few million parameters.

`tintype tokenizer train` trains a small-vae on any set of images. The first layer folds 2 × 2 pixels into channels and
the last layer unfolds them, so that no convolution runs at full resolution. `encode` normalises each channel of the
latents by its mean and standard deviation, which were measured after training.

Tensor dimensions are B (images), C (channels), H (rows) and W (columns).
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import silu

from tintype.pretrained.weights import digest
from tintype.settings import Plain, Settings
from tintype.tokenizers.part import AutoencoderOutline, Compression, Posterior, Statistics
from tintype.tokenizers.trained_folder import FolderPart, MeasuredTokenizer, TrainedFiles

WEIGHTS_NAME, RECORD_NAME = "vae.safetensors", "vae.json"
FORMAT: Literal[1] = 1
FILES = TrainedFiles("small-vae", WEIGHTS_NAME, RECORD_NAME, FORMAT, "tintype tokenizer train --out DIR")

_CPU = torch.device("cpu")
_GROUPS = 8
_LOGVAR = (-30.0, 20.0)
"""Bounds on the log variance; beyond them, the exponential no longer matters, but the gradient would still grow."""


class SmallVaeShape(Settings):
    """Settings of the network's shape."""

    channels: int = Field(16, ge=1, le=512, description="Number of channels of the latents")
    stride_px: Literal[4, 8] = Field(8, description="Number of pixels per latent pixel, along each side")
    width: int = Field(
        48,
        ge=_GROUPS,
        multiple_of=_GROUPS,
        description="Number of channels at half the resolution; it doubles with each halving",
    )
    blocks: int = Field(
        2, ge=1, description="Number of residual blocks at each resolution, in the encoder and in the decoder"
    )

    @property
    def widths(self) -> list[int]:
        """Return the numbers of channels at 1/2, 1/4, … of the resolution."""
        return [self.width * 2**level for level in range(self.stride_px.bit_length() - 1)]


class _Residual(nn.Module):
    """A residual block with two convolutions, each after a group norm; it is initialised as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(_GROUPS, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.second_norm, self.second = nn.GroupNorm(_GROUPS, channels), nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        inner_BCHW = self.first(silu(self.first_norm(x_BCHW)))
        added_BCHW: Tensor = self.second(silu(self.second_norm(inner_BCHW)))
        return x_BCHW + added_BCHW


def _blocks(channels: int, count: int) -> list[nn.Module]:
    return [_Residual(channels) for _ in range(count)]


def _head(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [nn.GroupNorm(_GROUPS, channels_in), nn.SiLU(), nn.Conv2d(channels_in, channels_out, 3, padding=1)]


def _begin_as_enlarging(layer: nn.Conv2d) -> None:
    """Give a sub-pixel group's four pixels equal initial weights, to avoid a checkerboard (ICNR, arXiv 1707.02937)."""
    assert layer.bias is not None
    with torch.no_grad():
        for values in (layer.weight, layer.bias):
            values.copy_(values[::4].repeat_interleave(4, dim=0))


class Vae(nn.Module):
    """The network in fp32, together with the statistics of its latents. Images are floats in [-1, 1]."""

    diffusers_network = None
    latent_mean: Tensor
    latent_std: Tensor

    def __init__(self, shape: SmallVaeShape) -> None:
        super().__init__()
        self.shape = shape
        widths = shape.widths
        down: list[nn.Module] = [nn.PixelUnshuffle(2), nn.Conv2d(12, widths[0], 3, padding=1)]
        for level, width in enumerate(widths):
            if level:
                down.append(nn.Conv2d(widths[level - 1], width, 3, stride=2, padding=1))
            down += _blocks(width, shape.blocks)
        self.encoder = nn.Sequential(*down, *_head(widths[-1], 2 * shape.channels))
        up: list[nn.Module] = [nn.Conv2d(shape.channels, widths[-1], 3, padding=1)]
        for level, width in reversed(list(enumerate(widths))):
            up += _blocks(width, shape.blocks)
            if level:
                up += [nn.Conv2d(width, 4 * widths[level - 1], 3, padding=1), nn.PixelShuffle(2)]
        self.decoder = nn.Sequential(*up, *_head(widths[0], 12), nn.PixelShuffle(2))
        for layer, after in pairwise(self.decoder):
            if isinstance(layer, nn.Conv2d) and isinstance(after, nn.PixelShuffle):
                _begin_as_enlarging(layer)
        self.register_buffer("latent_mean", torch.zeros(1, shape.channels, 1, 1))
        self.register_buffer("latent_std", torch.ones(1, shape.channels, 1, 1))

    @property
    def last_encoder_weight(self) -> Tensor:
        """Return the weights of the encoder's last layer."""
        layer = self.encoder[-1]
        assert isinstance(layer, nn.Conv2d)
        return layer.weight

    def posterior(self, x_BCHW: Tensor) -> Posterior:
        mean_BCHW, logvar_BCHW = self.encoder(_channels_last(x_BCHW)).float().chunk(2, dim=1)
        return Posterior(mean_BCHW, logvar_BCHW.clamp(*_LOGVAR))

    def decode_raw(self, raw_BCHW: Tensor) -> Tensor:
        """Decode latents before normalisation, as sampled from the posterior."""
        x_BCHW: Tensor = self.decoder(_channels_last(raw_BCHW))
        return x_BCHW.float()


def _channels_last(x_BCHW: Tensor) -> Tensor:
    """Convert activations to channels-last, which makes a CPU two to three times as fast.

    Weights keep their layout, since a resumed optimizer's moments would otherwise have another layout.
    """
    return x_BCHW.contiguous(memory_format=torch.channels_last)


class SmallVae(MeasuredTokenizer):
    """The tokenizer: its latents are the mean of the posterior or a sample from it, normalised."""

    network: Vae

    def __init__(self, network: Vae, sampled: bool = False) -> None:
        shape = network.shape
        identity = digest(network.state_dict().values())
        super().__init__(network, Compression(shape.channels, shape.stride_px), identity, sampled=sampled)

    def _posterior(self, x_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        found = self.network.posterior(x_BCHW)
        return found.mean_BCHW, (0.5 * found.logvar_BCHW).exp()

    def _decoded(self, latent_BCHW: Tensor) -> Tensor:
        return self.network.decode_raw(latent_BCHW)


class SmallVaeSettings(FolderPart):
    """A trained small-vae. `sha256` pins its weights; without it, any weights in the folder are accepted."""

    files: ClassVar[TrainedFiles] = FILES

    kind: Literal["small-vae"] = "small-vae"
    posterior: Literal["mean", "sample"] = Field(
        "mean",
        description="Latents of an image: the mean of the encoder's posterior, or a new sample from it at each step",
    )

    def recorded(self, folder: Path) -> tuple[Compression, Plain]:
        record = read_record(folder)
        return Compression(record.shape.channels, int(record.shape.stride_px)), record.trained

    def build(self, device: torch.device = _CPU) -> SmallVae:
        return SmallVae(self.open().to(device), sampled=self.posterior == "sample")

    def why_frozen(self) -> str | None:
        return None

    def outline(self) -> AutoencoderOutline | None:
        if not is_trained(self.place):
            return None
        with torch.device("meta"):
            network = Vae(read_record(self.place).shape).requires_grad_(False)
        return AutoencoderOutline(network, network.posterior, network.decode_raw)

    def open(self) -> Vae:
        network = read_vae(self.place, self.sha256)
        self.check_shape(Compression(network.shape.channels, int(network.shape.stride_px)))
        return network

    def write_tuned(self, folder: Path, network: Vae, normalisation: Statistics, about: Plain) -> str:
        network.latent_mean.copy_(torch.tensor(normalisation.mean).view(1, -1, 1, 1))
        network.latent_std.copy_(torch.tensor(normalisation.std).view(1, -1, 1, 1))
        record = write_vae(folder, network, about)
        return f"tokenizer: {{kind: small-vae, folder: {folder}, sha256: {record.sha256}}}"


class Record(Settings):
    """Contents of `vae.json`."""

    format: Literal[1]
    kind: Literal["small-vae"]
    sha256: str
    shape: SmallVaeShape
    trained: Plain
    """How the tokenizer was trained, and its measured quality; for information only."""


def write_vae(folder: Path, network: Vae, trained: Plain) -> Record:
    def record(sha256: str) -> Record:
        return Record(format=FORMAT, kind="small-vae", sha256=sha256, shape=network.shape, trained=trained)

    return FILES.write(folder, network.state_dict(), record)


def is_trained(folder: Path) -> bool:
    return FILES.is_trained(folder)


def read_record(folder: Path) -> Record:
    return FILES.read_record(folder, Record)


def read_vae(folder: Path, sha256: str | None = None) -> Vae:
    """Load the network of a folder; refuse weights that do not match the record."""
    record = read_record(folder)
    network = Vae(record.shape)
    FILES.fill(folder, network, record.sha256, sha256)
    return network
