"""perceptual-dino: DINOv2's patch tokens of the predicted image are trained to equal those of the true image.

The loss is PixelGen's P-DINO loss (arXiv 2602.02493), as implemented in PRX's speedrun. Pixels are clamped to the range
of images, and the whole image is resized to 224 px. The loss is one minus the mean cosine over the patches.

Unlike in PRX, the loss runs in fp32 by default instead of bf16, and the resize is antialiased. An image that is not
square keeps approximately its proportions, with about as many patches as a square image.

B: samples. C: channels. H, W: rows, columns. L: patches. D: width of the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tintype.errors import UserError
from tintype.losses.perceptual import PerceptualPart, resized
from tintype.pretrained.frozen import compile_network
from tintype.pretrained.hub import Checkpoint
from tintype.pretrained.preprocess import IMAGENET_MEAN, IMAGENET_STD
from tintype.pretrained.settings import Revision, Source
from tintype.pretrained.weights import digest
from tintype.vision.dino import DINOV2
from tintype.vision.part import COMMITS


class PerceptualDinoSettings(PerceptualPart):
    kind: Literal["perceptual-dino"] = "perceptual-dino"
    weight: float = Field(0.01, gt=0, description="Weight of this term in the sum of the losses")
    source: Source = "facebook/dinov2-with-registers-base"
    revision: Revision = None
    size_px: int = Field(224, ge=1, description="Side of the network's input in pixels; a multiple of its patch size")

    def load(self, device: torch.device) -> DinoDistance:
        checkpoint = Checkpoint(self.source, self.revision, commit=COMMITS.get(self.source))
        network = checkpoint.model(DINOV2)
        if self.size_px % network.config.patch_size:
            raise UserError(
                f"{self.kind}: {checkpoint.words} has patches of {network.config.patch_size} px; size_px "
                f"({self.size_px}) must be a multiple of the patch size"
            )
        mean_C11, std_C11 = (
            torch.tensor(values, device=device).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD)
        )
        identity = self.identity(digest(network.parameters()))
        dtype = torch.bfloat16 if self.compute == "bf16" else torch.float32
        frozen = network.eval().requires_grad_(False).to(device, dtype)
        if self.compile:
            compile_network(frozen)
        return DinoDistance(frozen, self.size_px, mean_C11, std_C11, identity)


@dataclass(frozen=True)
class DinoDistance:
    network: Any
    size_px: int
    mean_C11: Tensor
    std_C11: Tensor
    identity: str

    def __call__(self, predicted_BCHW: Tensor, true_BCHW: Tensor) -> Tensor:
        cosine_BL = cosine_similarity(self._patches(predicted_BCHW), self._patches(true_BCHW), dim=-1)
        return 1 - cosine_BL.mean(dim=1)

    def _patches(self, image_BCHW: Tensor) -> Tensor:
        """Return the patch tokens, which come after the class token and the registers."""
        patch_px: int = self.network.config.patch_size
        height, width = image_BCHW.shape[-2:]
        rows, columns = patch_grid(height, width, self.size_px // patch_px)
        unit_BCHW = ((resized(image_BCHW, rows * patch_px, columns * patch_px) + 1) / 2).clamp(0, 1)
        input_BCHW = ((unit_BCHW - self.mean_C11) / self.std_C11).to(self.network.dtype)
        token_BLD: Tensor = self.network(pixel_values=input_BCHW).last_hidden_state
        return token_BLD[:, -rows * columns :].to(unit_BCHW.dtype)


def patch_grid(height: int, width: int, side: int) -> tuple[int, int]:
    """Return a grid's rows and columns with about side² patches and the image's proportions; exact for a square."""
    ratio = math.sqrt(height / width)
    return max(1, round(side * ratio)), max(1, round(side / ratio))
