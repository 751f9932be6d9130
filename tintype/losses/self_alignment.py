"""self-alignment: a block's tokens follow a later block of the weight average, which sees less noise (SRA).

The method is Self-Representation Alignment (arXiv 2505.02831). A small head maps the student's tokens after a block.
The mapped tokens are trained to match the tokens of a later block of the averaged denoiser. The averaged denoiser gets
the same image and noise at t' = max(0, t - `gap` u), where u is uniform in [0, 1] for each sample. The averaged
denoiser gets no gradient.

The defaults, smooth L1 with β = 0.05 and a weight of 0.2, are those of the paper. The authors' code now defaults to the
cosine and a weight of 0.5. The authors use blocks 4 and 8 of 12.

Differs: the averaged denoiser gets the text states of the student's text encoder, and passes every token through every
block.

B: samples. L: tokens of the grid. K: tokens that the route kept. D: width of the denoiser.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from tintype.losses.alignment import check_block, minus_mean_cosine
from tintype.losses.part import LossPart, PlanView, Scheduled
from tintype.runtime.tf32 import in_fp32
from tintype.seams import LossContext, LossInputs, LossTerm
from tintype.settings import Plain

BETA = 0.05
_WEIGHTS = {"smooth-l1": 0.2, "cosine": 0.5}


class SelfAlignmentOptions(Scheduled):
    weight: float | None = Field(
        None,
        gt=0,
        description="Weight of this term in the sum of the losses; by default 0.2 for smooth-l1 and 0.5 for cosine",
    )
    block: int | None = Field(
        None, description="Block whose output is aligned, counted from 1; by default a third of the depth"
    )
    teacher_block: int | None = Field(
        None,
        description="Block of the weight average that is the alignment's target; by default two thirds of the depth",
    )
    gap: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Largest amount by which the weight average sees a lower t (less noise) than the model",
    )
    distance: Literal["smooth-l1", "cosine"] = Field(
        "smooth-l1", description="Distance between the tokens of the two blocks"
    )

    def resolved(self, plan: PlanView) -> Plain:
        depth = plan.model.depth
        chosen = {
            "weight": _WEIGHTS[self.distance] if self.weight is None else self.weight,
            "block": max(1, round(depth / 3)) if self.block is None else self.block,
            "teacher_block": max(1, round(2 * depth / 3)) if self.teacher_block is None else self.teacher_block,
        }
        return {**dict(self), **chosen}


class SelfAlignmentSettings(SelfAlignmentOptions, LossPart):
    any_shape: ClassVar[bool] = True

    kind: Literal["self-alignment"] = "self-alignment"
    weight: float = Field(0.2, gt=0, description="Weight of this term in the sum of the losses")
    block: int = Field(description="Block whose output is aligned, counted from 1")
    teacher_block: int = Field(description="Block of the weight average that is the alignment's target, counted from 1")

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        for block in (self.block, self.teacher_block):
            check_block(self.kind, block, plan)
        if plan.ema is None:
            raise ValueError(
                "self-alignment: the teacher is the weight average, but the plan has no average; add the "
                "technique ema, or "
                "set ema.decay"
            )
        if plan.run.distribution.kind == "fsdp":
            raise ValueError(
                "self-alignment: the teacher is the weight average and must not be sharded, but "
                "run.distribution.kind fsdp shards it; use ddp"
            )

    def build(self, context: LossContext) -> SelfAlignment:
        return SelfAlignment(self, context.width)


class SelfAlignment(nn.Module, LossTerm):
    """Loss term with a head that is trained and saved with the model. The head computes in fp32."""

    needs_images = False
    needs_average = True

    def __init__(self, settings: SelfAlignmentSettings, width: int) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.taps = frozenset({settings.block - 1})
        self._settings = settings

    def loss(self, inputs: LossInputs) -> Tensor:
        settings, student = self._settings, self._settings.block - 1
        if inputs.averaged is None:
            raise RuntimeError("self-alignment: the training step was given no weight average")
        shown_B = teacher_time(inputs.sample.t_B, inputs.draws.uniform("self-alignment"), settings.gap)
        tapped = inputs.averaged(shown_B, frozenset({settings.teacher_block - 1}))
        teacher_BLD = tapped.features[settings.teacher_block - 1]
        if (kept_BK := inputs.output.tokens_at(student)) is not None:
            teacher_BLD = teacher_BLD.gather(1, kept_BK[:, :, None].expand(-1, -1, teacher_BLD.shape[2]))
        token_BKD = inputs.output.features[student]
        projected_BKD = in_fp32(self.head, token_BKD)
        with torch.autocast(token_BKD.device.type, enabled=False):
            return self.compare(projected_BKD, teacher_BLD.float())

    def compare(self, projected_BKD: Tensor, teacher_BKD: Tensor) -> Tensor:
        if self._settings.distance == "cosine":
            return minus_mean_cosine(projected_BKD, teacher_BKD)
        return smooth_l1_loss(projected_BKD, teacher_BKD, reduction="none", beta=BETA).flatten(1).mean(1)


def teacher_time(t_B: Tensor, uniform_B: Tensor, gap: float) -> Tensor:
    return (t_B - gap * uniform_B).clamp_min(0)
