"""The training step of the autoencoder, for a tokenizer that is trained together with the denoiser.

The autoencoder's step comes before the denoiser's step. Its own backward pass reaches only the autoencoder; all other
weights are frozen. If there is a discriminator, it then learns from the same images, in a backward pass that reaches
only the discriminator. The denoiser gets the same latents, but detached, with the same t and the same noise. All
weights are updated together, at the end of the step. The discriminator's images are made before the autoencoder's
update. So the result is the same as in the paper, where the discriminator is updated after the autoencoder.

B: samples. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import gcd
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tintype.losses.alignment import AlignmentTerm
from tintype.losses.discriminator import Discriminator
from tintype.losses.perceptual import Distance
from tintype.losses.repa_e.tokenizer import TunedTokenizer
from tintype.runtime.clock import Clock
from tintype.runtime.gradients import GradientMean, backward_start, clip
from tintype.runtime.layout import Layout
from tintype.seams import Draws, ImageSource, JointBatch, JointGroup, JointHost, LossTerm, Order
from tintype.tokenizers.part import to_floats

if TYPE_CHECKING:
    from tintype.losses.repa_e.settings import TuningSettings

NAMES = "vae/"
"""Prefix of the names of the autoencoder's losses in the log."""
_BEGIN_IMAGES = 256
_BEGIN_BATCH = 32


class RepaE:
    """Train a tokenizer through the alignment term `aligner`, and also a discriminator if the settings have one."""

    def __init__(
        self, settings: TuningSettings, tokenizer: TunedTokenizer, discriminator: Discriminator | None, aligner: str
    ) -> None:
        self.settings, self.tokenizer, self.aligner = settings, tokenizer, aligner
        self.discriminator = discriminator
        self.modules: dict[str, nn.Module] = {"tokenizer": tokenizer}
        self.groups = [JointGroup("tuning", "tokenizer.", settings.lr)]
        if discriminator is not None:
            self.modules["adversary"] = discriminator
            self.groups.append(JointGroup("adversary", "adversary.", settings.adversarial.lr))
        self._distance: Distance | None = None

    def begin(self, source: ImageSource, order: Order, seed: int, images: int, alike: int | None = None) -> None:
        """Initialise the norm with the statistics of the latents of the run's first images."""
        tokenizer, count = self.tokenizer, min(_BEGIN_IMAGES, len(source), images)
        batch = _BEGIN_BATCH if alike is None else gcd(_BEGIN_BATCH, alike)
        sums, numbers = [], 0
        for first in range(0, count, batch):
            position_B = torch.arange(first, min(first + batch, count))
            ids = order.ids(first, len(position_B))
            with torch.no_grad(), tokenizer.computing():
                posterior = tokenizer.network.posterior(to_floats(source.images(ids).to(tokenizer.device)))
            raw_BCHW = tokenizer.sampled(posterior, Draws(seed, position_B.to(tokenizer.device))).double()
            sums.append(torch.stack([raw_BCHW.sum((0, 2, 3)), raw_BCHW.square().sum((0, 2, 3))]))
            numbers += raw_BCHW.numel() // raw_BCHW.shape[1]
        mean_C, square_C = torch.stack(sums).sum(0) / numbers
        tokenizer.norm.running_mean.copy_(mean_C)
        tokenizer.norm.running_var.copy_((square_C - mean_C.square()).clamp_min(0))

    def attach(self, terms: Mapping[str, LossTerm], frozen: Sequence[nn.Parameter], layout: Layout) -> None:
        alignment = terms[self.aligner]
        assert isinstance(alignment, AlignmentTerm)
        self.alignment = alignment
        self.tuned = list(self.tokenizer.parameters())
        self.probe = list(alignment.parameters()) if self.aligner == self.settings.kind else []
        self.judging = list(self.discriminator.parameters()) if self.discriminator is not None else []
        self.clipped_apart = [*self.tuned, *self.probe, *self.judging]
        self.gradients = GradientMean(self.tuned, layout)
        self.judge_gradients = GradientMean(self.judging, layout)
        self._frozen, self._layout = frozen, layout

    def ready(self) -> dict[str, str | None]:
        self._distance = self.settings.perceptual.load(self.tokenizer.device)
        return {"perceptual": self._distance.identity if self._distance is not None else None}

    def distance(self, seen_BCHW: Tensor, x_BCHW: Tensor) -> Tensor | None:
        if self.settings.perceptual.kind == "none":
            return None
        if self._distance is None:
            raise RuntimeError("repa-e: call ready() before the first step")
        with torch.autocast(x_BCHW.device.type, enabled=False):
            return self._distance(seen_BCHW.float(), x_BCHW)

    @contextmanager
    def others_frozen(self) -> Iterator[None]:
        """Freeze all other parameters during forward and backward of the autoencoder's losses."""
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self._frozen:
                parameter.requires_grad_(True)

    def clip(self) -> tuple[Tensor, Tensor]:
        """Clip the autoencoder's gradients, and separately those of the projector's probe and of the discriminator.

        Return the norm of the autoencoder's gradients, and whether all gradients are finite.
        """
        norm = clip(self.tuned, self.settings.clip_norm, self._layout)
        finite = norm.isfinite()
        for apart in (self.probe, self.judging):
            if any(parameter.grad is not None for parameter in apart):  # a discriminator may not have begun
                finite = finite & clip(apart, self.settings.clip_norm, self._layout).isfinite()
        return norm, finite

    def begin_step(self, host: JointHost, clock: Clock, loss_scale: float, accumulate: int) -> RepaEStep:
        return RepaEStep(self, host, clock, loss_scale, accumulate)


class RepaEStep:
    def __init__(self, training: RepaE, host: JointHost, clock: Clock, loss_scale: float, accumulate: int) -> None:
        self._training, self._host, self._clock = training, host, clock
        self._loss_scale, self._accumulate = loss_scale, accumulate
        self._before = training.tokenizer.norm.statistics_copy()
        self._losses: dict[str, Tensor] = {}

    def latents(self, batch: JointBatch, last: bool) -> Tensor:
        z_BCHW, found = self.tune(batch, last)
        for name, value in found.items():
            self._losses[name] = self._losses.get(name, torch.zeros_like(value)) + value / self._accumulate
        return z_BCHW

    def clip(self, grad_norm: Tensor) -> Tensor:
        self._losses[f"{NAMES}grad_norm"], finite = self._training.clip()
        return torch.where(finite, grad_norm, torch.nan)

    def finish(self, skipped: Tensor) -> dict[str, Tensor]:
        self._training.tokenizer.norm.restore(self._before, skipped)
        return self._losses

    def tune(self, batch: JointBatch, last: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Add a micro-batch's gradients to the autoencoder and its discriminator.

        Return the latents for the denoiser's training, and the losses by their names in the log.
        """
        training, tokenizer, settings = self._training, self._training.tokenizer, self._training.settings
        assert batch.image_BCHW is not None  # latents are not cached while the tokenizer changes
        with self._clock.part("tokenizer"), tokenizer.computing(), training.others_frozen():
            x_BCHW = to_floats(batch.image_BCHW)
            posterior = tokenizer.network.posterior(x_BCHW)
            raw_BCHW = tokenizer.sampled(posterior, batch.draws)
            seen_BCHW = tokenizer.network.decode_raw(raw_BCHW)
            alignment_B = self.alignment(batch, tokenizer.norm.by_running(raw_BCHW))
            terms = {
                "reconstruction": (settings.reconstruction, (seen_BCHW - x_BCHW).abs().mean()),
                "kl": (settings.kl, posterior.kl().mean() * raw_BCHW[0].numel()),
                "alignment": (settings.weight, alignment_B.mean()),
            }
            if (distance_B := training.distance(seen_BCHW, x_BCHW)) is not None:
                terms["perceptual"] = (settings.perceptual.weight, distance_B.mean())
            discriminator = training.discriminator if settings.adversarial.on_at(batch.step) else None
            if discriminator is not None:
                terms["adversarial"] = (settings.adversarial.weight, discriminator.generator_loss(seen_BCHW))
            losses = {"loss": torch.stack([weight * value for weight, value in terms.values()]).sum()}
            losses |= {name: value for name, (_, value) in terms.items()}
            self._backward(losses["loss"], training.gradients, last)
            if discriminator is not None:
                losses["discriminator"] = discriminator.discriminator_loss(seen_BCHW, x_BCHW)
                self._backward(losses["discriminator"], training.judge_gradients, last)
            z_BCHW = tokenizer.norm.by_batch(raw_BCHW.detach(), self._host.world)
        return z_BCHW, {NAMES + name: value.detach() for name, value in losses.items()}

    def _backward(self, loss: Tensor, gradients: GradientMean, last: bool) -> None:
        with gradients.over(last):
            torch.autograd.backward([loss * (self._loss_scale / self._accumulate)], [backward_start(loss)])

    def alignment(self, batch: JointBatch, x_BCHW: Tensor) -> Tensor:
        """Return each sample's alignment loss, computed through the denoiser with the step's t and noise."""
        training = self._training
        with self._host.compute():
            tapped = self._host.tap(x_BCHW, batch, training.alignment.taps)
            return training.alignment.aligned(tapped, batch.seen[training.aligner], batch.image_BCHW)
