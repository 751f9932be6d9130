"""A discriminator of image patches, to train an autoencoder's decoder (PatchGAN, arXiv 1611.07004).

The hinge losses are those of LDM and REPA-E (arXiv 2112.10752, 2504.10483). Differs: group norm is used in place of
batch norm. So an image's score does not depend on the other images of the batch. The losses do not depend on the batch
size or the number of ranks. The weight of the generator's loss is fixed, as in REPA-E. In LDM, it depends on the norms
of two gradients.

A trainer adds `weight · generator_loss(seen)` to the autoencoder's loss, and minimises `discriminator_loss(seen, true)`
over this module's parameters. The gradient of each loss is zero for the other network, so both losses can share one
backward pass.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import relu

from tintype.rng import seeded
from tintype.settings import Settings

SMALLEST_PX = 24
"""Smallest side of an image. A smaller image contains no patch."""

_GROUPS = 8
_LAYERS = 3
_SLOPE = 0.2
_WEIGHT_STD = 0.02


class DiscriminatorSettings(Settings):
    """Settings of the discriminator of LDM and REPA-E.

    By default, the discriminator is off; REPA-E uses `weight: 0.1`.
    """

    weight: float = Field(0.0, ge=0, description="Weight of the adversarial loss; 0: no discriminator. REPA-E uses 0.1")
    start_step: int = Field(
        2000, ge=0, description="First step at which the discriminator is trained and its loss is used"
    )
    lr: float = Field(1e-4, gt=0, description="Constant learning rate of the discriminator")
    width: int = Field(
        64,
        ge=_GROUPS,
        multiple_of=_GROUPS,
        description="Number of channels at half the resolution; it doubles with each halving",
    )

    def on_at(self, step: int) -> bool:
        return self.weight > 0 and step >= self.start_step

    def check(self, size_px: int, steps: int, size_setting: str, where: str = "") -> None:
        """Raise ValueError if images are too small, or if training ends before the discriminator's first step."""
        if self.weight and size_px < SMALLEST_PX:
            raise ValueError(
                f"{where}adversarial: the discriminator needs {size_setting} of at least {SMALLEST_PX}, but it "
                f"is {size_px}; use larger images, or adversarial.weight=0"
            )
        if self.weight and self.start_step >= steps:
            raise ValueError(
                f"{where}adversarial.start_step ({self.start_step}) is not before the last of {steps} steps, so "
                f"the discriminator would never be used; set an earlier step"
            )

    def build(self, seed: int) -> Discriminator | None:
        """Return a new discriminator, initialised from its own random stream; None if its weight is 0."""
        if not self.weight:
            return None
        with seeded(seed, "adversary"):
            return Discriminator(self.width)


class Discriminator(nn.Module):
    """Maps images in [-1, 1] to one logit per patch of 70 × 70 px. A high logit means that the patch looks real."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(_LAYERS + 1)]
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=2, padding=1), nn.LeakyReLU(_SLOPE)]
        for level in range(1, _LAYERS + 1):
            stride = 2 if level < _LAYERS else 1
            layers += [
                nn.Conv2d(widths[level - 1], widths[level], 4, stride=stride, padding=1, bias=False),
                nn.GroupNorm(_GROUPS, widths[level]),
                nn.LeakyReLU(_SLOPE),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, padding=1))
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0.0, _WEIGHT_STD)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        logit_B1HW: Tensor = self.layers(x_BCHW.contiguous(memory_format=torch.channels_last))
        return logit_B1HW.float()

    def generator_loss(self, seen_BCHW: Tensor) -> Tensor:
        """Return the decoder's loss, whose gradient reaches the images, but not this module's parameters."""
        frozen = {name: parameter.detach() for name, parameter in self.named_parameters()}
        return generator_hinge(functional_call(self, frozen, (seen_BCHW,)))

    def discriminator_loss(self, seen_BCHW: Tensor, true_BCHW: Tensor) -> Tensor:
        """Return this module's loss, whose gradient reaches this module's parameters, but not the images."""
        return discriminator_hinge(self(seen_BCHW.detach()), self(true_BCHW.detach()))


def generator_hinge(seen_logit: Tensor) -> Tensor:
    return -seen_logit.mean()


def discriminator_hinge(seen_logit: Tensor, true_logit: Tensor) -> Tensor:
    """Return the hinge loss: zero if all logits of real images are at least 1, and of generated ones at most -1."""
    return 0.5 * (relu(1.0 - true_logit).mean() + relu(1.0 + seen_logit).mean())
