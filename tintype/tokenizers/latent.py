"""Use frozen autoencoders as tokenizers, in fixed arithmetic, with latents normalised to mean 0 and deviation 1.

Tensor dimensions are B (images), C (channels), H (rows) and W (columns) of the image or of the latents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.pretrained.frozen import Compute, encode_evenly, frozen_arithmetic
from tintype.pretrained.hub import Checkpoint
from tintype.pretrained.packages import Untyped
from tintype.pretrained.settings import PretrainedPart
from tintype.pretrained.weights import digest
from tintype.runtime.identity import check_pin
from tintype.seams import DiffusersForm, Draws
from tintype.tokenizers.part import Compression, TokenizerPart, to_bytes, to_floats
from tintype.wording import setting

Numbers = float | Annotated[tuple[float, ...], Field(strict=False)]
"""One number for all channels, or one per channel. The field is not strict, so a plan file may use a list."""
Channels = Annotated[int, Field(ge=1, description="Number of channels of a latent")]
StridePx = Annotated[int, Field(ge=1, description="Number of pixels per latent along each side")]
Scale = Annotated[
    Numbers | None,
    Field(
        description="Shift and scale of the latents, z = (latent - shift) · scale: one number, or one for each channel"
    ),
]

_MOST_PX = 4 * 1024**2
"""Maximum number of pixels per call of the network, since an autoencoder needs gigabytes per image of 1024 px."""

CPU_BATCH = 8
"""Fixed number of images per CPU pass: rounding depends on it, and a latent must depend only on its image."""

MOST_MEAN, LEAST_STD, MOST_STD = 0.5, 0.5, 2.0
"""Bounds on the mean and standard deviation over all channels."""
CHANNEL_MEAN, CHANNEL_LEAST_STD, CHANNEL_MOST_STD = 3.0, 0.1, 4.0
"""Bounds on the mean and standard deviation of each channel; wide, since channels and data sets differ.

On scenes and photographs, TAEF2's channels have means up to 1.4 and standard deviations of 0.5 to 1.6.
"""
_TINY = 1e-8


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of latents, z = (latent - shift) · scale, in fp32.

    Shift and scale are tiles [C, h, w], larger than 1 × 1 if numbers depend on a latent's position in a patch.
    """

    shift_CHW: Tensor
    scale_CHW: Tensor

    def to(self, device: torch.device) -> Normalisation:
        return Normalisation(self.shift_CHW.to(device), self.scale_CHW.to(device))

    def apply(self, latent_BCHW: Tensor) -> Tensor:
        size = latent_BCHW.shape[2:]
        return (latent_BCHW.float() - _repeated(self.shift_CHW, size)) * _repeated(self.scale_CHW, size)

    def undo(self, z_BCHW: Tensor) -> Tensor:
        size = z_BCHW.shape[2:]
        return z_BCHW.float() / _repeated(self.scale_CHW, size) + _repeated(self.shift_CHW, size)


def filled(numbers: Numbers | Sequence[float], channels: int) -> Tensor:
    """Expand one number, or one number per channel, to [C, 1, 1]."""
    return torch.tensor(numbers, dtype=torch.float32).expand(channels).reshape(-1, 1, 1).clone()


def _repeated(tile_CHW: Tensor, size: Sequence[int]) -> Tensor:
    """Tile over `size` rows and columns; a 1 × 1 tile is unchanged, since broadcasting expands it."""
    _, rows, columns = tile_CHW.shape
    if rows == columns == 1:
        return tile_CHW
    return tile_CHW.repeat(1, -(-size[0] // rows), -(-size[1] // columns))[:, : size[0], : size[1]]


class LatentPart(PretrainedPart, TokenizerPart):
    """Settings shared by all autoencoders. `scale` and `shift` override the checkpoint's normalisation."""

    channels: Channels
    stride_px: StridePx
    scale: Scale = None
    shift: Numbers | None = Field(
        None, description="Shift of the latents; by default, shift and scale are those of the checkpoint"
    )

    def problems(self) -> Iterator[str]:
        if self.scale == 0 or (isinstance(self.scale, tuple) and 0 in self.scale):
            yield "a scale of 0 leaves nothing of the latents"
        for name, value in (("scale", self.scale), ("shift", self.shift)):
            if isinstance(value, tuple) and len(value) != self.channels:
                yield f"{name} has {len(value)} numbers for {self.channels} channels"

    @property
    def compression(self) -> Compression:
        return Compression(self.channels, self.stride_px)

    @property
    def sampled(self) -> bool:
        """Return whether latents are sampled from the encoder's Gaussian."""
        return False

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the autoencoder's checkpoint: a local folder with a config.json, or else a pipeline's subfolder."""
        found = super().checkpoint
        if found.folder is not None and (found.folder / "config.json").is_file():
            return Checkpoint(self.weights)
        return found

    def check_compression(self, channels: int, stride_px: int) -> None:
        """Refuse weights whose channels or stride differ from the settings with which the plan was checked."""
        for name, ours, theirs in (("channels", self.channels, channels), ("stride_px", self.stride_px, stride_px)):
            if ours != theirs:
                raise UserError(
                    f"tokenizer.{name} is {ours}, but the autoencoder in {self.checkpoint.words} has {theirs}",
                    f"use {setting(f'tokenizer.{name}', theirs)}, or other weights",
                )

    def normalisation(self, stated: Callable[[], Normalisation]) -> Normalisation:
        """Return shift and scale from the settings; a missing number comes from the checkpoint (`stated`)."""
        own = None if self.shift is not None and self.scale is not None else stated()
        return Normalisation(
            own.shift_CHW if own and self.shift is None else filled(self.shift or 0.0, self.channels),
            own.scale_CHW if own and self.scale is None else filled(self.scale or 1.0, self.channels),
        )


class LatentTokenizer:
    """A frozen autoencoder. Subclasses implement encoding and decoding of images in [-1, 1], and the normalisation."""

    def __init__(
        self, network: Untyped, size: Compression, identity: str, *, sampled: bool = False, compute: Compute = "fp32"
    ) -> None:
        """Freeze a network on its device; if `sampled`, latents are drawn from the encoder's Gaussian."""
        self.channels, self.stride_px, self.identity = size.channels, size.stride_px, identity
        self._dtype = torch.bfloat16 if compute == "bf16" else torch.float32
        frozen = network.eval().requires_grad_(False)
        self.network: Untyped = nn.Module.to(frozen, self._dtype)  # avoids needless warnings of diffusers' own `to`
        self.moment_channels = self.channels * (2 if sampled else 1)
        self.arithmetic = f"{compute}, {'mean and deviation' if sampled else 'mean'} of the posterior"
        self._sampled, self._compute = sampled, compute
        self._device = next(network.parameters()).device

    def encode(self, image_BCHW: Tensor, draws: Draws | None = None) -> Tensor:
        """Encode images. Only sampling from the posterior needs draws (a source of random numbers)."""
        return self.drawn(self.moments(image_BCHW), draws)

    def moments(self, image_BCHW: Tensor) -> Tensor:
        """Return normalised latents; with sampling, the Gaussian's mean and standard deviation before normalisation."""
        most = images_at_a_time(*checked_size(image_BCHW, self.stride_px))
        with self._frozen():
            if self._device.type == "cpu":
                return encode_evenly(self._moments, image_BCHW, min(CPU_BATCH, most))
            return torch.cat([self._moments(some_BCHW) for some_BCHW in image_BCHW.split(most)])

    def _moments(self, image_BCHW: Tensor) -> Tensor:
        """Return contiguous moments, like cached ones, since the layout decides the order of sums in later kernels."""
        mean_BCHW, std_BCHW = self._posterior(to_floats(image_BCHW.to(self._device)).to(self._dtype))
        if std_BCHW is None or not self._sampled:
            return self._normalised(mean_BCHW.float()).contiguous()
        return torch.cat([mean_BCHW.float(), std_BCHW.float()], dim=1).contiguous()

    def drawn(self, moment_BCHW: Tensor, draws: Draws | None) -> Tensor:
        if not self._sampled:
            return moment_BCHW
        if draws is None:
            raise TypeError("sampling from the posterior needs draws (a source of random numbers)")
        mean_BCHW, std_BCHW = moment_BCHW.chunk(2, dim=1)
        with self._frozen():
            return self._normalised(mean_BCHW + std_BCHW * draws.normal("posterior", tuple(mean_BCHW.shape[1:])))

    def decode(self, z_BCHW: Tensor) -> Tensor:
        return to_bytes(self.decode_float(z_BCHW)).contiguous()

    def decode_float(self, z_BCHW: Tensor) -> Tensor:
        """Decode to floats in about [-1, 1], before rounding to bytes."""
        height, width = (side * self.stride_px for side in z_BCHW.shape[2:])
        with self._frozen():
            latent_BCHW = self._raw(z_BCHW.float()).to(self._dtype)
            decoded = [self._decoded(some).float() for some in latent_BCHW.split(images_at_a_time(height, width))]
            return torch.cat(decoded)

    def diffusers_form(self) -> DiffusersForm | None:
        return None

    def _frozen(self) -> AbstractContextManager[None]:
        return frozen_arithmetic(self._device, self._compute)

    def _posterior(self, x_BCHW: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return mean and standard deviation of each latent; the latter is None for a network without a Gaussian."""
        raise NotImplementedError

    def _decoded(self, latent_BCHW: Tensor) -> Tensor:
        raise NotImplementedError

    def _normalised(self, latent_BCHW: Tensor) -> Tensor:
        raise NotImplementedError

    def _raw(self, z_BCHW: Tensor) -> Tensor:
        raise NotImplementedError


class PublishedTokenizer(LatentTokenizer):
    """The autoencoder of a checkpoint, with the normalisation from its settings or its config."""

    def __init__(
        self, settings: LatentPart, network: nn.Module, normalisation: Normalisation, device: torch.device
    ) -> None:
        identity = digest([*network.state_dict().values(), normalisation.shift_CHW, normalisation.scale_CHW])
        what = f"the weights and the normalisation of {settings.checkpoint.words}"
        check_pin("tokenizer.sha256", settings.sha256, what, identity, "take the right weights")
        super().__init__(
            network.to(device), settings.compression, identity, sampled=settings.sampled, compute=settings.compute
        )
        self.normalisation = normalisation.to(device)

    def _normalised(self, latent_BCHW: Tensor) -> Tensor:
        return self.normalisation.apply(latent_BCHW)

    def _raw(self, z_BCHW: Tensor) -> Tensor:
        return self.normalisation.undo(z_BCHW)

    def check_latents(self, mean_C: Tensor, std_C: Tensor) -> str | None:
        mean = float(mean_C.mean())
        std = float((std_C.square() + (mean_C - mean).square()).mean().sqrt())
        scale_C, shift_C = (
            numbers.mean((1, 2)).cpu() for numbers in (self.normalisation.scale_CHW, self.normalisation.shift_CHW)
        )
        if not (abs(mean) <= MOST_MEAN and LEAST_STD <= std <= MOST_STD):
            scale, shift = float(scale_C.mean()), float(shift_C.mean())
            return (
                f"the latents have mean {mean:.3g} and deviation {std:.3g} over all channels, where a tokenizer must "
                f"give about 0 and 1 (within {MOST_MEAN:g}, and from {LEAST_STD:g} to {MOST_STD:g}): noise would be "
                f"too strong or too weak for them. Are these the right weights? Right for this data would be "
                f"tokenizer.shift={shift + mean / scale:.4g} and tokenizer.scale={scale / max(std, _TINY):.4g}"
            )
        odd_C = (mean_C.abs() > CHANNEL_MEAN) | (std_C < CHANNEL_LEAST_STD) | (std_C > CHANNEL_MOST_STD)
        if not odd_C.any():
            return None
        odd = [int(channel) for channel in odd_C.nonzero()]
        return (
            f"{len(odd)} of {len(mean_C)} channels of the latents are far from mean 0 and deviation 1: channel "
            f"{odd[0]} has {float(mean_C[odd[0]]):.3g} and {float(std_C[odd[0]]):.3g}. Right for this data would be "
            f"tokenizer.shift={_listed(shift_C + mean_C / scale_C)} and "
            f"tokenizer.scale={_listed(scale_C / std_C.clamp_min(_TINY))}"
        )


def checked_size(image_BCHW: Tensor, stride_px: int) -> tuple[int, int]:
    """Return height and width; raise if images are not uint8 or their size is not a multiple of the stride."""
    if image_BCHW.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, not {image_BCHW.dtype}")
    height, width = image_BCHW.shape[2:]
    if height % stride_px or width % stride_px:
        raise UserError(
            f"images of {width} × {height} px cannot be encoded: the tokenizer makes one latent of {stride_px} × "
            f"{stride_px} px",
            f"choose sizes that are multiples of {stride_px}",
        )
    return height, width


def images_at_a_time(height: int, width: int) -> int:
    """Return how many images of this size a frozen network processes at a time."""
    return max(1, _MOST_PX // (height * width))


def _listed(numbers_C: Tensor) -> str:
    return "[" + ",".join(f"{float(number):.4g}" for number in numbers_C) + "]"
