"""Base classes of settings for frozen image encoders (for metrics) and for teachers (for alignment).

Tensor dimensions are B (images), C (channels), H (rows), W (columns), L (tokens of the grid) and D (width of the
teacher).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tintype.errors import UserError
from tintype.pretrained.frozen import Compute, FrozenEncoder, FrozenNetwork, encode_evenly
from tintype.pretrained.hub import Checkpoint
from tintype.pretrained.packages import Untyped
from tintype.pretrained.preprocess import Preprocess
from tintype.pretrained.published import Outline
from tintype.pretrained.settings import Revision
from tintype.pretrained.weights import digest
from tintype.seams import Encoder
from tintype.settings import Part

HubArithmetic = Annotated[
    Compute,
    Field(
        description="Arithmetic of the network; tf32 and bf16 are several times faster on a GPU, but "
        "less precise than fp32"
    ),
]
HubCompile = Annotated[
    bool, Field(description="Compile the network with torch.compile, with one graph for each image shape")
]

COMMITS = {
    "facebook/dinov2-base": "f9e44c814b77203eaa57a6bdbbd535f21ede1415",
    "facebook/dinov2-large": "47b73eefe95e8d44ec3623f8890bd894b6ea2d6c",
    "facebook/dinov2-with-registers-large": "e4c89a4e05589de9b3e188688a303d0f3c04d0f3",
    "facebook/dinov3-vitl16-pretrain-lvd1689m": "ea8dc2863c51be0a264bab82070e3e8836b02d51",
    "google/siglip-so400m-patch14-384": "9fdffc58afc957d1a03a25b10dba0329ab15c2a3",
}
"""Default commits of repositories with safetensors, for settings without a revision."""

Grid = tuple[int, int]
"""Rows and columns of tokens."""


class EncoderPart(Part):
    """Settings of a frozen image encoder.

    `name` is part of the names of the encoder's metrics; the default is the kind.
    """

    reads_text: ClassVar[bool] = False

    name: str | None = Field(
        None, pattern=r"^[a-z0-9][a-z0-9-]*$", description="Name of this encoder in the names of its metrics"
    )

    @property
    def title(self) -> str:
        return self.name or self.kind

    @property
    def published(self) -> dict[str, str]:
        """Return the published names of metrics that use this encoder, by the kind of metric."""
        return {}

    def build(self, device: torch.device) -> Encoder:
        """Return the encoder, which is built once per device."""
        return _built(self, torch.device(device))

    def _make(self, device: torch.device) -> Encoder:
        raise NotImplementedError

    def outline(self) -> Outline | None:
        """Return the network without weights, for cost estimates; None if the sizes of the network are unknown."""
        return None


@lru_cache(maxsize=8)
def _built(settings: EncoderPart, device: torch.device) -> Encoder:
    return settings._make(device)


def forget_encoders() -> None:
    _built.cache_clear()


class HubEncoderPart(EncoderPart):
    """Settings of an encoder from transformers."""

    revision: Revision = None
    arithmetic: HubArithmetic = "fp32"
    compile: HubCompile = False

    @property
    def number_bytes(self) -> int:
        """Return the number of bytes of the network's dtype."""
        return 2 if self.arithmetic == "bf16" else 4

    def _checkpoint(self, source: str) -> Checkpoint:
        return Checkpoint(
            source, self.revision, self.arithmetic, commit=COMMITS.get(source), compile_network=self.compile
        )


class TransformersEncoder(FrozenEncoder):
    """An encoder from transformers, whose preprocessing comes from the checkpoint where settings are missing."""

    def __init__(
        self, name: str, checkpoint: Checkpoint, model: Untyped, how: Preprocess, output: str, device: torch.device
    ) -> None:
        patch_px = vision_config(model.config).patch_size
        size_px = how.sides[0]
        if size_px % patch_px:
            raise UserError(
                f"{checkpoint.words} has patches of {patch_px} px; size_px ({size_px}) must be a "
                f"multiple of the patch size"
            )
        self._checkpoint = checkpoint
        weights = digest(model.parameters())
        network = FrozenNetwork(
            model, how, checkpoint.words, output, weights, checkpoint.arithmetic, checkpoint.compile_network
        )
        super().__init__(name, network, device)


def vision_config(config: Untyped) -> Untyped:
    """If a network has several towers, return the config of the image tower."""
    return getattr(config, "vision_config", config)


class Teacher(FrozenEncoder):
    """A frozen network that encodes a clean image to one token for each token of the denoiser.

    The image is resized so that the two grids are equal. Class and register tokens are left out.
    """

    def __init__(self, kind: str, network: FrozenNetwork, device: torch.device, grid: Grid, width: int) -> None:
        of_the_grid = f"{network.output}, a grid of {grid[0]} × {grid[1]},"
        super().__init__(kind, replace(network, output=of_the_grid), device)
        self.grid, self.width, self.words = grid, width, network.words
        self._frozen = network

    @property
    def weights_digest(self) -> str:
        """Return a digest of the network's weights, which does not depend on the grid or the precision."""
        return self._frozen.weights_digest

    def at_grid(self, grid: Grid) -> Teacher:
        """Return a teacher with the same network for another grid."""
        preprocess = self._frozen.preprocess
        if isinstance(preprocess, Preprocess):  # any other preprocessing does not depend on the grid
            patch_px = preprocess.sides[0] // self.grid[0]
            preprocess = replace(preprocess, size_px=(grid[0] * patch_px, grid[1] * patch_px))
        return type(self)(self.name, replace(self._frozen, preprocess=preprocess), self._device, grid, self.width)

    def tokens(self, image_BCHW: Tensor, network_batch: int | None = None) -> Tensor:
        """Encode uint8 images to float32 [B, L, D], row by row, without gradient.

        With a `network_batch`, the network always gets batches of exactly this size, and the last batch is padded. On a
        CPU, the tokens of an image are then bit-identical for any other images in the batch.
        """
        input_BCHW = self.prepare(image_BCHW)
        if network_batch is None:
            return self.encode(input_BCHW)
        return encode_evenly(self.encode, input_BCHW, network_batch)

    def class_tokens(self, image_BCHW: Tensor) -> Tensor:
        """Encode uint8 images to class tokens, float32 [B, D], or else to the mean of the patch tokens."""
        return self.tokens(image_BCHW).mean(dim=1)


class TeacherPart(Part):
    """Settings of a teacher."""

    def width(self) -> int:
        """Return the width of the teacher's tokens, without loading its weights."""
        raise NotImplementedError

    def build(self, grid: Grid, device: torch.device) -> Teacher:
        raise NotImplementedError

    def outline(self, grid: Grid) -> Outline | None:
        """Return the network without weights, for cost estimates; None if the sizes of the network are unknown."""
        return None


def row_by_row(map_BDHW: Tensor) -> Tensor:
    return map_BDHW.flatten(2).transpose(1, 2)


@contextmanager
def offering_packaged_teacher() -> Iterator[None]:
    """Add a hint to a `UserError` that the packaged teacher needs no download."""
    try:
        yield
    except UserError as error:
        raise UserError(
            error.marked,
            "\nThe teacher 'scenes' is packaged and needs no download: teacher=scenes. This teacher has no "
            "attention, so haste cannot use it.",
        ) from error
