"""tread: a random part of the image tokens skips a range of blocks and comes back unchanged (arXiv 2501.04765).

Which tokens skip is drawn anew for each sample and step. Sampling and validation are dense. The paper removes int(N r)
of N tokens; the default range is PRX's, blocks 3 to 13 of 16.

B: samples, L: tokens, K: kept tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from tintype.schedule import Schedule
from tintype.seams import Draws, Route
from tintype.settings import RoutePart, Settings
from tintype.techniques.technique import Technique

if TYPE_CHECKING:
    from tintype.plan import Plan

Block = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)]
"""A block counted from 1, or a share of the depth."""


class Options(Settings):
    share: float = Field(0.5, gt=0, lt=1, description="Share of the tokens that skip")
    first: Block | None = Field(None, description="First block that they skip, counted from 1, or a share of the depth")
    last: Block | None = Field(None, description="Last block that they skip, counted from 1, or a share of the depth")
    dense: float = Field(0.0, ge=0, lt=1, description="Share of the steps, at the end, in which no token skips")


class TreadSettings(RoutePart):
    kind: Literal["tread"] = "tread"
    share: float = Field(0.5, gt=0, lt=1)
    first: int = Field(ge=1, description="First block that tokens skip, counted from 1")
    last: int = Field(ge=1, description="Last block that tokens skip")
    schedule: Schedule = Schedule()

    @model_validator(mode="after")
    def _consistent(self) -> TreadSettings:
        if self.last < self.first:
            raise ValueError(f"tread: the last block to skip ({self.last}) comes before the first ({self.first})")
        if self.schedule.kind not in ("constant", "until"):
            raise ValueError("tread: tokens skip or they do not: its schedule is constant or until")
        return self

    def check(self, plan: Plan) -> None:
        if self.last > plan.model.depth:
            raise ValueError(
                f"tread: tokens skip blocks {self.first} to {self.last}, but model.depth is {plan.model.depth}"
            )

    def build(self, depth: int) -> Tread:
        return Tread(self)


@dataclass(frozen=True)
class Tread:
    settings: TreadSettings

    def plan(self, grid: tuple[int, int], step: int, draws: Draws) -> Route | None:
        tokens = grid[0] * grid[1]
        skipping = int(tokens * self.settings.share)
        if not skipping or not self.settings.schedule.factor(step):
            return None
        order_BL = draws.uniform("route", (tokens,)).argsort(dim=1, stable=True)
        kept_BK = order_BL[:, skipping:].sort(dim=1).values
        return Route(self.settings.first - 1, self.settings.last, kept_BK)


def apply(plan: Plan, options: Options) -> dict[str, Any]:
    depth, steps = plan.model.depth, plan.train.steps
    first = max(2, round(depth / 8) + 1) if options.first is None else _block(options.first, depth)
    last = max(first, round(depth * 13 / 16)) if options.last is None else _block(options.last, depth)
    end = round(steps * (1 - options.dense))
    schedule = Schedule(kind="until", end=max(1, end)) if options.dense else Schedule()
    return {"route": TreadSettings(share=options.share, first=first, last=last, schedule=schedule)}


def _block(block: int | float, depth: int) -> int:
    return max(1, round(block * depth)) if isinstance(block, float) else block


TECHNIQUE = Technique(
    name="tread",
    seam="route",
    summary="a random half of the tokens skips the middle blocks in training",
    apply=apply,
    options=Options,
    paper="arXiv:2501.04765",
    part=TreadSettings,
)
