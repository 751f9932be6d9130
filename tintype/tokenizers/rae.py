"""`rae` has a frozen representation encoder, whose tokens are the latents, and a trained transformer as decoder.

(Zheng et al. 2025, "Diffusion Transformers with Representation Autoencoders", arXiv 2510.11690.)

A latent is the encoder's token for a patch, after a layer norm over channels without weights. `encode` then normalises
each channel by its mean and standard deviation, which were measured after training.

Differs: the encoder's own last norm keeps its weights, and the authors normalise each position separately. The decoder
has no class token.

Tensor dimensions are B (images), C (channels of the latents), H (rows), W (columns), L (tokens) and D (width of the
decoder).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, pixel_shuffle, scaled_dot_product_attention

from tintype.pretrained.weights import digest
from tintype.runtime.identity import check_same
from tintype.settings import Plain, Settings
from tintype.tokenizers.part import AutoencoderOutline, Compression
from tintype.tokenizers.trained_folder import FolderPart, MeasuredTokenizer, TrainedFiles
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.encoders import TeacherChoice
from tintype.vision.part import Grid, Teacher, TeacherPart

WEIGHTS_NAME, RECORD_NAME = "rae.safetensors", "rae.json"
FORMAT: Literal[1] = 1
FILES = TrainedFiles("rae", WEIGHTS_NAME, RECORD_NAME, FORMAT, "tintype tokenizer train --kind rae --out DIR")

DEFAULT_ENCODER = Dinov2TeacherSettings(source="facebook/dinov2-with-registers-base")
_CPU = torch.device("cpu")
_FIRST_GRID = (4, 4)
_EPS = 1e-6
_LONGEST = 10_000.0
"""Longest wavelength of the position encoding, in patches divided by 2 π."""


class RaeShape(Settings):
    """Settings of the decoder's shape, by default a ViT-B; the largest decoder of the authors is a ViT-XL."""

    stride_px: int = Field(
        16, ge=2, description="Number of pixels along each side of a latent, which is also the decoder's patch size"
    )
    width: int = Field(768, ge=4, multiple_of=4, description="Width of the decoder's tokens")
    depth: int = Field(12, ge=1, description="Number of blocks of the decoder")
    heads: int = Field(12, ge=1, description="Number of attention heads; must divide width")

    @model_validator(mode="after")
    def _divides(self) -> RaeShape:
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        return self


class RaeEncoder:
    """A frozen network as the encoder, for images of any size. All image sizes use the same network."""

    def __init__(self, settings: TeacherPart, stride_px: int, device: torch.device) -> None:
        first = settings.build(_FIRST_GRID, device)
        self.digest, self.channels, self.arithmetic = first.weights_digest, first.width, first.arithmetic
        self._first, self._stride_px = first, stride_px
        self._teachers: dict[Grid, Teacher] = {_FIRST_GRID: first}

    def __call__(self, image_BCHW: Tensor) -> Tensor:
        """Encode uint8 images to latents, float32 [B, C, H / stride, W / stride], without gradients."""
        height, width = image_BCHW.shape[-2:]
        grid = height // self._stride_px, width // self._stride_px
        if grid not in self._teachers:
            self._teachers[grid] = self._first.at_grid(grid)
        token_BLC = layer_norm(self._teachers[grid].tokens(image_BCHW), (self.channels,), eps=_EPS)
        raw_BCHW: Tensor = token_BLC.transpose(1, 2).unflatten(2, grid)
        return raw_BCHW


class _Block(nn.Module):
    """A pre-norm transformer block with attention and an MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, token_BLD: Tensor) -> Tensor:
        qkv_BLD = self.qkv(self.attention_norm(token_BLD))
        query, key, value = (one.unflatten(2, (self.heads, -1)).transpose(1, 2) for one in qkv_BLD.chunk(3, dim=2))
        seen_BLD = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        token_BLD = token_BLD + self.out(seen_BLD)
        added_BLD: Tensor = self.down(gelu(self.up(self.mlp_norm(token_BLD))))
        return token_BLD + added_BLD


class RaeDecoder(nn.Module):
    """The trained decoder in fp32, together with the statistics of the latents. Images are floats in [-1, 1]."""

    latent_mean: Tensor
    latent_std: Tensor

    def __init__(self, shape: RaeShape, channels: int) -> None:
        super().__init__()
        self.shape, self.channels = shape, channels
        self.embed = nn.Linear(channels, shape.width)
        self.blocks = nn.ModuleList(_Block(shape.width, shape.heads) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)
        self.pixels = nn.Linear(shape.width, 3 * shape.stride_px**2)
        self.register_buffer("latent_mean", torch.zeros(1, channels, 1, 1))
        self.register_buffer("latent_std", torch.ones(1, channels, 1, 1))

    def decode_raw(self, raw_BCHW: Tensor) -> Tensor:
        """Decode latents before normalisation, in the scale of the encoder's output."""
        rows, columns = raw_BCHW.shape[-2:]
        token_BLD = self.embed(raw_BCHW.flatten(2).transpose(1, 2))
        token_BLD = token_BLD + positions(rows, columns, self.shape.width, raw_BCHW.device)
        for block in self.blocks:
            token_BLD = block(token_BLD)
        pixel_BLP = self.pixels(self.norm(token_BLD)).float()
        return pixel_shuffle(pixel_BLP.transpose(1, 2).unflatten(2, (rows, columns)), self.shape.stride_px)


def positions(rows: int, columns: int, width: int, device: torch.device) -> Tensor:
    """Return position encodings [L, width]; one half has sines and cosines of the row, the other half of the column."""
    quarter = width // 4
    frequency = _LONGEST ** -(torch.arange(quarter, dtype=torch.float64, device=device) / quarter)
    row_L, column_L = torch.meshgrid(
        torch.arange(rows, dtype=torch.float64, device=device),
        torch.arange(columns, dtype=torch.float64, device=device),
        indexing="ij",
    )
    angles = [place_L.flatten()[:, None] * frequency for place_L in (row_L, column_L)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1).float()


class Rae(MeasuredTokenizer):
    """The tokenizer: its latents are the encoder's tokens, normalised."""

    network: RaeDecoder

    def __init__(self, network: RaeDecoder, encoder: RaeEncoder) -> None:
        identity = hashlib.sha256((digest(network.state_dict().values()) + encoder.digest).encode()).hexdigest()
        super().__init__(network, Compression(network.channels, network.shape.stride_px), identity)
        self.arithmetic = f"{encoder.arithmetic}, normalised tokens"
        self._encoder = encoder

    def _moments(self, image_BCHW: Tensor) -> Tensor:
        return self._normalised(self._encoder(image_BCHW.to(self._device))).contiguous()

    def _decoded(self, latent_BCHW: Tensor) -> Tensor:
        return self.network.decode_raw(latent_BCHW)


class RaeSettings(FolderPart):
    """A trained rae.

    The record in the tokenizer's folder names the encoder, which is loaded from its original source.
    """

    files: ClassVar[TrainedFiles] = FILES

    kind: Literal["rae"] = "rae"

    def recorded(self, folder: Path) -> tuple[Compression, Plain]:
        record = FILES.read_record(folder, Record)
        return Compression(record.channels, record.shape.stride_px), record.trained

    def build(self, device: torch.device = _CPU) -> Rae:
        record = FILES.read_record(self.place, Record)
        self.check_shape(Compression(record.channels, record.shape.stride_px))
        network = RaeDecoder(record.shape, record.channels)
        FILES.fill(self.place, network, record.sha256, self.sha256)
        encoder = RaeEncoder(record.encoder, record.shape.stride_px, device)
        remedy = "put the encoder's weights back, or train anew"
        check_same(self.place / RECORD_NAME, "weights of the encoder", record.encoder_digest, encoder.digest, remedy)
        return Rae(network.to(device), encoder)

    def outline(self) -> AutoencoderOutline | None:
        if not FILES.is_trained(self.place):
            return None
        record = FILES.read_record(self.place, Record)
        if (encoder := record.encoder.outline(_FIRST_GRID)) is None:
            return None
        with torch.device("meta"):
            network = RaeDecoder(record.shape, record.channels).requires_grad_(False)

        def encode(image_BCHW: Tensor) -> None:
            height, width = (side // record.shape.stride_px for side in image_BCHW.shape[2:])
            own = record.encoder.outline((height, width))
            assert own is not None
            own.forward(image_BCHW.new_empty(len(image_BCHW), 3, *own.input_px))

        return AutoencoderOutline(nn.ModuleList([network, encoder.network]), encode, network.decode_raw)


class Record(Settings):
    """Contents of `rae.json`."""

    format: Literal[1]
    kind: Literal["rae"]
    sha256: str
    shape: RaeShape
    channels: int
    encoder: TeacherChoice
    encoder_digest: str
    """Digest of the encoder's weights."""
    trained: Plain
    """How the tokenizer was trained, and its measured quality; for information only."""


def write_rae(folder: Path, network: RaeDecoder, settings: TeacherPart, encoder_digest: str, trained: Plain) -> Record:
    def record(sha256: str) -> Record:
        return Record(
            format=FORMAT,
            kind="rae",
            sha256=sha256,
            shape=network.shape,
            channels=network.channels,
            encoder=settings,
            encoder_digest=encoder_digest,
            trained=trained,
        )

    return FILES.write(folder, network.state_dict(), record)
