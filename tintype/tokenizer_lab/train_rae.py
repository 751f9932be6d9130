"""Train the decoder of a rae (representation autoencoder), whose encoder is frozen (arXiv 2510.11690).

The decoder learns from noisy latents, so that it can decode the latents of a denoiser. The noise is n ~ N(0, σ² I).
Each image has its own σ, uniform between 0 and `noise`, as in the authors' code. The loss is L1. A perceptual distance
and a discriminator are optional, as in small-vae.

Differs: the authors' discriminator is a DINO-S with an adaptive weight.

Tensor dimensions are B (images), C (channels), H (rows) and W (columns).
"""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn

from tintype import rng
from tintype.losses.discriminator import Discriminator
from tintype.losses.perceptual import Distance
from tintype.rng import seeded
from tintype.runtime.transfer import send
from tintype.settings import plain
from tintype.tokenizer_lab.images import TrainingSet
from tintype.tokenizer_lab.training import (
    DEAD_STD,
    TokenizerTraining,
    adversarial_losses,
    held_out_psnr,
    statistics_images,
)
from tintype.tokenizers.part import channel_statistics, to_floats
from tintype.tokenizers.rae import DEFAULT_ENCODER, FILES, Rae, RaeDecoder, RaeEncoder, RaeShape, Record, write_rae
from tintype.vision.encoders import TeacherChoice


class RaeTraining(TokenizerTraining):
    """All settings that determine the result of training a rae."""

    encoder: TeacherChoice = Field(
        DEFAULT_ENCODER, description="The frozen encoder network; the kind scenes needs no download"
    )
    decoder: RaeShape = RaeShape()
    noise: float = Field(
        0.8, ge=0, description="Largest standard deviation of the noise that training adds to the latents"
    )
    lr: float = Field(2e-4, gt=0)

    @property
    def unit_px(self) -> tuple[str, int]:
        return "decoder.stride_px", self.decoder.stride_px

    @property
    def dead_remedy(self) -> str:
        return "take another encoder"

    def stored(self, out: Path) -> Record | None:
        return FILES.read_record(out, Record) if FILES.is_trained(out) else None

    def begin(self, device: torch.device) -> RaeTrainee:
        return RaeTrainee(self, device)


class RaeTrainee:
    """The decoder that is trained, and the frozen encoder."""

    def __init__(self, settings: RaeTraining, device: torch.device) -> None:
        self.settings = settings
        self.encoder = RaeEncoder(settings.encoder, settings.decoder.stride_px, device)
        with seeded(settings.seed, "rae"):
            self.network = RaeDecoder(settings.decoder, self.encoder.channels)
        self.modules: dict[str, nn.Module] = {"decoder": self.network}
        self.identities: dict[str, str | None] = {"encoder": self.encoder.digest}

    def losses(
        self,
        position_B: Tensor,
        image_BCHW: Tensor,
        distance: Distance | None,
        discriminator: Discriminator | None,
    ) -> dict[str, Tensor]:
        settings, x_BCHW = self.settings, to_floats(image_BCHW)
        raw_BCHW = noised(self.encoder(image_BCHW), settings.noise, settings.seed, send(position_B, x_BCHW.device))
        with torch.autocast(x_BCHW.device.type, torch.bfloat16, enabled=settings.compute == "bf16"):
            seen_BCHW = self.network.decode_raw(raw_BCHW)
        losses = {"reconstruction": (seen_BCHW - x_BCHW).abs().mean()}
        total = losses["reconstruction"]
        if distance is not None:
            losses["perceptual"] = distance(seen_BCHW, x_BCHW).mean()
            total = total + settings.perceptual.weight * losses["perceptual"]
        if discriminator is not None:
            judged = adversarial_losses(settings, discriminator, seen_BCHW, x_BCHW)
            losses |= judged
            total = total + settings.adversarial.weight * judged["generator"]
        return {"loss": total, **losses}

    def finish(self, out: Path, data: TrainingSet) -> Record:
        """Measure the latents' statistics on training images and the quality on held-out images, then write the rae."""
        network, settings = self.network.requires_grad_(False).eval(), self.settings
        mean_C, std_C = channel_statistics(self.encoder(image) for image in statistics_images(settings, data))
        network.latent_mean.copy_(mean_C.float().view(1, -1, 1, 1))
        network.latent_std.copy_(std_C.float().clamp_min(1e-6).view(1, -1, 1, 1))
        psnr_N = held_out_psnr(Rae(network, self.encoder), data, network.latent_mean.device)
        trained = {
            "psnr_db": float(psnr_N.mean()),
            "held_out": len(psnr_N),
            "data": data.identity,
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "dead_channels": (std_C < DEAD_STD).nonzero()[:, 0].tolist(),
            "torch": torch.__version__,
            "settings": plain(settings),
        }
        return write_rae(out, network, settings.encoder, self.encoder.digest, trained)


def noised(raw_BCHW: Tensor, most: float, seed: int, position_B: Tensor) -> Tensor:
    """Add noise with a standard deviation from 0 to `most`, drawn per image as a function of seed and position."""
    if not most:
        return raw_BCHW
    sigma_B = most * rng.uniform(seed, "rae/sigma", position_B, (1,))[:, 0]
    noise_BCHW = rng.normal(seed, "rae/noise", position_B, tuple(raw_BCHW.shape[1:]))
    return raw_BCHW + sigma_B.view(-1, 1, 1, 1) * noise_BCHW
