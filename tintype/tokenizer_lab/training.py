"""Train a tokenizer of any kind in a folder, with data, perceptual distance, discriminator, checkpoints and resume.

Tensor dimensions are B (images), C (channels), H (rows), W (columns) and N (held-out images).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from tintype.losses.discriminator import Discriminator, DiscriminatorSettings
from tintype.losses.perceptual import Distance
from tintype.losses.reconstruction import PerceptualSettings
from tintype.metrics.reconstruction import psnr
from tintype.optim.adamw import AdamWSettings
from tintype.optim.storage import EXACT
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.locks import locked
from tintype.runtime.machine import exact_fp32
from tintype.settings import Plain
from tintype.tokenizer_lab.images import SCENES, ImageSettings, TrainingImages, TrainingScenes, TrainingSet
from tintype.tokenizers.latent import LatentTokenizer
from tintype.train.folder import RunFolder
from tintype.train.simple import SimpleTraining, claim_folder
from tintype.train.start import resume
from tintype.train.state import TrainState
from tintype.train.steps import Cadence, Progress, run_steps

DEAD_STD = 0.05
"""A latent channel with a smaller standard deviation counts as dead, since noise has a standard deviation of 1."""
_MEASURED_TOGETHER = 32
_STATISTICS_IMAGES = 256


class TokenizerTraining(ImageSettings):
    """Settings that the training of all tokenizers shares."""

    perceptual: PerceptualSettings = PerceptualSettings()
    adversarial: DiscriminatorSettings = DiscriminatorSettings()
    seed: int = Field(0, ge=0)
    steps: int = Field(20_000, ge=1)
    batch: int = Field(32, ge=1)
    lr: float = Field(1e-3, gt=0)
    warmup_steps: int = Field(100, ge=0)
    clip_norm: float = Field(1.0, gt=0)
    compute: Literal["fp32", "bf16"] = Field(
        "fp32", description="Compute type of the convolutions; weights stay in fp32. With bf16, LPIPS computes in TF32"
    )
    save_every_steps: int = Field(500, ge=1)
    log_every_steps: int = Field(10, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> TokenizerTraining:
        unit, unit_px = self.unit_px
        if self.size_px % unit_px:
            raise ValueError(f"size_px ({self.size_px}) must be a multiple of {unit} ({unit_px})")
        if self.short_px is not None and self.short_px < self.size_px:
            raise ValueError(f"short_px ({self.short_px}) is below size_px ({self.size_px}), so no crop would fit")
        setting, least_px = self.smallest_px
        self.perceptual.check(least_px, setting)
        self.adversarial.check(least_px, self.steps, setting)
        return self

    @property
    def unit_px(self) -> tuple[str, int]:
        """Return the name of the setting that determines the stride, and the stride in pixels."""
        raise NotImplementedError

    @property
    def smallest_px(self) -> tuple[str, int]:
        """Describe the smallest images on which losses are computed, and return the side of these images in pixels."""
        return "size_px", self.size_px

    @property
    def latent_side(self) -> int:
        """Return the number of rows of the latents, which equals the number of columns."""
        return self.size_px // self.unit_px[1]

    def lr_at(self, step: int) -> float:
        """Return the learning rate, with linear warm-up followed by half a cosine down to zero."""
        warm = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.lr * warm * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))

    def open_data(self, device: torch.device) -> TrainingSet:
        return (TrainingScenes if self.data == SCENES else TrainingImages)(self, self.seed, device)

    @property
    def dead_remedy(self) -> str:
        """Return advice for dead channels of the latents."""
        raise NotImplementedError

    def stored(self, out: Path) -> TrainedRecord | None:
        """Return the record of a folder whose training is done; None if the training is not done."""
        raise NotImplementedError

    def begin(self, device: torch.device) -> Trainee:
        """Build the networks that are trained."""
        raise NotImplementedError


class TrainedRecord(Protocol):
    """The record of a trained tokenizer."""

    @property
    def sha256(self) -> str: ...
    @property
    def trained(self) -> Plain:
        """How the tokenizer was trained, and its measured quality."""


class Trainee(Protocol):
    """A tokenizer that is being trained."""

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Trained networks, by their names in checkpoints."""

    @property
    def identities(self) -> Mapping[str, str | None]:
        """Identities of frozen networks, by name. When training resumes, the identities must be the same."""

    def losses(
        self,
        position_B: Tensor,
        image_BCHW: Tensor,
        distance: Distance | None,
        discriminator: Discriminator | None,
    ) -> dict[str, Tensor]:
        """Return the losses of a step. Training minimises "loss" and "discriminator"."""

    def finish(self, out: Path, data: TrainingSet) -> TrainedRecord:
        """Measure the trained tokenizer, write it, and return its record."""


@dataclass(frozen=True)
class Outcome:
    """Result of training a tokenizer. `record` is set when all steps are done."""

    step: int
    record: TrainedRecord | None
    already_done: bool = False


def train_tokenizer(
    settings: TokenizerTraining,
    out: Path,
    device: torch.device,
    interrupt: Interrupt,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Train in a folder from its last checkpoint, measure the tokenizer, and write it beside the checkpoints."""
    folder = RunFolder(out)
    with locked(out), exact_fp32(settings.compute == "fp32"):
        claim_folder(folder, settings, free=("save_every_steps", "log_every_steps"))
        if (record := settings.stored(out)) is not None:
            return Outcome(settings.steps, record, already_done=True)
        data = settings.open_data(device)
        distance = settings.perceptual.load(device)
        trainee = settings.begin(device)
        discriminator = settings.adversarial.build(settings.seed)
        state = _new_state(settings, trainee, discriminator, device)
        resume(folder, state)
        compared_by = distance.identity if distance is not None else None
        found = {"data": data.identity, "perceptual": compared_by, **trainee.identities}
        folder.keep_identities(found, state.step)
        batches = data.batches(state.step, settings.steps, settings.batch)

        def losses() -> dict[str, Tensor]:
            active = discriminator if settings.adversarial.on_at(state.step) else None
            return trainee.losses(*next(batches), distance, active)

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
        return Outcome(state.step, trainee.finish(out, data))


def _new_state(
    settings: TokenizerTraining, trainee: Trainee, discriminator: Discriminator | None, device: torch.device
) -> TrainState:
    modules = nn.ModuleDict({name: module.to(device) for name, module in trainee.modules.items()})
    optimizer = AdamWSettings(lr=settings.lr, beta2=0.99, eps=1e-8).build(modules.named_parameters(), EXACT)
    if discriminator is not None:
        modules["adversary"] = discriminator.to(device)
        optimizer.add_param_group({"params": list(discriminator.parameters()), "lr": settings.adversarial.lr})
    return TrainState(modules, optimizer, None)


def adversarial_losses(
    settings: TokenizerTraining, discriminator: Discriminator, seen_BCHW: Tensor, x_BCHW: Tensor
) -> dict[str, Tensor]:
    """Return the decoder's loss as "generator", and the discriminator's own loss as "discriminator"."""
    with torch.autocast(x_BCHW.device.type, torch.bfloat16, enabled=settings.compute == "bf16"):
        return {
            "generator": discriminator.generator_loss(seen_BCHW),
            "discriminator": discriminator.discriminator_loss(seen_BCHW, x_BCHW),
        }


def statistics_images(settings: TokenizerTraining, data: TrainingSet) -> Iterator[Tensor]:
    """Yield the training images on which the latents' statistics are measured."""
    batches = data.batches(0, math.ceil(_STATISTICS_IMAGES / settings.batch), settings.batch)
    return (image_BCHW for _, image_BCHW in batches)


def held_out_psnr(tokenizer: LatentTokenizer, data: TrainingSet, device: torch.device) -> Tensor:
    held_out_NCHW = data.held_out_images().to(device)
    return torch.cat(
        [psnr(chunk, tokenizer.decode(tokenizer.encode(chunk))) for chunk in held_out_NCHW.split(_MEASURED_TOGETHER)]
    )
