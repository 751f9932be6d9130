"""Power-function averages of the weights, of several lengths at once, in fp32 (EDM2, arXiv 2312.02696).

A length is the width of the average, relative to the training so far. So the average covers few steps early in training
and many steps later. The mathematics is in `power_function`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from tintype.optim.averages import Averages
from tintype.optim.ema import UPDATES
from tintype.optim.part import AverageSettings
from tintype.optim.power_function import LONGEST, exponent
from tintype.runtime.forms import under
from tintype.settings import Part

Length = Annotated[float, Field(gt=0, lt=LONGEST)]


class PowerEmaSettings(Part, AverageSettings):
    kind: Literal["power"] = "power"
    lengths: tuple[Length, ...] = Field(
        (0.05, 0.10),
        min_length=1,
        description="Relative lengths (sigma_rel) "
        "of the averages: standard deviation of the weighting over time, as a share of the training",
    )
    snapshots: int = Field(16, ge=1, description="Number of snapshots of the averages that a run stores for good")

    @model_validator(mode="after")
    def _different(self) -> PowerEmaSettings:
        if len(set(self.lengths)) < len(self.lengths):
            raise ValueError(f"lengths: a length is given twice in {list(self.lengths)}")
        return self

    def build(self, weights: Mapping[str, Tensor]) -> PowerEma:
        return PowerEma(self.lengths, weights)

    def sampled(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the first length's average, or before the first update nothing: sampling then uses the weights."""
        return under(prefix(self.lengths[0]), stored) if stored[UPDATES] else {}

    def snapshot_due(self, step: int, steps: int) -> bool:
        """Return whether a snapshot is due. Snapshots are evenly spaced, and the last snapshot is at the last step."""
        return step * self.snapshots // steps > (step - 1) * self.snapshots // steps


class PowerEma(Averages):
    """Power-function averages of given weights. The first update copies the weights.

    The device counts `updates`, so a skipped step is not counted.
    """

    def __init__(self, lengths: tuple[float, ...], weights: Mapping[str, Tensor]) -> None:
        self.averages = {
            length: {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in weights.items()}
            for length in lengths
        }
        super().__init__(weights, list(self.averages.values()))
        self.updates = torch.zeros((), dtype=torch.int64, device=self._device)

    def tensors(self) -> dict[str, Tensor]:
        named = {
            f"{prefix(length)}{name}": tensor
            for length, average in self.averages.items()
            for name, tensor in average.items()
        }
        return {UPDATES: self.updates, **named}

    def _shares(self, taken: Tensor) -> list[Tensor]:
        self.updates += taken.long()
        return [(share(length, self.updates) * taken).float() for length in self.averages]


def share(length: float, updates: Tensor) -> Tensor:
    """Return 1 - (1 - 1/t)^(γ + 1) for update number t, in float64 and without cancellation; 1 for the first update.

    If every step so far was skipped, t is 0. For t = 0, any finite result is fine.
    """
    t = updates.double().clamp_min(1)
    return -torch.expm1((exponent(length) + 1) * torch.log1p(-1 / t))


def prefix(length: float) -> str:
    """Return the prefix of an average's tensor names. Each length has a different prefix."""
    return f"{float(length)!r}/"
