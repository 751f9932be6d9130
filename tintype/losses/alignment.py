"""Alignment: tokens inside the denoiser, projected, are to point as a frozen teacher's tokens of the clean image do.

REPA (arXiv 2410.06940): the loss of a sample is minus the mean cosine over its tokens. This file has
what the losses of this family share.

B: samples. L: tokens of the grid. K: those that the route kept. D: width of the denoiser. T: width of the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from tintype.losses.part import LossPart, PlanView
from tintype.seams import LossContext, LossInputs, LossTerm, Output, Tapped
from tintype.settings import Plain, Settings
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.encoders import TeacherChoice
from tintype.vision.part import Teacher
from tintype.vision.teacher_cache import CacheKind, TeacherCache, forget_teacher_cache, open_teacher_cache


class AlignmentOptions(Settings):
    weight: float = Field(0.5, gt=0, description="Its weight in the sum of the losses")
    block: int | None = Field(
        None, description="The block whose output is aligned, counted from 1; by default the middle"
    )
    teacher: TeacherChoice = Field(Dinov2TeacherSettings(), description="The frozen network; scenes needs no download")
    cache: CacheKind = Field("none", description="Where the teacher's tokens are kept, in fp16; without one, nowhere")

    def resolved(self, plan: PlanView) -> Plain:
        """Return the settings of a part: the middle is block 8 of 16, PRX's and REPA's."""
        block = (plan.model.depth + 1) // 2 if self.block is None else self.block
        return {**dict(self), "block": block}


class AlignmentPart(AlignmentOptions, LossPart):
    block: int = Field(description="The block whose output is aligned, counted from 1")

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        check_block(self.kind, self.block, plan)

    def fetch(self, grid: tuple[int, int]) -> None:
        self.teacher.build(grid, torch.device("cpu"))


def check_block(kind: str, block: int, plan: PlanView) -> None:
    """Raise ValueError where the denoiser has no such block."""
    depth = plan.model.depth
    if not 1 <= block <= depth:
        raise ValueError(
            f"{kind}: there is no block {block} to align; model.depth is {depth}, so block is 1 to {depth}"
        )


class AlignmentTerm(nn.Module, LossTerm):
    """Term with a projector that is trained and saved with the model; the teacher is no module, so it is not.

    Projector and cosine are computed in fp32 from parameters in fp32, whatever the precision of training.
    """

    def __init__(self, settings: AlignmentPart, context: LossContext, projector: nn.Module) -> None:
        super().__init__()
        self.projector = projector
        self.taps = frozenset({settings.block - 1})
        self._settings, self._context = settings, context
        self._teacher: Teacher | None = None
        self._cache: TeacherCache | None = None

    def ready(self) -> str:
        settings, context = self._settings, self._context
        self._teacher = settings.teacher.build(context.grid, context.device)
        if settings.cache != "none":
            self._cache = open_teacher_cache(
                settings.cache, self._teacher, context.source, context.data_key, context.device
            )
        return self._teacher.identity

    def release(self) -> None:
        if self._cache is not None:
            forget_teacher_cache(self._cache)
        self._teacher = self._cache = None

    def look(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor:
        if self._teacher is None:
            raise RuntimeError(f"{self._settings.kind}: ready() comes before look()")
        return self._cache(image_BCHW, ids) if self._cache else self._teacher.tokens(image_BCHW)

    def loss(self, inputs: LossInputs) -> Tensor:
        return self.aligned(inputs.output, inputs.seen)

    def aligned(self, output: Output | Tapped, seen_BLT: Tensor | None) -> Tensor:
        """Return the loss of each sample, from its tapped features and the result of `look`."""
        (block,) = self.taps
        if seen_BLT is None:
            raise RuntimeError(f"{self._settings.kind}: look() comes before loss()")
        token_BKD, kept_BK = output.features[block], output.tokens_at(block)
        with torch.autocast(token_BKD.device.type, enabled=False):
            return self.compare(token_BKD.float(), seen_BLT, kept_BK)

    def compare(self, token_BKD: Tensor, teacher_BLT: Tensor, kept_BK: Tensor | None) -> Tensor:
        """Return the loss of each sample."""
        if kept_BK is not None:
            teacher_BLT = teacher_BLT.gather(1, kept_BK[:, :, None].expand(-1, -1, teacher_BLT.shape[2]))
        return minus_mean_cosine(self.projector(token_BKD), teacher_BLT)


def minus_mean_cosine(projected_BKT: Tensor, teacher_BKT: Tensor) -> Tensor:
    return -cosine_similarity(projected_BKT, teacher_BKT, dim=-1).mean(dim=1)
