"""irepa: alignment that emphasises the teacher's spatial structure (arXiv 2512.10794).

iREPA changes REPA in two ways. The projector is one 3 × 3 convolution over the grid of tokens. In each channel of the
teacher's tokens, a fraction of the spatial mean is subtracted, and the result is scaled to unit standard deviation. The
default weight is REPA's 0.5, so that iREPA can be compared with REPA. The authors use 1.0 on latents and 0.5 on pixels.

B: samples. L: tokens of the grid. K: tokens that the route kept. D: width of the denoiser. T: width of the teacher. H,
W: rows and columns of tokens.
"""

from __future__ import annotations

from math import prod
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.losses.alignment import AlignmentOptions, AlignmentPart, AlignmentTerm, minus_mean_cosine
from tintype.losses.part import PlanView, Scheduled
from tintype.runtime.tf32 import in_fp32
from tintype.seams import LossContext
from tintype.vision.part import Grid

_EPSILON = 1e-6


class IrepaOptions(AlignmentOptions, Scheduled):
    alpha: float = Field(
        0.6,
        ge=0,
        le=1,
        description="Share of the mean token that is subtracted from the teacher's tokens; the authors' command "
        "has 0.6, their function 1.0",
    )


class IrepaSettings(AlignmentPart, IrepaOptions):
    kind: Literal["irepa"] = "irepa"

    def check(self, plan: PlanView) -> None:
        """Raise if the block does not process all tokens at the first step of this loss term."""
        super().check(plan)
        if len(plan.token_grids) > 1 and plan.fewest_tokens == 1:
            raise ValueError("irepa: images with a single token have no spatial structure; use larger sizes and shapes")
        if plan.route is not None and self.block - 1 in plan.route.sparse_blocks(self.schedule.start):
            raise ValueError(_routed(self.block, f"a part of the tokens (route.kind '{plan.route.kind}')"))

    def build(self, context: LossContext) -> IrepaTerm:
        if context.grid == (1, 1):
            raise UserError(
                "irepa: a denoiser with a single token has no spatial structure", "make model.patch smaller"
            )
        return IrepaTerm(self, context)


class IrepaTerm(AlignmentTerm):
    def __init__(self, settings: IrepaSettings, context: LossContext) -> None:
        super().__init__(settings, context, nn.Conv2d(context.width, settings.teacher.width(), 3, padding=1))
        self._alpha, self._block = settings.alpha, settings.block

    def project(self, token_BKD: Tensor, kept_BK: Tensor | None, grid: Grid) -> Tensor:
        if kept_BK is not None:
            raise UserError(_routed(self._block, f"{kept_BK.shape[1]} of {prod(grid)} tokens"))
        map_BDHW = token_BKD.transpose(1, 2).unflatten(2, grid)
        return in_fp32(self.projector, map_BDHW).flatten(2).transpose(1, 2)

    def compare(self, projected_BKT: Tensor, teacher_BLT: Tensor, kept_BK: Tensor | None) -> Tensor:
        return minus_mean_cosine(projected_BKT, spatially_normalised(teacher_BLT, self._alpha))


def spatially_normalised(token_BLT: Tensor, alpha: float) -> Tensor:
    """Return (y - alpha * mean) / (std + 1e-6), with mean and unbiased std over the tokens of a sample."""
    mean_B1T, deviation_B1T = token_BLT.mean(dim=1, keepdim=True), token_BLT.std(dim=1, keepdim=True)
    return (token_BLT - alpha * mean_B1T) / (deviation_B1T + _EPSILON)


def _routed(block: int, seen: str) -> str:
    return (
        f"irepa convolves over the whole grid, but block {block} sees {seen}; take a block outside the route "
        "(irepa:block=N), or an alignment that goes token by token"
    )
