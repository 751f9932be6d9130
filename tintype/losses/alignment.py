"""Base of the alignment losses. They train projected tokens of the denoiser to be similar to a frozen teacher's tokens.

The teacher sees the clean image. In REPA (arXiv 2410.06940), the loss of a sample is the negative mean cosine between
projected tokens and teacher tokens.

B: samples. L: tokens of the grid. K: tokens that the route kept. D: width of the denoiser. T: width of the teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from tintype.losses.part import LossPart, PlanView
from tintype.runtime.tf32 import in_fp32
from tintype.seams import LossContext, LossInputs, LossTerm, Output, Tapped
from tintype.settings import Plain, Settings
from tintype.vision.dino import Dinov2TeacherSettings
from tintype.vision.encoders import TeacherChoice
from tintype.vision.part import Grid, Teacher
from tintype.vision.teacher_cache import CacheKind, TeacherCache, forget_teacher_cache, open_teacher_cache


class AlignmentOptions(Settings):
    weight: float = Field(0.5, gt=0, description="Weight of this term in the sum of the losses")
    block: int | None = Field(
        None, description="Block whose output is aligned, counted from 1; by default the middle block"
    )
    teacher: TeacherChoice = Field(
        Dinov2TeacherSettings(), description="The frozen teacher network; the kind scenes needs no download"
    )
    cache: CacheKind = Field("none", description="Where the teacher's tokens are cached in fp16; none: no cache")

    def resolved(self, plan: PlanView) -> Plain:
        """Return the settings with the block filled in: by default the middle block, 8 of 16 as in PRX and REPA."""
        block = (plan.model.depth + 1) // 2 if self.block is None else self.block
        return {**dict(self), "block": block}


class AlignmentPart(AlignmentOptions, LossPart):
    any_shape: ClassVar[bool] = True

    block: int = Field(description="Block whose output is aligned, counted from 1")

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        check_block(self.kind, self.block, plan)

    def fetch(self, grid: tuple[int, int]) -> None:
        self.teacher.build(grid, torch.device("cpu"))


def check_block(kind: str, block: int, plan: PlanView) -> None:
    depth = plan.model.depth
    if not 1 <= block <= depth:
        raise ValueError(
            f"{kind}: block {block} does not exist; model.depth is {depth}, so give a block from 1 to {depth}"
        )


class AlignmentTerm(nn.Module, LossTerm):
    """Loss term with a projector that is trained and saved with the model.

    The teacher is not a module, so it is neither trained nor saved. Projector and cosine are computed in fp32 from fp32
    parameters, whatever the training's precision. If a GPU trains in bf16, the projector's matrix products use TF32. In
    full fp32, these products took longer than the forward pass of a DINOv2-B teacher.
    """

    def __init__(self, settings: AlignmentPart, context: LossContext, projector: nn.Module) -> None:
        super().__init__()
        self.projector = projector
        self.taps = frozenset({settings.block - 1})
        self.caches = settings.cache != "none"
        self._settings, self._context = settings, context
        self._teachers: dict[Grid, Teacher] = {}
        self._caches: dict[Grid, TeacherCache] = {}

    def ready(self) -> str:
        context = self._context
        first = self._settings.teacher.build(context.grid, context.device)
        self._teachers = {context.grid: first}
        if self._settings.cache != "none":
            self._cache(context.grid)
        return first.identity

    def release(self) -> None:
        for cache in self._caches.values():
            forget_teacher_cache(cache)
        self._teachers, self._caches = {}, {}

    def filled_together(self, ids: Sequence[int]) -> list[list[int]]:
        return self._cache(self._context.grid).blocks.holding(ids)

    def prepare(self, ids: Sequence[int], shape: tuple[int, int], images: Callable[[Sequence[int]], Tensor]) -> None:
        self._cache(self._context.grid_at(*shape)).fill(ids, images)

    def expect(self, ids: Sequence[int], shape: tuple[int, int]) -> None:
        self._cache(self._context.grid_at(*shape)).expect(ids)

    def look(self, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor:
        """Return the teacher's tokens on the grid of these images."""
        if not self._teachers:
            raise RuntimeError(f"{self._settings.kind}: call ready() before look()")
        grid = self._context.grid_of(image_BCHW)
        if self._settings.cache == "none":
            return self._teacher(grid).tokens(image_BCHW)
        return self._cache(grid)(image_BCHW, ids)

    def _teacher(self, grid: Grid) -> Teacher:
        """Return the teacher for a grid of tokens. All grids share one network."""
        if grid not in self._teachers:
            self._teachers[grid] = self._teachers[self._context.grid].at_grid(grid)
        return self._teachers[grid]

    def _cache(self, grid: Grid) -> TeacherCache:
        """Return the teacher's cached tokens. All shapes of the data share one cache; each stage has its own."""
        if grid in self._caches:
            return self._caches[grid]
        context, kind = self._context, self._settings.cache
        assert kind != "none"
        grids = grids_of_stage(context, grid)
        first = context.grid if context.grid in grids else next(iter(grids), grid)
        if grid != first:
            self._caches[grid] = self._cache(first).at_grid(self._teacher(grid))
        else:
            key = context.data_key if grid == context.grid else self._stage_key
            self._caches[grid] = open_teacher_cache(
                kind, self._teacher(grid), context.source, key, context.device, grids, context.batch
            )
        return self._caches[grid]

    @property
    def _stage_key(self) -> str:
        """Return the cache key for the smaller images of an earlier stage.

        The data's key and the grid alone would be the same for different stages. So the key includes the grids of all
        stages, which determine the grid of each image in this stage.
        """
        context = self._context
        return f"{context.data_key} {context.token_px} px {context.grids} {context.stage_grids}"

    def loss(self, inputs: LossInputs) -> Tensor:
        return self.aligned(inputs.output, inputs.seen, inputs.image_BCHW)

    def aligned(self, output: Output | Tapped, seen_BLT: Tensor | None, image_BCHW: Tensor | None) -> Tensor:
        """Return each sample's loss, from the denoiser's features and the teacher's tokens that `look` returned."""
        (block,) = self.taps
        if seen_BLT is None or image_BCHW is None:
            raise RuntimeError(f"{self._settings.kind}: call look() before loss()")
        token_BKD, kept_BK = output.features[block], output.tokens_at(block)
        projected_BKT = self.project(token_BKD, kept_BK, self._context.grid_of(image_BCHW))
        with torch.autocast(token_BKD.device.type, enabled=False):
            return self.compare(projected_BKT, seen_BLT, kept_BK)

    def project(self, token_BKD: Tensor, kept_BK: Tensor | None, grid: Grid) -> Tensor:
        """Project the tokens to the teacher's width, in fp32. `grid` is the full grid of a sample's tokens."""
        return in_fp32(self.projector, token_BKD)

    def compare(self, projected_BKT: Tensor, teacher_BLT: Tensor, kept_BK: Tensor | None) -> Tensor:
        if kept_BK is not None:
            teacher_BLT = teacher_BLT.gather(1, kept_BK[:, :, None].expand(-1, -1, teacher_BLT.shape[2]))
        return minus_mean_cosine(projected_BKT, teacher_BLT)


def grids_of_stage(context: LossContext, grid: Grid) -> tuple[Grid, ...]:
    """Return the grids of the stage that has this grid. These grids share a cache, since an image has only one of them.

    A grid that occurs in several stages is left out, since an image can have this grid in only one of these stages.
    """
    stages = (context.grids, *context.stage_grids)

    def stage_of(one: Grid) -> tuple[Grid, ...]:
        found = [grids for grids in stages if one in grids]
        return found[0] if len(found) == 1 else ()

    return tuple(one for one in stage_of(grid) if stage_of(one))


def minus_mean_cosine(projected_BKT: Tensor, teacher_BKT: Tensor) -> Tensor:
    return -cosine_similarity(projected_BKT, teacher_BKT, dim=-1).mean(dim=1)
