"""Parse the size of a change, which is relative to the baseline's mean or in the metric's unit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tintype.errors import UserError


@dataclass(frozen=True)
class Effect:
    size: float
    relative: bool

    def __str__(self) -> str:
        return f"{100 * self.size:g}%" if self.relative else f"{self.size:g}"

    def on(self, baseline: float) -> float:
        return self.size * abs(baseline) if self.relative else self.size


def parse_effect(text: str, where: str) -> Effect:
    """Parse an effect from `where`: `5%` is relative to the baseline's mean; `0.02` is in the metric's unit."""
    percent = text.strip().endswith("%")
    try:
        size = float(text.strip().removesuffix("%"))
    except ValueError:
        raise UserError(
            f"{where} is not a valid size of a difference",
            "write a percentage of the baseline's mean, such as 5%, or a difference, such as 0.02",
        ) from None
    if not math.isfinite(size) or size <= 0:
        raise UserError(f"{where} is not above zero", "give a positive size, whatever the direction of the difference")
    return Effect(size / 100 if percent else size, percent)
