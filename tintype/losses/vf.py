"""VA-VAE's VF loss: an autoencoder's latents are trained to have the similarities of a frozen teacher's tokens.

Yao et al. 2025, "Reconstruction vs. Generation", arXiv 2501.01423. A linear layer maps each latent to a vector z of the
teacher's width. Let f be the teacher's token at the same place. The loss has two terms:

    cosine    mean over places of relu(1 - m1 - cos(z, f))
    distances mean over pairs of places i, j of an image of relu(|cos(z_i, z_j) - cos(f_i, f_j)| - m2)

The sum of the two terms is multiplied by `weight`. With `adaptive`, the sum is also multiplied by |g_r| / (|g_vf| +
1e-4). g_r and g_vf are the gradients of reconstruction and of this loss, at the weights of the encoder's last layer. As
in the authors' code, both losses use the latents after the linear layer.

B: images. L: places. C: channels of the latents. T: width of the teacher. H, W: rows, columns of latents.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize, relu

from tintype.rng import seeded
from tintype.settings import Settings
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.encoders import TeacherChoice
from tintype.vision.part import Teacher

_LEAST_NORM = 1e-4
_MOST_WEIGHT = 1e8


class VfSettings(Settings):
    """Settings of VA-VAE's VF loss. By default, the loss is off; the authors use `weight: 0.1`."""

    weight: float = Field(
        0.0,
        ge=0,
        description="Weight of the loss; 0: not used. VA-VAE uses 0.1, multiplied by the factor of `adaptive`",
    )
    adaptive: bool = Field(
        True,
        description="Scale the loss so that its gradient at the encoder's last layer is as large as that "
        "of the reconstruction loss",
    )
    cosine_margin: float = Field(
        0.5,
        ge=0,
        lt=2,
        description="Margin m1: tokens with a cosine similarity above 1 - m1 to the teacher's tokens have no loss",
    )
    distance_margin: float = Field(
        0.25,
        ge=0,
        lt=2,
        description="Margin m2: pairs of tokens whose similarities differ by at most m2 from "
        "the teacher's have no loss",
    )
    teacher: TeacherChoice = Field(
        Dinov2TeacherSettings(source="facebook/dinov2-large"),
        description="The frozen teacher network; the kind scenes needs no download",
    )

    def build(self, channels: int, grid: tuple[int, int], seed: int, device: torch.device) -> VfLoss | None:
        """Return the loss, with a linear layer from its own random stream; None if its weight is 0."""
        if not self.weight:
            return None
        teacher = self.teacher.build(grid, device)
        with seeded(seed, "vf"):
            return VfLoss(self, channels, teacher)


class VfLoss(nn.Module):
    """The loss with its trained linear layer. The teacher is not a module, so it is neither trained nor saved."""

    def __init__(self, settings: VfSettings, channels: int, teacher: Teacher) -> None:
        super().__init__()
        self.project = nn.Linear(channels, teacher.width, bias=False)
        self._settings, self._teacher = settings, teacher

    @property
    def identity(self) -> str:
        return self._teacher.identity

    def look(self, image_BCHW: Tensor) -> Tensor:
        """Return the teacher's tokens of uint8 images, one token per latent position, row by row."""
        return self._teacher.tokens(image_BCHW)

    def forward(self, z_BCHW: Tensor, token_BLT: Tensor) -> Tensor:
        """Return the unweighted loss, averaged over the images."""
        with torch.autocast(z_BCHW.device.type, enabled=False):
            projected_BLT = self.project(z_BCHW.float().flatten(2).transpose(1, 2))
            settings = self._settings
            return marginal_cosine(projected_BLT, token_BLT, settings.cosine_margin) + marginal_distances(
                projected_BLT, token_BLT, settings.distance_margin
            )

    def weight(self, reconstruction: Tensor, loss: Tensor, last_layer: Tensor) -> Tensor:
        """Return the loss's weight in this step, detached. Both losses' graphs are kept for the backward pass."""
        if not self._settings.adaptive:
            return torch.full_like(loss, self._settings.weight).detach()
        return self._settings.weight * balance(reconstruction, loss, last_layer)


def marginal_cosine(z_BLT: Tensor, token_BLT: Tensor, margin: float) -> Tensor:
    return relu(1.0 - margin - cosine_similarity(z_BLT, token_BLT, dim=-1)).mean()


def marginal_distances(z_BLT: Tensor, token_BLT: Tensor, margin: float) -> Tensor:
    return relu((_similarities(z_BLT) - _similarities(token_BLT)).abs() - margin).mean()


def _similarities(token_BLT: Tensor) -> Tensor:
    """Return the cosines [B, L, L] of all pairs of tokens of an image."""
    unit_BLT = normalize(token_BLT, dim=-1)
    return unit_BLT @ unit_BLT.transpose(1, 2)


def balance(reconstruction: Tensor, loss: Tensor, last_layer: Tensor) -> Tensor:
    """Return |gradient of reconstruction| / |gradient of the loss| at a layer's weights, detached."""
    of_reconstruction, of_loss = (_gradient_norm(one, last_layer) for one in (reconstruction, loss))
    return (of_reconstruction / (of_loss + _LEAST_NORM)).clamp(max=_MOST_WEIGHT)


def _gradient_norm(loss: Tensor, weights: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, weights, retain_graph=True)
    norm: Tensor = torch.linalg.vector_norm(gradient)
    return norm
