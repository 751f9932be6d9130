"""Base of the perceptual losses, in which a frozen network compares the predicted image with the true image.

The idea is PixelGen's (arXiv 2602.02493) and needs a denoiser that predicts pixels. The network's weights are not part
of the trained model, since no gradient reaches them and no checkpoint has them.

B: samples. N: samples below the threshold. C: channels. H, W: rows, columns. O, I: output and input pixels along one
axis.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from tintype.losses.part import LossPart, PlanView
from tintype.pretrained.preprocess import Resampling, resize
from tintype.seams import LossContext, LossInputs, LossTerm


class Distance(Protocol):
    """Distance of each (predicted, true) pair of images in [-1, 1], in fp32, independent of other pairs."""

    @property
    def identity(self) -> str:
        """Return the SHA-256 over the network's weights."""

    def __call__(self, predicted_BCHW: Tensor, true_BCHW: Tensor) -> Tensor: ...


class PerceptualPart(LossPart):
    """Settings of a perceptual loss of the predicted image.

    PixelGen's threshold of 0.3 equals `threshold: 0.7`, since PixelGen's time has the opposite direction. PRX uses all
    samples, which equals `threshold: 1`.
    """

    any_shape: ClassVar[bool] = True

    threshold: float = Field(
        1.0, gt=0, le=1, description="Only samples with t below this value have this loss; 1: all samples"
    )
    compute: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Compute type of the network; PRX uses bf16. Computations on the features are always in fp32",
    )
    compile: bool = Field(
        False, description="Compile the network with torch.compile, with one graph for each image shape"
    )

    def identity(self, weights: str) -> str:
        """Return the digest of the weights, and of the settings that change the output."""
        how = [*(["bf16"] if self.compute == "bf16" else []), *(["compiled"] if self.compile else [])]
        return " ".join([weights, *how])

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        if plan.objective.predicts != "x":
            raise ValueError(
                f"'{self.kind}' compares the image that the model predicts with the true one, but objective.kind "
                f"'{plan.objective.kind}' predicts a {plan.objective.predicts}; apply x-prediction too"
            )
        if plan.tokenizer.kind != "pixels":
            raise ValueError(
                f"'{self.kind}' compares pixels, but with tokenizer.kind '{plan.tokenizer.kind}' the model "
                f"predicts latents; use tokenizer.kind=pixels"
            )

    def load(self, device: torch.device) -> Distance:
        raise NotImplementedError

    def fetch(self, grid: tuple[int, int]) -> None:
        self.load(torch.device("cpu"))

    def build(self, context: LossContext) -> PerceptualTerm:
        return PerceptualTerm(self, context.device)


class PerceptualTerm(LossTerm):
    """Loss term that runs its network in its own dtype. As it is no module, the network is not trained or saved."""

    def __init__(self, settings: PerceptualPart, device: torch.device) -> None:
        self._settings, self._device = settings, device
        self._distance: Distance | None = None

    def ready(self) -> str:
        self._distance = self._settings.load(self._device)
        return self._distance.identity

    def release(self) -> None:
        self._distance = None

    def loss(self, inputs: LossInputs) -> Tensor:
        """Return each sample's loss: 0, without the network, for samples with t at or above the threshold."""
        if self._distance is None:
            raise RuntimeError(f"{self._settings.kind}: call ready() before loss()")
        if inputs.image_BCHW is None:
            raise RuntimeError(f"{self._settings.kind}: the loss needs the images, which were not fetched")
        predicted_BCHW, image_BCHW = inputs.output.prediction_BCHW, inputs.image_BCHW
        if self._settings.threshold == 1:  # t is always below 1, and a check would wait for the GPU
            return self._compared(self._distance, predicted_BCHW, image_BCHW)
        loss_B = torch.zeros(len(image_BCHW), device=image_BCHW.device)
        near_N = (inputs.sample.t_B < self._settings.threshold).nonzero()[:, 0]
        if not len(near_N):
            return loss_B
        near_loss_N = self._compared(self._distance, predicted_BCHW[near_N], image_BCHW[near_N])
        return loss_B.index_put((near_N,), near_loss_N)

    def _compared(self, distance: Distance, predicted_BCHW: Tensor, image_BCHW: Tensor) -> Tensor:
        with torch.autocast(self._device.type, enabled=False):
            return distance(predicted_BCHW.float(), image_BCHW.float() / 127.5 - 1)


def resized(image_BCHW: Tensor, height: int, width: int) -> Tensor:
    """Resize images with the antialiased bilinear filter. Gradients pass through.

    The resize uses matrix products, since the backward pass of torch's own resize is not deterministic on a GPU.
    """
    rows_OI = _axis(image_BCHW.shape[-2], height, image_BCHW.device)
    columns_OI = _axis(image_BCHW.shape[-1], width, image_BCHW.device)
    return rows_OI @ (image_BCHW @ columns_OI.T)


@lru_cache(maxsize=64)
def _axis(in_px: int, out_px: int, device: torch.device) -> Tensor:
    """Return the resize weights of one axis, by resizing an identity matrix."""
    unit_II = torch.eye(in_px)
    weights_OI = resize(unit_II[None, None], out_px, in_px, Resampling("bilinear", clip=False))[0, 0]
    return weights_OI.to(device, torch.float32)
