"""tread: random image tokens skip a range of blocks, and come out unchanged (arXiv 2501.04765).

The tokens that skip are drawn for each sample and step. Sampling and validation use all tokens in all blocks. As in the
paper, int(N r) of N tokens skip. The default range is PRX's, blocks 3 to 13 of 16.

K: kept tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from tintype.flow.routes import RangePart, random_kept
from tintype.seams import Draws, Route
from tintype.settings import ModelSettings


class TreadSettings(RangePart):
    any_shape: ClassVar[bool] = True

    kind: Literal["tread"] = "tread"

    def build(self, model: ModelSettings) -> Tread:
        return Tread(self)


@dataclass(frozen=True)
class Tread:
    settings: TreadSettings

    def plan(self, grid: tuple[int, int], step: int, draws: Draws) -> Route | None:
        tokens = grid[0] * grid[1]
        if not self.settings.is_sparse(step):
            return None
        return self.sparse(random_kept(draws, tokens, self.settings.kept(tokens)))

    def whole(self) -> Route | None:
        return None

    def sparse(self, kept_BK: Tensor) -> Route:
        return Route(self.settings.first - 1, self.settings.last, kept_BK)
