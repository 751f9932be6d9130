"""How an optimizer stores updated weights: in fp32 as they are, or in bf16, which has 8 bits for a number.

In bf16 a step smaller than about 1/256 of a weight is lost when it is rounded to nearest. Rounded stochastically it is
kept on average; with Kahan's compensation what was rounded away is kept beside the weight and added the next time.
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
"""The slot of an optimizer's state that holds what was rounded away."""


@dataclass(frozen=True)
class Storage:
    rounding: Rounding = "nearest"
    seed: int = 0
    shard: int = 0
    """Index of this rank's shard. Each shard draws its own random numbers, and its replicas the same."""

    def open(self, weights: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> list[Tensor]:
        """The weights to compute with: themselves in fp32, else copies in fp32."""
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
        """Rounds the moved copies into the weights. Where `skipped` is 1 they stay as they are."""
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
        """Return the slots of an optimizer's state that `close` keeps for a weight."""
        compensated = self.rounding == "kahan" and weight.dtype != torch.float32
        return {COMPENSATION: form_of(weight)} if compensated else {}

    def generator(self, device: torch.device, update: int, sharded: bool = False) -> torch.Generator | None:
        """The random numbers of an update: a function of the seed and its number, so that there is none to save."""
        if self.rounding != "stochastic":
            return None
        shard = f"/{self.shard}" if sharded and self.shard else ""
        return torch.Generator(device).manual_seed(stream_key(self.seed, f"rounding/{update}{shard}"))


EXACT = Storage()
"""Weights as they are, or rounded to nearest by torch itself."""


def round_stochastically(value: Tensor, generator: torch.Generator) -> Tensor:
    """fp32 to bf16, up or down with the probabilities that make the mean right: random bits below the kept ones."""
    noise = torch.randint(0, 1 << 16, value.shape, dtype=torch.int32, device=value.device, generator=generator)
    return ((value.view(torch.int32) + noise) & _KEPT_BITS).view(torch.float32).to(torch.bfloat16)
