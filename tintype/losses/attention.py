"""attention: blocks of the denoiser are trained towards the attention maps of a frozen teacher's last layers (HASTE).

HASTE (arXiv 2505.16792) aligns attention maps in addition to REPA's features, and stops both losses during training.
The last `layers` layers of the teacher are the targets for the same number of denoiser blocks. `block` is the last of
these blocks. The authors use blocks five to eight of 28, and the last four of the teacher's twelve layers.

A token's loss is the cross entropy between the teacher's attention over patches and the denoiser's attention over image
tokens. Class token, registers and text are left out, and both maps are normalised over the remaining tokens. The loss
is averaged over tokens, heads and layers. If the numbers of heads differ, only the first heads that both have are
compared. All these choices for the loss are those of the authors' code.

B: samples. L: tokens of the grid. K: tokens that the route kept. N: layers. A: heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from tintype.errors import UserError
from tintype.losses.alignment import check_block
from tintype.losses.part import LossPart, PlanView
from tintype.seams import LossContext, LossInputs, LossTerm
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.encoders import TeacherChoice
from tintype.vision.transformers_teacher import TransformersTeacher


class AttentionSettings(LossPart):
    kind: Literal["attention"] = "attention"
    weight: float = Field(0.5, gt=0, description="Weight of this term in the sum of the losses")
    block: int = Field(description="Last block whose attention maps are aligned, counted from 1")
    layers: int = Field(
        4,
        ge=1,
        description="Number of aligned blocks (the last one is `block`), and of the teacher's last "
        "layers with which they are aligned",
    )
    teacher: TeacherChoice = Field(
        Dinov2TeacherSettings(), description="The frozen teacher network; must be a vision transformer"
    )

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        check_block(self.kind, self.block, plan)
        if self.layers > self.block:
            raise ValueError(
                f"attention: layers is {self.layers}, but there are only {self.block} blocks up to block "
                f"{self.block}; lower layers, or raise block"
            )
        if self.teacher.kind in ("scenes", "vgg16"):
            raise ValueError(
                f"attention: the teacher '{self.teacher.kind}' is a convolutional network without attention; "
                f"use dinov2, dinov3 or transformers"
            )
        if plan.run.distribution.kind == "fsdp":
            raise ValueError(
                "attention: the attention maps are computed outside the blocks and need unsharded weights, "
                "which run.distribution.kind=fsdp does not give; use ddp"
            )

    def fetch(self, grid: tuple[int, int]) -> None:
        self.teacher.build(grid, torch.device("cpu"))

    def build(self, context: LossContext) -> AttentionTerm:
        return AttentionTerm(self, context)


class AttentionTerm(LossTerm):
    def __init__(self, settings: AttentionSettings, context: LossContext) -> None:
        self._settings, self._context = settings, context
        self.blocks = range(settings.block - settings.layers, settings.block)
        self.attention_taps = frozenset(self.blocks)
        self._teacher: TransformersTeacher | None = None

    def ready(self) -> str:
        teacher = self._settings.teacher.build(self._context.grid, self._context.device)
        if not isinstance(teacher, TransformersTeacher):
            raise UserError(f"attention: {teacher.words} has no attention", "use dinov2, dinov3 or transformers")
        teacher.check_attention(self._settings.layers)
        self._teacher = teacher
        return teacher.identity

    def release(self) -> None:
        self._teacher = None

    def look(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor:
        if self._teacher is None:
            raise RuntimeError("attention: call ready() before look()")
        return self._teacher.attention(image_BCHW, self._settings.layers)

    def loss(self, inputs: LossInputs) -> Tensor:
        if inputs.seen is None:
            raise RuntimeError("attention: call look() before loss()")
        output, total_B = inputs.output, torch.zeros(len(inputs.seen), device=inputs.seen.device)
        for index, block in enumerate(self.blocks):
            map_BALL = inputs.seen[:, index]
            if (kept_BK := output.tokens_at(block)) is not None:
                map_BALL = among(map_BALL, kept_BK)
            with torch.autocast(map_BALL.device.type, enabled=False):
                total_B = total_B + cross_entropy(output.attention[block].float(), map_BALL)
        return total_B / len(self.blocks)


def among(map_BALL: Tensor, kept_BK: Tensor) -> Tensor:
    """Return the attention among the kept tokens, normalised over these tokens."""
    heads, length = map_BALL.shape[1], map_BALL.shape[3]
    rows = kept_BK[:, None, :, None].expand(-1, heads, -1, length)
    columns = kept_BK[:, None, None, :].expand(-1, heads, kept_BK.shape[1], -1)
    kept_BAKK = map_BALL.gather(2, rows).gather(3, columns)
    return kept_BAKK / kept_BAKK.sum(-1, keepdim=True)


def cross_entropy(logit_BALL: Tensor, map_BALL: Tensor) -> Tensor:
    """Return the cross entropy, averaged over tokens and over the heads that both maps have."""
    heads = min(logit_BALL.shape[1], map_BALL.shape[1])
    log_BALL = logit_BALL[:, :heads].log_softmax(-1)
    return -(map_BALL[:, :heads] * log_BALL).sum(-1).mean((1, 2))
