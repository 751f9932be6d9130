"""Tuning: the tokenizer's autoencoder is trained with the denoiser (REPA-E, arXiv 2504.10483).

The tuning uses the usual losses of an autoencoder, and an alignment loss. The alignment loss compares the denoiser's
tokens with a teacher's tokens. The gradient of the alignment loss reaches the autoencoder through a frozen denoiser and
the latents. The autoencoder gets no gradient from the denoiser's own losses. This file has the settings, and a loss
term that trains the projector if no other term trains it. The training step is in `repa_e.training`.

B: samples. K: kept tokens. D: width of the denoiser. T: width of the teacher.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from tintype.losses.alignment import AlignmentPart, AlignmentTerm, check_block
from tintype.losses.discriminator import DiscriminatorSettings
from tintype.losses.part import PlanView
from tintype.losses.reconstruction import PerceptualSettings
from tintype.losses.repa import RepaOptions, RepaSettings, repa_projector
from tintype.losses.repa_e.tokenizer import TunedTokenizer
from tintype.losses.repa_e.training import RepaE
from tintype.seams import JointTraining, LossContext, LossInputs, Tapped, Tokenizer
from tintype.settings import Part, kind_alone
from tintype.tokenizers.part import Autoencoder, Statistics, TokenizerPart

SHARED = ("teacher", "block", "hidden", "cache")
"""Settings that must be equal in the tuning's alignment and the denoiser's alignment, if they share a projector."""


class TuningPerceptual(PerceptualSettings):
    """Settings of the tuning's perceptual distance. The defaults are those of the paper."""

    way_out: ClassVar[str] = "Or tune without: repa-e:perceptual=none (or scenes)"

    kind: Literal["none", "scenes", "lpips"] = Field(
        "lpips",
        description="Network of the perceptual distance (lpips needs its weights, scenes is the packaged scene "
        "encoder, none turns the distance off)",
    )
    weight: float = Field(1.0, gt=0, description="Weight of the perceptual distance in the autoencoder's loss")


class TuningDiscriminator(DiscriminatorSettings):
    """Settings of a discriminator for reconstructions.

    The discriminator is trained together with the autoencoder, and is off by default.
    """

    lr: float = Field(
        1e-4, gt=0, description="Learning rate of the discriminator; warm-up and schedule are those of the plan"
    )


class TuningOptions(RepaOptions):
    """Options of the tuning.

    The weights are those of the paper, except the discriminator's weight. The discriminator's weight is 0 by default,
    and 0.1 in the paper (`adversarial.weight: 0.1`).
    """

    weight: float = Field(1.5, gt=0, description="Weight of the alignment in the autoencoder's loss")
    reconstruction: float = Field(
        1.0, gt=0, description="Weight of the mean absolute difference between image and reconstruction"
    )
    kl: float = Field(
        1e-6,
        ge=0,
        description="Weight of the KL divergence of the posterior from a standard "
        "normal, summed over an image's latents",
    )
    perceptual: Annotated[TuningPerceptual, BeforeValidator(kind_alone)] = Field(
        TuningPerceptual(),
        description="Perceptual distance of the reconstructions, as a kind alone (perceptual=none) or a kind "
        "with settings",
    )
    adversarial: TuningDiscriminator = Field(
        TuningDiscriminator(), description="Discriminator that compares reconstructions with real images"
    )
    lr: float = Field(
        1e-4, gt=0, description="Learning rate of the autoencoder; warm-up and schedule are those of the plan"
    )
    clip_norm: float = Field(
        1.0,
        gt=0,
        description="Gradient norm to which the gradients of the autoencoder and of the "
        "discriminator are clipped, each separately",
    )
    momentum: float = Field(
        0.1, gt=0, le=1, description="Momentum of the running statistics of the latents' batch norm"
    )
    eps: float = Field(1e-4, gt=0, description="Number added to the variance in the latents' batch norm")
    compute: Literal["fp32", "bf16"] = Field(
        "fp32", description="Compute type of the autoencoder; weights stay in fp32. With bf16, LPIPS computes in TF32"
    )


class TuningSettings(TuningOptions, Part):
    kind: Literal["repa-e"] = "repa-e"
    block: int = Field(description="Block whose output is aligned, counted from 1")

    def check(self, plan: PlanView) -> None:
        if reason := plan.tokenizer.why_frozen():
            raise ValueError(f"repa-e: the tokenizer '{plan.tokenizer.kind}' cannot be tuned: {reason}")
        self._check_unread(plan)
        check_block(self.kind, self.block, plan)
        if plan.run.distribution.kind == "fsdp":
            raise ValueError(
                "repa-e: run.distribution.kind is fsdp, which cannot freeze the denoiser during the "
                "autoencoder's step; use ddp"
            )
        shortest_px = min(map(min, plan.image_shapes))
        several = len(plan.image_shapes) > 1
        setting = "the shortest side of all images (data.buckets, train.stages)" if several else "data.size_px"
        self.perceptual.check(shortest_px, setting, "repa-e: ")
        self.adversarial.check(shortest_px, plan.train.steps, setting, "repa-e: ")
        if (loss := aligned_loss(plan)) is not None:
            self._check_shared(loss)

    @staticmethod
    def _check_unread(plan: PlanView) -> None:
        """Raise if a given setting only has an effect on a frozen tokenizer."""
        for name, usual in (("posterior", "mean"), ("scale", None), ("shift", None)):
            if (value := getattr(plan.tokenizer, name, usual)) != usual:
                raise ValueError(
                    f"repa-e: tokenizer.{name} is {value}, but only a frozen tokenizer uses this setting. A "
                    f"trained tokenizer draws from its posterior, and a batch norm scales its latents; set "
                    f"tokenizer.{name} to "
                    f"{'null' if usual is None else usual}"
                )

    def _check_shared(self, loss: RepaSettings) -> None:
        for name in SHARED:
            ours, theirs = getattr(self, name), getattr(loss, name)
            if ours != theirs:
                raise ValueError(
                    f"repa-e and '{loss.kind}' share one projector and one teacher, but {name} is {ours} in "
                    f"tuning and {theirs} in losses; set both to the same value"
                )
        if loss.schedule.kind != "constant":
            raise ValueError(
                f"repa-e needs the projector of '{loss.kind}' at every step, but it has a schedule "
                f"({loss.schedule.kind}); make the schedule constant"
            )

    def build_tokenizer(self, frozen: TokenizerPart) -> TunedTokenizer:
        """Open the network of a tokenizer that will be trained, and add a norm after it."""
        options = {"momentum": self.momentum, "eps": self.eps}
        return TunedTokenizer(frozen.open(), frozen.compression, compute=self.compute, **options)

    def build(self, plan: PlanView, seed: int, tokenizer: Tokenizer) -> JointTraining:
        """Build the joint training of a tokenizer that `build_tokenizer` made."""
        assert isinstance(tokenizer, TunedTokenizer)
        loss = aligned_loss(plan)
        return RepaE(self, tokenizer, self.adversarial.build(seed), self.kind if loss is None else loss.kind)

    def tuned(self, tokenizer: Tokenizer) -> tuple[Autoencoder, Statistics]:
        """Return the trained network of a tokenizer that `build_tokenizer` made, and the statistics of its latents."""
        assert isinstance(tokenizer, TunedTokenizer)
        return tokenizer.network, tokenizer.norm.statistics

    def probe(self, plan: PlanView) -> ProbeSettings | None:
        """Return the term that trains the tuning's projector; None if one of the denoiser's losses trains it."""
        if aligned_loss(plan) is not None:
            return None
        return ProbeSettings(**{name: getattr(self, name) for name in SHARED}, weight=1.0)

    def fetch(self, grid: tuple[int, int]) -> None:
        """Download the required weights, or raise an error. This method is called before a study begins."""
        self.teacher.build(grid, torch.device("cpu"))
        self.perceptual.load(torch.device("cpu"))


def aligned_loss(plan: PlanView) -> RepaSettings | None:
    """Return the plan's loss that aligns the denoiser itself and whose projector the tuning can use."""
    return next((loss for loss in plan.losses if isinstance(loss, RepaSettings)), None)


class ProbeSettings(AlignmentPart, RepaOptions):
    kind: Literal["repa-e"] = "repa-e"

    def build(self, context: LossContext) -> ProbeTerm:
        return ProbeTerm(self, context, repa_projector(context.width, self.hidden, self.teacher.width()))


class ProbeTerm(AlignmentTerm):
    """Loss term that trains only its projector. The term reads detached tokens, so it does not align the denoiser."""

    def loss(self, inputs: LossInputs) -> Tensor:
        features = {block: token_BKD.detach() for block, token_BKD in inputs.output.features.items()}
        return self.aligned(Tapped(features, inputs.output.route), inputs.seen, inputs.image_BCHW)
