"""Base settings of optimizers and weight averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

import torch
from pydantic import Field
from torch import Tensor, nn

from tintype.optim.storage import Storage
from tintype.runtime.layout import Layout
from tintype.seams import WeightAverage
from tintype.settings import Part, PlanView, Settings


class OptimizerPart(Part):
    lr: float = Field(gt=0, description="The learning rate")

    @property
    def smallest_gradient(self) -> float:
        """Return the gradient size below which a step is small because of epsilon, and not because of rounding."""
        return 0.0

    def scaled(self, factor: float) -> Self:
        """Return the settings with every learning rate multiplied by `factor`. Digits due to rounding are removed."""
        return self.model_copy(update={"lr": float(f"{self.lr * factor:.12g}")})

    def matrix_products(self, named: Mapping[str, nn.Parameter]) -> tuple[float, torch.dtype] | None:
        """Return the floating-point operations of a step's matrix products, and their dtype; None if there are none."""
        return None

    def groups(self, named: Mapping[str, nn.Parameter]) -> dict[str, list[str]]:
        """Return the names of the parameters, grouped by the kind of optimizer that updates them."""
        return {self.kind: list(named)}

    def build(
        self, named: Iterable[tuple[str, nn.Parameter]], storage: Storage, layout: Layout
    ) -> torch.optim.Optimizer:
        raise NotImplementedError


MOST_INIT = 0.01
"""A run warns of a larger share of the initial weights in an average. A smaller share is not visible in samples."""


class AverageSettings(Settings):
    """Settings of a weight average.

    Settings of a fixed decay have no `kind`. Settings of all other averages are also a `Part`.
    """

    def check(self, plan: PlanView) -> None:
        """Raise ValueError if the plan cannot use this average."""

    def build(self, weights: Mapping[str, Tensor]) -> WeightAverage:
        raise NotImplementedError

    def update_due(self, step: int) -> bool:
        """Return whether the average is updated after this step. Steps are counted from 1."""
        return True

    def init_share(self, steps: int) -> float:
        """Return the share of the initial weights in the average after `steps` steps."""
        return 0.0

    def init_warning(self, steps: int) -> str | None:
        """Return a warning if the initial weights' share of the average after `steps` steps exceeds `MOST_INIT`."""
        if (share := self.init_share(steps)) <= MOST_INIT:
            return None
        return (
            f"after {steps:,} steps {share:.0%} of the weight average is still the initial weights; use ema with "
            "ramp=true, lower its decay or its every, or train longer"
        )

    def sampled(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights that sampling uses, given the tensors of an average in a checkpoint."""
        return dict(stored)

    def snapshot_due(self, step: int, steps: int) -> bool:
        return False
