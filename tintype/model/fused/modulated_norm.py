"""A modulated norm as one autograd function. The norm's plain form is `model.layers.FinalLayer.modulated`.

B: samples, L: tokens, D: width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tintype.model.fused.norms import Stats, norm, norm_back


def modulated_norm(token_BLD: Tensor, two_B2D: Tensor, kind: torch.dtype, eps: float = 1e-6) -> Tensor:
    """Return the tokens after norm, scale and shift, as `kind`. `two` has the shift, and the scale minus 1."""
    out_BLD: Tensor = _ModulatedNorm.apply(token_BLD.contiguous(), two_B2D, kind, eps)
    return out_BLD


class _ModulatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token_BLD: Tensor, two_B2D: Tensor, kind: torch.dtype, eps: float) -> Tensor:
        _, out, stats = norm(token_BLD, two_B2D, 0, kind, eps=eps)
        ctx.save_for_backward(token_BLD, two_B2D, *stats)
        return out.values_RC.view_as(token_BLD)

    @staticmethod
    def backward(ctx: Any, d_out_BLD: Tensor) -> tuple[Tensor | None, ...]:
        token_BLD, two_B2D, *stats = ctx.saved_tensors
        d_two_B2D = two_B2D.new_empty(two_B2D.shape, dtype=torch.float32)
        d_token_BLD, _ = norm_back(
            d_out_BLD.contiguous(), None, token_BLD, two_B2D, 0, Stats(*stats), d_two_B2D, d_out_BLD.dtype
        )
        return d_token_BLD, d_two_B2D.to(two_B2D.dtype), None, None
