"""Linear layers in FP8.

The matrix products for output, gradient of the input and gradient of the weight run in FP8. Weights keep their dtype.
Both operands are cast to FP8 for each product, and the result is bf16. Weights and activations are e4m3. The output's
gradient is e5m2, which has the wider range. Each row of an operand has its own scale, and the product sums along rows.
So a token's output does not depend on other tokens or images of the batch, and an outlier only affects its own row.

M: tokens of the batch, K: size in, N: size out, R, C: rows and columns of any matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tintype.settings import FP8_MULTIPLE

_LEAST = 1e-30
"""Used instead of the row's maximum if a row contains only zeros."""
_CAPABILITY = (8, 9)


def runs_on(device: torch.device) -> bool:
    """Return whether the device has matrix units for FP8. NVIDIA's GPUs have them since Ada and Hopper."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= _CAPABILITY


class Fp8Linear(nn.Linear):
    """A linear layer without bias. Parameters and parameter names are those of `nn.Linear`."""

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__(size_in, size_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x_MK = x.bfloat16().reshape(-1, self.in_features)
        out_MN: Tensor = _Products.apply(x_MK, self.weight)  # type: ignore[no-untyped-call]
        return out_MN.view(*x.shape[:-1], self.out_features)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, weight_NK: Tensor) -> Tensor:
        ctx.save_for_backward(x_MK, weight_NK)
        return product(x_MK, weight_NK, torch.float8_e4m3fn, fast=True)

    @staticmethod
    def backward(ctx: Any, gradient_MN: Tensor) -> tuple[Tensor, Tensor]:
        x_MK, weight_NK = ctx.saved_tensors
        of_x_MK = product(gradient_MN, weight_NK.t(), torch.float8_e5m2)
        of_weight_NK = product(_filled(gradient_MN).t(), _filled(x_MK).t(), torch.float8_e5m2)
        return of_x_MK, of_weight_NK.to(weight_NK.dtype)


def product(left_RK: Tensor, right_CK: Tensor, left_type: torch.dtype, fast: bool = False) -> Tensor:
    """Return left rightᵀ in bf16. With `fast`, sums use fewer bits: enough for forward products, not for gradients."""
    left_8, left_scale_R1 = scaled(left_RK, left_type)
    right_8, right_scale_C1 = scaled(right_CK, torch.float8_e4m3fn)
    return torch._scaled_mm(
        left_8, right_8.t(), left_scale_R1, right_scale_C1.t(), out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def scaled(x_RC: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the matrix in FP8, and the divisor of each row [R, 1], which maps the row's maximum to FP8's maximum."""
    most = torch.finfo(kind).max
    scale_R1 = x_RC.abs().amax(1, keepdim=True).float().clamp(min=_LEAST) / most
    return (x_RC.float() / scale_R1).clamp(-most, most).to(kind).contiguous(), scale_R1


def _filled(x_MC: Tensor) -> Tensor:
    """Append rows of zeros, up to a number of tokens that FP8 products support."""
    missing = -x_MC.shape[0] % FP8_MULTIPLE
    return nn.functional.pad(x_MC, (0, 0, 0, missing)) if missing else x_MC
