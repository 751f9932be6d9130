"""Store updated weights in fp32, or in bf16, which has 8 significant bits.

With bf16 and rounding to nearest, a step smaller than about 1/256 of a weight is lost. Stochastic rounding preserves
such steps on average. Kahan's compensation stores the rounding error in a separate tensor, and adds it at the next
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tintype.rng import stream_key
from tintype.runtime.forms import Form, form_of
from tintype.runtime.layout import local

Rounding = Literal["nearest", "stochastic", "kahan"]
_KEPT_BITS = -(1 << 16)
COMPENSATION = "compensation"
"""Name of the optimizer slot with the rounding error."""


@dataclass(frozen=True)
class Storage:
    rounding: Rounding = "nearest"
    seed: int = 0
    shard: int = 0
    """Index of this rank's shard. Each shard has its own random numbers, and all replicas of a shard have the same."""

    def open(self, weights: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> list[Tensor]:
        """Return the weights with which the step computes, which are fp32 weights or fp32 copies of bf16 weights."""
        opened = [local(weight).float() for weight in weights]
        if self.rounding == "kahan":
            opened = [
                one + local(state[COMPENSATION]).float() if COMPENSATION in state else one
                for one, state in zip(opened, states, strict=True)
            ]
        return opened

    def close(
        self,
        weights: Sequence[Tensor],
        opened: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        generator: torch.Generator | None,
        skipped: Tensor | None = None,
    ) -> None:
        """Round the updated copies into the weights. If `skipped` is 1, the weights stay unchanged."""
        for whole, moved, state in zip(weights, opened, states, strict=True):
            weight = local(whole)
            if weight.dtype == moved.dtype:  # it was moved itself
                continue
            if self.rounding == "stochastic":
                assert generator is not None
                rounded = round_stochastically(moved, generator)
            else:
                rounded = moved.to(weight.dtype)
            if skipped is not None:
                rounded = torch.where(skipped > 0, weight, rounded)
            if self.rounding == "kahan":
                left = (moved - rounded.float()).to(weight.dtype)
                if COMPENSATION not in state:
                    state[COMPENSATION] = torch.zeros_like(whole)
                before = local(state[COMPENSATION])
                before.copy_(left if skipped is None else torch.where(skipped > 0, before, left))
            weight.copy_(rounded)

    def slots(self, weight: Tensor) -> dict[str, Form]:
        """Return the optimizer state slots that `close` needs for a weight."""
        compensated = self.rounding == "kahan" and weight.dtype != torch.float32
        return {COMPENSATION: form_of(weight)} if compensated else {}

    def generator(self, device: torch.device, update: int, sharded: bool = False) -> torch.Generator | None:
        """Return an update's random generator, which depends only on seed and number, so it has no state to save."""
        if self.rounding != "stochastic":
            return None
        shard = f"/{self.shard}" if sharded and self.shard else ""
        return torch.Generator(device).manual_seed(stream_key(self.seed, f"rounding/{update}{shard}"))


EXACT = Storage()
"""Storage in fp32, or storage for which torch itself rounds to nearest."""


def round_stochastically(value: Tensor, generator: torch.Generator) -> Tensor:
    """Round fp32 to bf16 with an exact mean: random bits are added below the kept bits."""
    noise = torch.randint(0, 1 << 16, value.shape, dtype=torch.int32, device=value.device, generator=generator)
    return ((value.view(torch.int32) + noise) & _KEPT_BITS).view(torch.float32).to(torch.bfloat16)
