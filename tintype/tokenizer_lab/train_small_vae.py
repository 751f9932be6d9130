"""Train a small-vae by a reconstruction loss and a small KL divergence from a standard normal distribution.

A perceptual distance, a discriminator, EQ-VAE's transforms and VA-VAE's loss are optional. Every random draw is a
function of (seed, position), so a resumed training equals an uninterrupted training.

Tensor dimensions are B (images), C (channels), H (rows) and W (columns).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from tintype import rng
from tintype.losses.discriminator import Discriminator
from tintype.losses.perceptual import Distance
from tintype.losses.vf import VfLoss, VfSettings
from tintype.rng import seeded
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.transfer import send
from tintype.settings import plain
from tintype.tokenizer_lab.equivariance import draw_transform, smallest_side
from tintype.tokenizer_lab.images import TrainingSet
from tintype.tokenizer_lab.training import (
    DEAD_STD,
    Outcome,
    TokenizerTraining,
    adversarial_losses,
    held_out_psnr,
    statistics_images,
    train_tokenizer,
)
from tintype.tokenizers.part import channel_statistics, to_floats
from tintype.tokenizers.small_vae import Record, SmallVae, SmallVaeShape, Vae, is_trained, read_record, write_vae
from tintype.train.steps import Progress

_CHARBONNIER = 1e-3


class Training(TokenizerTraining):
    """All settings that determine the result of training a small-vae."""

    vae: SmallVaeShape = SmallVaeShape()
    reconstruction: Literal["l1", "charbonnier"] = "l1"
    kl_weight: float = Field(1e-4, ge=0, description="Weight of the KL divergence, measured in nats per latent value")
    equivariance: float = Field(
        0.0,
        ge=0,
        le=1,
        description="EQ-VAE: share of the steps in which latents and images are scaled and rotated alike",
    )
    vf: VfSettings = VfSettings()

    @property
    def unit_px(self) -> tuple[str, int]:
        return "vae.stride_px", int(self.vae.stride_px)

    @property
    def smallest_px(self) -> tuple[str, int]:
        if not self.equivariance:
            return super().smallest_px
        least_px = smallest_side(self.latent_side) * self.vae.stride_px  # it makes images smaller
        return "with equivariance a quarter of size_px", least_px

    @property
    def dead_remedy(self) -> str:
        return "lower kl_weight or vae.channels"

    def stored(self, out: Path) -> Record | None:
        return read_record(out) if is_trained(out) else None

    def begin(self, device: torch.device) -> SmallVaeTrainee:
        return SmallVaeTrainee(self, device)


class SmallVaeTrainee:
    """The autoencoder that is trained, and the projection of VA-VAE's loss if this loss is enabled."""

    def __init__(self, settings: Training, device: torch.device) -> None:
        with seeded(settings.seed, "small-vae"):
            self.network = Vae(settings.vae)
        side = settings.latent_side
        self.vf = settings.vf.build(settings.vae.channels, (side, side), settings.seed, device)
        self.settings = settings
        self.modules: dict[str, nn.Module] = {"vae": self.network}
        self.identities: dict[str, str | None] = {}
        if self.vf is not None:
            self.modules["vf"] = self.vf
            self.identities["vf"] = self.vf.identity

    def losses(
        self,
        position_B: Tensor,
        image_BCHW: Tensor,
        distance: Distance | None,
        discriminator: Discriminator | None,
    ) -> dict[str, Tensor]:
        return losses_of(self.settings, self.network, distance, position_B, image_BCHW, discriminator, self.vf)

    def finish(self, out: Path, data: TrainingSet) -> Record:
        return _finish(out, self.settings, data, self.network)


def train(
    settings: Training,
    out: Path,
    device: torch.device,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    return train_tokenizer(settings, out, device, interrupt, on_progress)


def losses_of(
    settings: Training,
    network: Vae,
    distance: Distance | None,
    position_B: Tensor,
    image_BCHW: Tensor,
    discriminator: Discriminator | None = None,
    vf: VfLoss | None = None,
) -> dict[str, Tensor]:
    """Return each loss term as a mean over the images, and the weighted sum of the autoencoder's terms as "loss".

    "discriminator" is the loss of the discriminator's own parameters. "vf_weight" is the weight of "vf" in this step.
    """
    x_BCHW = to_floats(image_BCHW)
    side = settings.latent_side
    device = x_BCHW.device
    noise_BCHW = rng.normal(
        settings.seed, "small-vae/posterior", send(position_B, device), (settings.vae.channels, side, side)
    )
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.compute == "bf16"):
        posterior = network.posterior(x_BCHW)
        sampled_BCHW = z_BCHW = posterior.sample(noise_BCHW)
        if settings.equivariance:
            transform = draw_transform(settings.seed, position_B, settings.equivariance, side)
            if transform is not None:
                z_BCHW = transform.latents(z_BCHW)
                x_BCHW = transform.images(x_BCHW, settings.vae.stride_px)
        seen_BCHW = network.decode_raw(z_BCHW)
    losses = {
        "reconstruction": reconstruction_loss(settings.reconstruction, seen_BCHW, x_BCHW),
        "kl": posterior.kl().mean(),
    }
    total = losses["reconstruction"] + settings.kl_weight * losses["kl"]
    if distance is not None:
        losses["perceptual"] = distance(seen_BCHW, x_BCHW).mean()
        total = total + settings.perceptual.weight * losses["perceptual"]
    if vf is not None:
        losses["vf"] = vf(sampled_BCHW, vf.look(image_BCHW))
        compared = losses["reconstruction"]
        if distance is not None:
            compared = compared + settings.perceptual.weight * losses["perceptual"]
        losses["vf_weight"] = vf.weight(compared, losses["vf"], network.last_encoder_weight)
        total = total + losses["vf_weight"] * losses["vf"]
    if discriminator is not None:
        judged = adversarial_losses(settings, discriminator, seen_BCHW, x_BCHW)
        losses |= judged
        total = total + settings.adversarial.weight * judged["generator"]
    return {"loss": total, **losses}


def reconstruction_loss(kind: Literal["l1", "charbonnier"], seen_BCHW: Tensor, x_BCHW: Tensor) -> Tensor:
    off_BCHW = seen_BCHW - x_BCHW
    if kind == "l1":
        return off_BCHW.abs().mean()
    return ((off_BCHW.square() + _CHARBONNIER**2).sqrt() - _CHARBONNIER).mean()


def _finish(out: Path, settings: Training, data: TrainingSet, network: Vae) -> Record:
    """Measure the latents on training images and the quality on held-out images, then write the small-vae."""
    network.requires_grad_(False).eval()
    mean_C, std_C = latent_statistics(network, statistics_images(settings, data))
    network.latent_mean.copy_(mean_C.view(1, -1, 1, 1))
    network.latent_std.copy_(std_C.clamp_min(1e-6).view(1, -1, 1, 1))
    tokenizer = SmallVae(network)
    psnr_N = held_out_psnr(tokenizer, data, network.latent_mean.device)
    trained: dict[str, Any] = {
        "psnr_db": float(psnr_N.mean()),
        "held_out": len(psnr_N),
        "data": data.identity,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "dead_channels": (std_C < DEAD_STD).nonzero()[:, 0].tolist(),
        "torch": torch.__version__,
        "settings": plain(settings),
    }
    return write_vae(out, network, trained)


@torch.no_grad()
def latent_statistics(network: Vae, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel of the posterior's mean over images and positions, float32 [C]."""
    mean_C, std_C = channel_statistics(network.posterior(to_floats(image_BCHW)).mean_BCHW for image_BCHW in batches)
    return mean_C.float(), std_C.float()
