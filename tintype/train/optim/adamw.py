"""AdamW, in torch's fused form. The defaults are PRX's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field

from tintype.settings import OptimizerPart


class AdamWSettings(OptimizerPart):
    kind: Literal["adamw"] = "adamw"
    lr: float = Field(1e-4, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-15, gt=0)
    weight_decay: float = Field(0.0, ge=0)

    def build(self, named: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [parameter for _, parameter in named],
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )
