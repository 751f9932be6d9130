"""`taef2` is a tiny autoencoder with the latents of FLUX.2 (madebyollin/taef2), implemented in tintype.

The network was trained on images in [0, 1]. Dimensions are B (images), C (channels), H (rows) and W (columns).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.pretrained.published import without_numbers
from tintype.pretrained.settings import Source
from tintype.pretrained.weights import Weights, digest, fill, read_safetensors
from tintype.tokenizers.latent import Channels, LatentPart, Normalisation, PublishedTokenizer, Scale, StridePx, filled
from tintype.tokenizers.part import AutoencoderOutline

_WIDTH, _LATENT, _STRIDE_PX = 64, 32, 8
_POOL_WIDTH, _POOL_GROUPS = 256, 4
_CLAMP = 3.0


class Taef2Settings(LatentPart):
    """Settings of `taef2`. `weights` has the files taef2_encoder.safetensors and taef2_decoder.safetensors."""

    why_not_exported: ClassVar[str | None] = "diffusers has no class for it"

    kind: Literal["taef2"] = "taef2"
    weights: Source = "madebyollin/taef2"
    channels: Channels = _LATENT
    stride_px: StridePx = _STRIDE_PX
    scale: Scale = 1.15
    """The reciprocal of 0.87, the standard deviation of the latents on photographs. The checkpoint states no scale."""

    def build(self, device: torch.device) -> PublishedTokenizer:
        self.check_compression(_LATENT, _STRIDE_PX)
        network = Taef2()
        for part in ("encoder", "decoder"):
            fill(network.get_submodule(part), self._read(f"taef2_{part}.safetensors"))
        plain = Normalisation(filled(0.0, self.channels), filled(1.0, self.channels))
        return _Taef2(self, network, self.normalisation(lambda: plain), device)

    def outline(self) -> AutoencoderOutline:
        network = without_numbers(Taef2)
        return AutoencoderOutline(network, network.encoder, network.decoder, 2 if self.compute == "bf16" else 4)

    def _read(self, name: str) -> Weights:
        checkpoint = self.checkpoint
        file = checkpoint.file(name)
        if file is None:
            raise UserError(f"{checkpoint.words} has no {name}", "give a folder with the encoder and decoder of TAEF2")
        tensors = read_safetensors(file)
        return Weights(tensors, digest(tensors.values()), str(file))


class _Taef2(PublishedTokenizer):
    def _posterior(self, x_BCHW: Tensor) -> tuple[Tensor, None]:
        return self.network.encoder((x_BCHW + 1) / 2), None

    def _decoded(self, latent_BCHW: Tensor) -> Tensor:
        image_BCHW: Tensor = self.network.decoder(latent_BCHW)
        return image_BCHW * 2 - 1


class Taef2(nn.Module):
    """Encoder and decoder, whose layers have the same indices as in the published files."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            _conv(3, _WIDTH),
            _Block(),
            *(_down(), _Block(), _Block(), _Block()),
            *(_down(), _Block(), _Block(), _Block()),
            *(_down(), _Block(pooled=True), _Block(pooled=True), _Block(pooled=True)),
            _conv(_WIDTH, _LATENT),
        )
        self.decoder = nn.Sequential(
            _SoftClamp(),
            _conv(_LATENT, _WIDTH),
            nn.ReLU(),
            *(_Block(pooled=True), _Block(pooled=True), _Block(pooled=True), *_up()),
            *(_Block(), _Block(), _Block(), *_up()),
            *(_Block(), _Block(), _Block(), *_up()),
            _Block(),
            _conv(_WIDTH, 3),
        )


def _conv(channels_in: int = _WIDTH, channels_out: int = _WIDTH, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, padding=1, stride=stride, bias=bias)


def _down() -> nn.Conv2d:
    return _conv(stride=2, bias=False)


def _up() -> list[nn.Module]:
    return [nn.Upsample(scale_factor=2), _conv(bias=False)]


class _SoftClamp(nn.Module):
    def forward(self, x_BCHW: Tensor) -> Tensor:
        return (x_BCHW / _CLAMP).tanh() * _CLAMP


class _Block(nn.Module):
    """A residual block of three convolutions; if `pooled`, first add features normalised over the whole image."""

    def __init__(self, pooled: bool = False) -> None:
        super().__init__()
        self.conv = nn.Sequential(_conv(), nn.ReLU(), _conv(), nn.ReLU(), _conv())
        self.pool = _pool() if pooled else None

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if self.pool is not None:
            x_BCHW = x_BCHW + self.pool(x_BCHW)
        out_BCHW: Tensor = (self.conv(x_BCHW) + x_BCHW).relu()
        return out_BCHW


def _pool() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(_WIDTH, _POOL_WIDTH, 1, bias=False),
        nn.GroupNorm(_POOL_GROUPS, _POOL_WIDTH),
        nn.ReLU(),
        nn.Conv2d(_POOL_WIDTH, _WIDTH, 1, bias=False),
    )
