"""The autoencoder's part of a step, where the tokenizer is trained with the denoiser (`losses.tuning`).

It comes before the denoiser's part and ends with its own backward pass, which reaches the autoencoder and nothing else:
all other weights hold still. A discriminator, where there is one, then learns from the same pictures, in a backward
pass that reaches it alone. The denoiser gets the same latents, detached, at the same t and with the same noise. All
weights move together, at the end of the step: as the discriminator sees the pictures that were made before the
autoencoder moved, it learns what it would if it were moved after it, as the paper's is.

B: samples. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tintype.losses.alignment import AlignmentTerm
from tintype.losses.perceptual import Distance
from tintype.losses.tuning import TuningSettings, aligned_loss
from tintype.plan import Plan
from tintype.runtime.layout import Layout
from tintype.seams import Draws, ImageSource, Order, TextTokens
from tintype.tokenizers.adversary import Adversary
from tintype.tokenizers.small_vae import to_floats
from tintype.tokenizers.tuned import TunedTokenizer
from tintype.train.clock import Clock
from tintype.train.gradients import GradientMean, backward_start, clip

if TYPE_CHECKING:
    from tintype.train.batch import Batch
    from tintype.train.parts import Parts, Term

NAMES = "vae/"
"""Stands before the names of the autoencoder's losses in the log."""
_BEGIN_IMAGES = 256
_BEGIN_BATCH = 32


class Tuning:
    """What the tuning of a run needs beside the tokenizer: the aligned term, a distance of pictures, and where the plan
    has one a discriminator of them."""

    def __init__(
        self,
        settings: TuningSettings,
        tokenizer: TunedTokenizer,
        aligner: Term,
        judge: Adversary | None,
        others: Sequence[nn.Parameter],
        layout: Layout,
    ) -> None:
        assert isinstance(aligner.part, AlignmentTerm)
        self.settings, self.tokenizer, self.aligner = settings, tokenizer, aligner.name
        self.alignment = aligner.part
        self.tuned = list(tokenizer.parameters())
        self.probe = list(aligner.part.parameters()) if aligner.name == settings.kind else []
        self.judge = judge
        self.judging = list(judge.parameters()) if judge is not None else []
        self.gradients = GradientMean(self.tuned, layout)
        self.judge_gradients = GradientMean(self.judging, layout)
        self._others = others
        self._distance: Distance | None = None
        self._layout = layout

    def ready(self) -> dict[str, str | None]:
        """Loads what pictures are compared with, and gives its identity."""
        self._distance = self.settings.perceptual.load(self.tokenizer.device)
        return {"perceptual": self._distance.identity if self._distance is not None else None}

    def distance(self, seen_BCHW: Tensor, x_BCHW: Tensor) -> Tensor | None:
        """Of each picture; None where the plan has no such loss."""
        if self.settings.perceptual.kind == "none":
            return None
        if self._distance is None:
            raise RuntimeError("repa-e: ready() comes before the first step")
        with torch.autocast(x_BCHW.device.type, enabled=False):
            return self._distance(seen_BCHW.float(), x_BCHW)

    def judge_at(self, step: int) -> Adversary | None:
        """None where no discriminator is at work at this step."""
        return self.judge if self.settings.adversarial.on_at(step) else None

    @contextmanager
    def others_hold_still(self) -> Iterator[None]:
        """Around forward and backward of the autoencoder's losses."""
        for parameter in self._others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self._others:
                parameter.requires_grad_(True)

    def clip(self) -> tuple[Tensor, Tensor]:
        """Clips the autoencoder's gradients, and apart those of the probe and of the discriminator: the norm of the
        first, and whether all are finite."""
        norm = clip(self.tuned, self.settings.clip_norm, self._layout)
        finite = norm.isfinite()
        for apart in (self.probe, self.judging):
            if any(parameter.grad is not None for parameter in apart):  # a discriminator may not have begun
                finite = finite & clip(apart, self.settings.clip_norm, self._layout).isfinite()
        return norm, finite


class TuningStep:
    """The autoencoder's part of one step: called with each micro-batch, then `clip`, and `finish` at the end."""

    def __init__(self, parts: Parts, tuning: Tuning, clock: Clock) -> None:
        self._parts, self._tuning, self._clock = parts, tuning, clock
        self._left = self._accumulate = parts.plan.train.accumulate
        self._before = tuning.tokenizer.norm.remembered()
        self._losses: dict[str, Tensor] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """The latents that the denoiser is to be trained on."""
        self._left -= 1
        z_BCHW, found = tune(self._parts, self._tuning, batch, self._clock, last=self._left == 0)
        for name, value in found.items():
            self._losses[name] = self._losses.get(name, torch.zeros_like(value)) + value / self._accumulate
        return z_BCHW

    def leave_out(self, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """Those that are clipped as they would be without the tuning."""
        tuning = self._tuning
        apart = {id(parameter) for parameter in (*tuning.tuned, *tuning.probe, *tuning.judging)}
        return [parameter for parameter in parameters if id(parameter) not in apart]

    def clip(self, grad_norm: Tensor) -> Tensor:
        """Clips what `leave_out` left. The given norm of the others comes back, not a number where all must stay."""
        self._losses[f"{NAMES}grad_norm"], finite = self._tuning.clip()
        return torch.where(finite, grad_norm, torch.nan)

    def finish(self, skipped: Tensor) -> dict[str, Tensor]:
        """What to log. A step that is skipped leaves no trace in the norm's statistics."""
        self._tuning.tokenizer.norm.put_back(self._before, skipped)
        return self._losses


def begin_statistics(tokenizer: TunedTokenizer, source: ImageSource, order: Order, plan: Plan) -> None:
    """Gives the norm the statistics of the latents of the run's first images."""
    count = min(_BEGIN_IMAGES, len(source), plan.train.steps * plan.train.batch)
    sums, numbers = [], 0
    for first in range(0, count, _BEGIN_BATCH):
        position_B = torch.arange(first, min(first + _BEGIN_BATCH, count))
        ids = order.ids(first, len(position_B))
        with torch.no_grad(), tokenizer.computing():
            posterior = tokenizer.network.posterior(to_floats(source.images(ids).to(tokenizer.device)))
        raw_BCHW = tokenizer.sampled(posterior, Draws(plan.seed, position_B.to(tokenizer.device))).double()
        sums.append(torch.stack([raw_BCHW.sum((0, 2, 3)), raw_BCHW.square().sum((0, 2, 3))]))
        numbers += raw_BCHW.numel() // raw_BCHW.shape[1]
    mean_C, square_C = torch.stack(sums).sum(0) / numbers
    tokenizer.norm.running_mean.copy_(mean_C)
    tokenizer.norm.running_var.copy_((square_C - mean_C.square()).clamp_min(0))


def tune(parts: Parts, tuning: Tuning, batch: Batch, clock: Clock, last: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Adds to the gradients of the autoencoder, and of its discriminator, what a micro-batch gives.

    Returns its latents as the denoiser is to be trained on them, and the losses by their names in the log.
    """
    plan, tokenizer = parts.plan, tuning.tokenizer
    assert batch.image_BCHW is not None  # a tokenizer that changes has no latents to keep
    with clock.part("tokenizer"), tokenizer.computing(), tuning.others_hold_still():
        x_BCHW = to_floats(batch.image_BCHW)
        posterior = tokenizer.network.posterior(x_BCHW)
        raw_BCHW = tokenizer.sampled(posterior, batch.draws)
        numbers = raw_BCHW[0].numel()
        seen_BCHW = tokenizer.network.decode_raw(raw_BCHW)
        settings = tuning.settings
        terms = {
            "reconstruction": (settings.reconstruction, (seen_BCHW - x_BCHW).abs().mean()),
            "kl": (settings.kl, posterior.kl().mean() * numbers),
            "alignment": (settings.weight, _alignment(parts, tuning, batch, tokenizer.norm.settled(raw_BCHW)).mean()),
        }
        if (distance_B := tuning.distance(seen_BCHW, x_BCHW)) is not None:
            terms["perceptual"] = (settings.perceptual.weight, distance_B.mean())
        if (judge := tuning.judge_at(batch.step)) is not None:
            terms["adversarial"] = (settings.adversarial.weight, judge.generator_loss(seen_BCHW))
        losses = {"loss": torch.stack([weight * value for weight, value in terms.values()]).sum()}
        losses |= {name: value for name, (_, value) in terms.items()}
        scale = plan.precision.loss_scale / plan.train.accumulate
        with tuning.gradients.over(last):
            torch.autograd.backward([losses["loss"] * scale], [backward_start(losses["loss"])])
        if judge is not None:
            losses["discriminator"] = judge.discriminator_loss(seen_BCHW, x_BCHW)
            with tuning.judge_gradients.over(last):
                torch.autograd.backward([losses["discriminator"] * scale], [backward_start(losses["discriminator"])])
        z_BCHW = tokenizer.norm.moving(raw_BCHW.detach(), parts.world)
    return z_BCHW, {NAMES + name: value.detach() for name, value in losses.items()}


def _alignment(parts: Parts, tuning: Tuning, batch: Batch, x_BCHW: Tensor) -> Tensor:
    """The loss of each sample, through the denoiser up to the aligned block, at the step's own t and noise."""
    with parts.compute():
        sample = parts.objective.draw(x_BCHW, batch.draws)
        text = TextTokens(batch.text.tokens_BLC.detach(), batch.text.mask_BL)
        tapped = parts.denoiser(
            sample.x_t_BCHW,
            sample.t_B,
            text,
            route=parts.route(x_BCHW, batch.step, batch.draws),
            taps=tuning.alignment.taps,
            only_taps=True,
        )
        return tuning.alignment.aligned(tapped, batch.seen[tuning.aligner])


def find_aligner(plan: Plan, terms: Sequence[Term]) -> Term:
    """The term whose projector the tuning looks through: that of the denoiser's own alignment, or the probe."""
    assert plan.tuning is not None
    loss = aligned_loss(plan)
    name = plan.tuning.kind if loss is None else loss.kind
    return next(term for term in terms if term.name == name)
