"""sprint: the middle blocks process a quarter of the tokens, and a layer fuses them with the dense tokens (arXiv
2510.21986).

The first blocks are dense. After the sparse blocks, a mask token replaces the missing tokens. One linear layer, W
[deep, shallow] + b, then combines the deep tokens with the tokens from before the sparse blocks. Sampling also uses
this layer, with no tokens missing. In training, all deep tokens of a sample are sometimes replaced by mask tokens, for
path-drop guidance. `dense` is the length of the second, dense stage. In this stage, the paper also raises batch and
learning rate, which `sft` with `dense=1` can do.

Differs: the default range of blocks is PRX's, so that arms can be compared. In the paper, the two first and the two
last blocks are dense (first=3, last=26 of 28). PRX's variant is sampling=random,mask=learned,path_drop=0.

B: samples, L: tokens, K: kept tokens, D: width, G: groups of tokens, S: tokens of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from tintype.flow.routes import RangePart, random_kept
from tintype.model.rows import put_rows
from tintype.seams import Draws, Route
from tintype.settings import ModelSettings, PlanView, Settings

_MASK_STD = 0.02


class SprintOptions(Settings):
    sampling: Literal["grouped", "random"] = Field(
        "grouped",
        description="Which tokens are kept, either equally many in each small square (grouped, as in the paper) "
        "or any (random, as in PRX)",
    )
    mask: Literal["fixed", "learned"] = Field(
        "fixed",
        description="Mask token that replaces skipped tokens, either fixed (drawn once) or learned (initialised "
        "with zeros, as in PRX)",
    )
    path_drop: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of the samples whose middle blocks are dropped, with mask tokens as their output",
    )


class SprintSettings(SprintOptions, RangePart):
    any_shape: ClassVar[bool] = True

    kind: Literal["sprint"] = "sprint"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.sampling == "grouped":
            group_side(self.share)

    def check(self, plan: PlanView) -> None:
        super().check(plan)
        for rows, columns in plan.token_grids if self.sampling == "grouped" else ():
            if rows % (side := group_side(self.share)) or columns % side:
                raise ValueError(
                    f"sprint: {rows} × {columns} tokens cannot be divided into squares of {side} × {side}, "
                    f"which share {self.share:g} needs; change model.patch or the images' sizes, or set sampling=random"
                )

    def build(self, model: ModelSettings) -> Sprint:
        return Sprint(self, model.width)


def group_side(share: float) -> int:
    """Return the side (2 or 4) of the smallest square of tokens in which this share is a whole number of tokens."""
    for side in (2, 4):
        if (share * side**2).is_integer():
            return side
    raise ValueError(
        f"sprint: grouped sampling needs a share that is a multiple of 1/16, not {share:g}; or set sampling=random"
    )


class Sprint(nn.Module):
    def __init__(self, settings: SprintSettings, width: int) -> None:
        super().__init__()
        self.settings = settings
        self.fusion = nn.Linear(2 * width, width)
        nn.init.xavier_uniform_(self.fusion.weight)
        nn.init.zeros_(self.fusion.bias)
        if settings.mask == "learned":
            self.mask_D: Tensor = nn.Parameter(torch.zeros(width))
        else:
            self.register_buffer("mask_D", torch.randn(width) * _MASK_STD)

    def plan(self, grid: tuple[int, int], step: int, draws: Draws) -> Route | None:
        share = self.settings.path_drop
        dropped_B = draws.uniform("path-drop") < share if share else None
        kept_BK = self._kept(grid, draws) if self.settings.is_sparse(step) else None
        return self._route(kept_BK, dropped_B)

    def whole(self) -> Route | None:
        return self._route(None)

    def sparse(self, kept_BK: Tensor) -> Route:
        return self._route(kept_BK)

    def _route(self, kept_BK: Tensor | None, dropped_B: Tensor | None = None) -> Route:
        merge = partial(self.fuse, dropped_B=dropped_B)
        return Route(self.settings.first - 1, self.settings.last, kept_BK, merge)

    def _kept(self, grid: tuple[int, int], draws: Draws) -> Tensor:
        tokens = grid[0] * grid[1]
        if self.settings.sampling == "random":
            return random_kept(draws, tokens, self.settings.kept(tokens))
        return grouped_kept(draws, grid, self.settings.share)

    def fuse(
        self, whole_BLD: Tensor, deep_BKD: Tensor, kept_BK: Tensor | None, dropped_B: Tensor | None = None
    ) -> Tensor:
        """Combine the tokens from before the sparse blocks (`whole_BLD`) with those kept after them (`deep_BKD`)."""
        mask_D = self.mask_D.to(deep_BKD.dtype)
        deep_BLD = deep_BKD
        if kept_BK is not None:
            deep_BLD = put_rows(mask_D.expand_as(whole_BLD), kept_BK, deep_BKD)
        if dropped_B is not None:
            deep_BLD = torch.where(dropped_B[:, None, None], mask_D, deep_BLD)
        fused_BLD: Tensor = self.fusion(torch.cat([deep_BLD, whole_BLD.to(deep_BLD.dtype)], dim=-1))
        return fused_BLD


def grouped_kept(draws: Draws, grid: tuple[int, int], share: float) -> Tensor:
    """Draw the same number of tokens from each square of tokens, for each sample, in order."""
    side, (rows, columns) = group_side(share), grid
    index_HW = torch.arange(rows * columns, device=draws.position_B.device).view(rows, columns)
    index_GS = index_HW.view(rows // side, side, columns // side, side).transpose(1, 2).reshape(-1, side**2)
    order_BGS = draws.uniform("route", tuple(index_GS.shape)).argsort(dim=2, stable=True)
    count = side**2 - round(share * side**2)
    kept_BGK = index_GS.expand(len(order_BGS), -1, -1).gather(2, order_BGS[:, :, :count])
    return kept_BGK.flatten(1).sort(dim=1).values
