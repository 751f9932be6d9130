"""Guidance belongs to the evaluation protocol, not to an arm: every arm is sampled with the same one by default.

B: samples, C: channels, H, W: latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from tintype.seams import VelocityFn
from tintype.settings import Part


class ClassifierFreeSettings(Part):
    """v = v_null + scale (v_caption - v_null) for t inside the interval; elsewhere v = v_caption."""

    kind: Literal["classifier-free"] = "classifier-free"
    scale: float = Field(3.5, ge=0)
    from_t: float = Field(0.0, ge=0, le=1)
    to_t: float = Field(1.0, ge=0, le=1)
    unbias: bool = Field(
        False, description="Undo the bias of the run's own contrastive loss; no effect on a run without one"
    )

    @model_validator(mode="after")
    def _interval(self) -> ClassifierFreeSettings:
        if self.from_t > self.to_t:
            raise ValueError(f"from_t ({self.from_t}) is above to_t ({self.to_t})")
        return self

    def build(
        self,
        conditional: VelocityFn,
        both: Callable[[Tensor, float], tuple[Tensor, Tensor]],
        bias: VelocityBias | None = None,
    ) -> VelocityFn:
        return ClassifierFree(self, conditional, both, bias)


@dataclass(frozen=True)
class VelocityBias:
    """What training has made of the velocity v: (v - strength mean) / (1 - strength)."""

    strength: float
    mean_CHW: Tensor

    def undo(self, v_BCHW: Tensor) -> Tensor:
        return torch.lerp(v_BCHW, self.mean_CHW, self.strength)


@dataclass(frozen=True)
class ClassifierFree:
    settings: ClassifierFreeSettings
    conditional: VelocityFn
    both: Callable[[Tensor, float], tuple[Tensor, Tensor]]
    bias: VelocityBias | None = None
    """Undone once, on the guided velocity: the bias is affine, and the weights of the two branches sum to one."""

    def __call__(self, x_t_BCHW: Tensor, t: float) -> Tensor:
        v_BCHW = self._guided(x_t_BCHW, t)
        return v_BCHW if self.bias is None else self.bias.undo(v_BCHW)

    def _guided(self, x_t_BCHW: Tensor, t: float) -> Tensor:
        settings = self.settings
        if settings.scale == 1 or not settings.from_t <= t <= settings.to_t:
            return self.conditional(x_t_BCHW, t)
        captioned, null = self.both(x_t_BCHW, t)
        return torch.lerp(null, captioned, settings.scale)
