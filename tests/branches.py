"""The ways of asking a model for its velocity, as plain functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tintype.flow.guidance import Guide
from tintype.seams import VelocityFn


def _never(x: Tensor, t: float) -> Tensor:
    raise AssertionError("this branch is not needed")


@dataclass(frozen=True)
class PlainBranches:
    captioned: VelocityFn = _never
    null: VelocityFn = _never
    sparse: Callable[[Tensor, float, float], Tensor] = lambda x, t, share: _never(x, t)
    null_shallow: VelocityFn = _never
    of_guide: Callable[[Guide], VelocityFn] = lambda guide: _never

    def captioned_and_null(self, x_t_BCHW: Tensor, t: float) -> tuple[Tensor, Tensor]:
        return self.captioned(x_t_BCHW, t), self.null(x_t_BCHW, t)

    def captioned_sparse(self, share: float) -> VelocityFn:
        return lambda x, t: self.sparse(x, t, share)

    def earlier(self, guide: Guide) -> VelocityFn:
        return self.of_guide(guide)
