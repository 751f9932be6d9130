"""Trains a small-vae: reconstruction, a small divergence from a normal, and where they are chosen a perceptual
distance, a discriminator, EQ-VAE's transforms and VA-VAE's loss.

Every draw is a function of (seed, position), so a training that was stopped goes on as if it had not been.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from tintype import rng
from tintype.losses.discriminator import Discriminator, DiscriminatorSettings
from tintype.losses.perceptual import Distance
from tintype.losses.reconstruction import PerceptualSettings
from tintype.losses.vf import VfLoss, VfSettings
from tintype.metrics.reconstruction import psnr
from tintype.optim.adamw import AdamWSettings
from tintype.optim.storage import EXACT
from tintype.rng import seeded
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.runtime.machine import exact_fp32
from tintype.runtime.transfer import send
from tintype.settings import plain
from tintype.tokenizer_lab.equivariance import draw_transform, smallest_side
from tintype.tokenizer_lab.images import SCENES, ImageSettings, TrainingImages, TrainingScenes, TrainingSet
from tintype.tokenizers.part import channel_statistics, to_floats
from tintype.tokenizers.small_vae import Record, SmallVae, SmallVaeShape, Vae, is_trained, read_record, write_vae
from tintype.train.folder import RunFolder
from tintype.train.simple import SimpleTraining, claim_folder
from tintype.train.start import resume
from tintype.train.state import TrainState
from tintype.train.steps import Cadence, Progress, run_steps

DEAD_STD = 0.05
"""A channel whose posterior mean varies less than this carries nothing: its noise has a deviation of one."""

_CHARBONNIER = 1e-3
_MEASURED_TOGETHER = 32
_STATISTICS_IMAGES = 256


class Training(ImageSettings):
    """All that decides what is learnt."""

    vae: SmallVaeShape = SmallVaeShape()
    reconstruction: Literal["l1", "charbonnier"] = "l1"
    kl_weight: float = Field(1e-4, ge=0, description="Of nats for each number of the latents")
    equivariance: float = Field(
        0.0,
        ge=0,
        le=1,
        description="EQ-VAE: share of the steps in which latents and images are scaled and turned alike",
    )
    perceptual: PerceptualSettings = PerceptualSettings()
    adversarial: DiscriminatorSettings = DiscriminatorSettings()
    vf: VfSettings = VfSettings()
    seed: int = Field(0, ge=0)
    steps: int = Field(20_000, ge=1)
    batch: int = Field(32, ge=1)
    lr: float = Field(1e-3, gt=0)
    warmup_steps: int = Field(100, ge=0)
    clip_norm: float = Field(1.0, gt=0)
    compute: Literal["fp32", "bf16"] = Field(
        "fp32", description="Of the convolutions, whose weights stay in fp32; with bf16 LPIPS compares in TF32"
    )
    save_every_steps: int = Field(500, ge=1)
    log_every_steps: int = Field(10, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Training:
        if self.size_px % self.vae.stride_px:
            raise ValueError(f"size_px ({self.size_px}) must be a multiple of vae.stride_px ({self.vae.stride_px})")
        if self.short_px is not None and self.short_px < self.size_px:
            raise ValueError(f"short_px ({self.short_px}) is below size_px ({self.size_px}): no crop would fit")
        least_px, setting = self.size_px, "size_px"
        if self.equivariance:  # makes images smaller
            least_px = smallest_side(self.latent_side) * self.vae.stride_px
            setting = "with equivariance a quarter of size_px"
        self.perceptual.check(least_px, setting)
        self.adversarial.check(least_px, self.steps, setting)
        return self

    @property
    def latent_side(self) -> int:
        """Return the rows, and columns, of latents."""
        return self.size_px // self.vae.stride_px

    def lr_at(self, step: int) -> float:
        """Linear warm-up, then half a cosine down to zero."""
        warm = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.lr * warm * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))

    def open_data(self, device: torch.device) -> TrainingSet:
        return (TrainingScenes if self.data == SCENES else TrainingImages)(self, self.seed, device)


@dataclass(frozen=True)
class Outcome:
    """`record` is there when all steps are done."""

    step: int
    record: Record | None
    already_done: bool = False


def train(
    settings: Training,
    out: Path,
    device: torch.device,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Trains in a folder from wherever it stopped, measures, and writes the tokenizer beside the checkpoints."""
    folder = RunFolder(out)
    with locked(out), exact_fp32(settings.compute == "fp32"):
        claim_folder(folder, settings, free=("save_every_steps", "log_every_steps"))
        if is_trained(out):
            return Outcome(settings.steps, read_record(out), already_done=True)
        data = settings.open_data(device)
        distance = settings.perceptual.load(device)
        with seeded(settings.seed, "small-vae"):
            network = Vae(settings.vae)
        discriminator = settings.adversarial.build(settings.seed)
        vf = settings.vf.build(
            settings.vae.channels, (settings.latent_side, settings.latent_side), settings.seed, device
        )
        state = _new_state(settings, network, discriminator, vf, device)
        resume(folder, state)
        folder.keep_identities(_identities(data, distance, vf), state.step)
        batches = data.batches(state.step, settings.steps, settings.batch)

        def losses() -> dict[str, Tensor]:
            active = discriminator if settings.adversarial.on_at(state.step) else None
            return losses_of(settings, network, distance, *next(batches), active, vf)

        training = SimpleTraining(
            folder,
            state,
            Cadence(settings.steps, settings.log_every_steps, settings.save_every_steps),
            interrupt,
            batch=settings.batch,
            losses=losses,
            minimised=("loss", "discriminator"),  # the discriminator learns from the same images, at the same time
            lr_at=settings.lr_at,
            clip_norm=settings.clip_norm,
        )
        run_steps(training, on_progress)
        if state.step < settings.steps:
            return Outcome(state.step, None)
        return Outcome(state.step, _finish(out, settings, data, network))


def _identities(data: TrainingSet, distance: Distance | None, vf: VfLoss | None) -> dict[str, str | None]:
    """Return what a resumed training must find again."""
    identities = {"data": data.identity, "perceptual": distance.identity if distance is not None else None}
    return identities if vf is None else {**identities, "vf": vf.identity}


def _new_state(
    settings: Training, network: Vae, discriminator: Discriminator | None, vf: VfLoss | None, device: torch.device
) -> TrainState:
    modules = nn.ModuleDict({"vae": network.to(device)})
    if vf is not None:
        modules["vf"] = vf.to(device)
    optimizer = AdamWSettings(lr=settings.lr, beta2=0.99, eps=1e-8).build(modules.named_parameters(), EXACT)
    if discriminator is not None:
        modules["adversary"] = discriminator.to(device)
        optimizer.add_param_group({"params": list(discriminator.parameters()), "lr": settings.adversarial.lr})
    return TrainState(modules, optimizer, None)


def losses_of(
    settings: Training,
    network: Vae,
    distance: Distance | None,
    position_B: Tensor,
    image_BCHW: Tensor,
    discriminator: Discriminator | None = None,
    vf: VfLoss | None = None,
) -> dict[str, Tensor]:
    """Each term, a mean over the images, and under "loss" the weighted sum of those of the autoencoder.

    "discriminator" is the loss of the discriminator's own parameters; "vf_weight" is the weight of "vf" in this step.
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
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.compute == "bf16"):
            losses["generator"] = discriminator.generator_loss(seen_BCHW)
            losses["discriminator"] = discriminator.discriminator_loss(seen_BCHW, x_BCHW)
        total = total + settings.adversarial.weight * losses["generator"]
    return {"loss": total, **losses}


def reconstruction_loss(kind: Literal["l1", "charbonnier"], seen_BCHW: Tensor, x_BCHW: Tensor) -> Tensor:
    off_BCHW = seen_BCHW - x_BCHW
    if kind == "l1":
        return off_BCHW.abs().mean()
    return ((off_BCHW.square() + _CHARBONNIER**2).sqrt() - _CHARBONNIER).mean()


def _finish(out: Path, settings: Training, data: TrainingSet, network: Vae) -> Record:
    """Measures the statistics of the latents on training images, and the quality on others."""
    network.requires_grad_(False).eval()
    batches = data.batches(0, math.ceil(_STATISTICS_IMAGES / settings.batch), settings.batch)
    mean_C, std_C = latent_statistics(network, (image_BCHW for _, image_BCHW in batches))
    network.latent_mean.copy_(mean_C.view(1, -1, 1, 1))
    network.latent_std.copy_(std_C.clamp_min(1e-6).view(1, -1, 1, 1))
    tokenizer = SmallVae(network)
    held_out_NCHW = data.held_out_images().to(network.latent_mean.device)
    psnr_N = torch.cat(
        [psnr(chunk, tokenizer.decode(tokenizer.encode(chunk))) for chunk in held_out_NCHW.split(_MEASURED_TOGETHER)]
    )
    trained: dict[str, Any] = {
        "psnr_db": float(psnr_N.mean()),
        "held_out": len(held_out_NCHW),
        "data": data.identity,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "dead_channels": (std_C < DEAD_STD).nonzero()[:, 0].tolist(),
        "torch": torch.__version__,
        "settings": plain(settings),
    }
    return write_vae(out, network, trained)


@torch.no_grad()
def latent_statistics(network: Vae, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of the posterior's mean, over images and places: float32 [C]."""
    mean_C, std_C = channel_statistics(network.posterior(to_floats(image_BCHW)).mean_BCHW for image_BCHW in batches)
    return mean_C.float(), std_C.float()
