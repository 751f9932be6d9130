"""Base class of routes around a range of blocks: range, schedule, and random choice of kept tokens.

B: samples, L: tokens, K: kept tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field
from torch import Tensor

from tintype.errors import UserError
from tintype.flow.part import RoutePart
from tintype.schedule import Schedule
from tintype.seams import Draws, Route
from tintype.settings import Plain, PlanView, Settings


def _is_block(value: int | float) -> int | float:
    if value >= 1 if isinstance(value, int) else 0 < value <= 1:
        return value
    raise ValueError("a block must be a whole number of at least 1, or a share of the depth (above 0, at most 1.0)")


Block = Annotated[int | float, AfterValidator(_is_block)]
"""A block. An integer counts blocks from 1. A float is a fraction of the depth, and 1.0 is the last block."""


class RouteOptions(Settings):
    """A route's options in a user's notation."""

    share: float = Field(gt=0, lt=1, description="Share of the tokens that skip the blocks between `first` and `last`")
    first: Block | None = Field(
        None, description="First block that the tokens skip, as a number counted from 1 or as a share of the depth"
    )
    last: Block | None = Field(
        None, description="Last block that the tokens skip, as a number counted from 1 or as a share of the depth"
    )
    dense: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the steps at the end of training in which no token skips; 1: no token skips at "
        "any step, for a second stage with sft",
    )

    def resolved(self, plan: PlanView) -> Plain:
        depth, steps = plan.model.depth, plan.train.steps
        usual = usual_range(depth)
        first = usual[0] if self.first is None else _block(self.first, depth)
        last = max(first, usual[1]) if self.last is None else _block(self.last, depth)
        ends = 0 < self.dense < 1
        schedule = Schedule(kind="until", end=self._first_dense_step(steps)) if ends else Schedule()
        own = {key: getattr(self, key) for key in type(self).model_fields if key not in ("first", "last", "dense")}
        return {**own, "first": first, "last": last, "schedule": schedule, "dense": self.dense == 1}

    def _first_dense_step(self, steps: int) -> int:
        """Return the first step at which no token skips blocks: at least 1, and at most the last step."""
        first = min(steps - 1, round(steps * (1 - self.dense)))
        if first < 1:
            raise UserError(
                f"dense: tokens never skip, since the last {self.dense:g} of the {steps} steps (train.steps) are dense",
                "lower dense, train longer, or set dense=1 if no token should skip at any step",
            )
        return first


def _block(block: int | float, depth: int) -> int:
    return max(1, round(block * depth)) if isinstance(block, float) else block


def usual_range(depth: int) -> tuple[int, int]:
    """Return PRX's first and last block, counted from 1: 3 to 13 of 16, scaled to this depth."""
    first = min(depth, max(2, round(depth / 8) + 1))
    return first, max(first, round(depth * 13 / 16))


class RangePart(RoutePart):
    """A route around one range of blocks. A schedule can switch the route off for the last steps."""

    share: float = Field(gt=0, lt=1, description="Share of the tokens that skip the blocks from first to last")
    first: int = Field(ge=1, description="First block that tokens skip, counted from 1")
    last: int = Field(ge=1, description="Last block that tokens skip, counted from 1")
    schedule: Schedule = Field(Schedule(), description="Schedule: the steps in which tokens skip")
    dense: bool = Field(
        False, description="No token skips at any step; for a stage that starts from a run in which tokens skipped"
    )

    def problems(self) -> Iterator[str]:
        if self.last < self.first:
            yield f"{self.kind}: the last block to skip ({self.last}) comes before the first ({self.first})"
        if self.schedule.kind not in ("constant", "until"):
            yield f"{self.kind}: tokens skip or they do not: its schedule is constant or until"
        if self.dense and self.schedule.kind != "constant":
            yield f"{self.kind}: with dense no token skips at any step, so its schedule does nothing; leave one out"

    def check(self, plan: PlanView) -> None:
        if self.last > plan.model.depth:
            raise ValueError(
                f"{self.kind}: tokens skip blocks {self.first} to {self.last}, but model.depth is {plan.model.depth}"
            )
        if int(plan.fewest_tokens * self.share) == 0:
            raise ValueError(
                f"{self.kind}: a share of {self.share:g} of {plan.fewest_tokens} tokens is less than one token"
            )
        if not self.dense and not any(self.schedule.factors_in(plan.train.steps)):
            raise ValueError(
                f"{self.kind}: no token skips at any step: route.schedule starts at step {self.schedule.start}, and "
                f"the run has {plan.train.steps} steps (train.steps); start the schedule earlier, or set route.dense"
            )

    def is_sparse(self, step: int) -> bool:
        return not self.dense and self.schedule.factor(step) > 0

    def sparse_blocks(self, step: int) -> range:
        return range(self.first - 1, self.last) if self.is_sparse(step) else range(0)

    def kept(self, tokens: int) -> int:
        return tokens - int(tokens * self.share)


@dataclass(frozen=True)
class Unrouted:
    """Router without a route. Guidance can still make tokens skip blocks."""

    depth: int

    def plan(self, grid: tuple[int, int], step: int, draws: Draws) -> Route | None:
        return None

    def whole(self) -> Route | None:
        return None

    def sparse(self, kept_BK: Tensor) -> Route:
        first, last = usual_range(self.depth)
        return Route(first - 1, last, kept_BK)


def random_kept(draws: Draws, tokens: int, count: int, stream: str = "route") -> Tensor:
    """Draw `count` tokens of each sample, in order. All choices have the same probability."""
    order_BL = draws.uniform(stream, (tokens,)).argsort(dim=1, stable=True)
    return order_BL[:, tokens - count :].sort(dim=1).values
