"""The matrix products of a fused block. Operands and weights are bf16, or FP8 with one scale per row.

R: rows (tokens), K: size in, N: size out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tintype.model.fused.quantise import new_transposed, quantise, transpose
from tintype.runtime.copies import Copy, cast

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
COPY_TYPE = torch.bfloat16


@dataclass(frozen=True)
class Operand:
    """A matrix that a kernel wrote, in the stream's dtype or in FP8 with one scale per row."""

    values_RC: Tensor
    scale_R: Tensor

    @property
    def quantised(self) -> bool:
        return self.values_RC.dtype.itemsize == 1


def new_operand(rows: int, columns: int, kind: torch.dtype, device: torch.device) -> Operand:
    scales = rows if kind.itemsize == 1 else 0
    return Operand(
        torch.empty(rows, columns, dtype=kind, device=device), torch.empty(scales, dtype=torch.float32, device=device)
    )


def quantised(x_RC: Tensor, kind: torch.dtype) -> Operand:
    operand = new_operand(x_RC.shape[0], x_RC.shape[1], kind, x_RC.device)
    quantise(x_RC, operand.values_RC, operand.scale_R)
    return operand


class Weight:
    """One or several stacked parameters, cast for the products. Parameters are cast once per step, not once per batch.

    The copies keep their memory addresses, so that a captured graph reads new casts.
    """

    def __init__(self, parameters: Sequence[Tensor], fp8: bool) -> None:
        self._fp8 = fp8
        self._sizes = [len(parameter) for parameter in parameters]
        like, rows = parameters[0], sum(self._sizes)
        operand = new_operand(rows, like.shape[1], E4M3 if fp8 else COPY_TYPE, like.device)
        self.values_NK, self.scale_N = operand.values_RC, operand.scale_R
        places = self.values_NK.split(self._sizes)
        self._copies = [Copy(parameter, place) for parameter, place in zip(parameters, places, strict=True)]
        if fp8:
            self.transposed_KN, self.scale_K = new_transposed(self.values_NK), like.new_empty(like.shape[1])

    @property
    def copies(self) -> list[Copy]:
        """Return the copies, not of FP8, that an optimizer can update by casting each of their numbers alone."""
        return [] if self._fp8 else self._copies

    def refresh(self) -> None:
        """Cast the parameters that have changed since the last call."""
        stale = [copy for copy in self._copies if not copy.fresh]
        if not stale:
            return
        if self._fp8:
            self._quantise()
        else:
            cast(stale)
        for copy in self._copies:
            copy.mark_fresh()

    @torch.no_grad()
    def _quantise(self) -> None:
        scales = self.scale_N.split(self._sizes)
        for copy, scale_N in zip(self._copies, scales, strict=True):
            quantise(copy.weight, copy.values, scale_N)
        most = self.scale_N.amax()
        transpose(self.values_NK, self.transposed_KN, self.scale_N / most)
        self.scale_K.copy_(most.expand_as(self.scale_K))


def product(x: Operand, weight: Weight) -> Tensor:
    """Return x Wᵀ [R, N]."""
    if not x.quantised:
        return x.values_RC @ weight.values_NK.t()
    return _scaled_product(x, weight.values_NK, weight.scale_N, fast=True)


def input_gradient(d: Operand, weight: Weight) -> Tensor:
    """Return the gradient of the product's input, d W [R, K]."""
    if not d.quantised:
        return d.values_RC @ weight.values_NK
    return _scaled_product(d, weight.transposed_KN, weight.scale_K, fast=False)


def _scaled_product(x: Operand, right_CK: Tensor, scale_C: Tensor, fast: bool) -> Tensor:
    """Return a product of FP8 operands. With `fast`, sums use fewer bits, too few for gradients."""
    return torch._scaled_mm(
        x.values_RC,
        right_CK.t(),
        x.scale_R[:, None],
        scale_C[None, :],
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )


def weight_gradient(d: Operand, x: Operand, kind: torch.dtype) -> Tensor:
    """Return dᵀ x [N, K], summed in fp32. FP8 rows are first converted to a common scale."""
    if not d.quantised:
        return _summed_in_fp32(d.values_RC.t(), x.values_RC, kind)
    scale_R = d.scale_R * x.scale_R
    most = scale_R.amax()
    d_NR, x_KR = new_transposed(d.values_RC), new_transposed(x.values_RC)
    transpose(d.values_RC, d_NR, scale_R / most)
    transpose(x.values_RC, x_KR)
    return torch._scaled_mm(d_NR, x_KR.t(), most, torch.ones_like(most), out_dtype=torch.float32).to(kind)


def project(x_RK: Tensor, copy: Weight, weight_NK: Tensor, bias_N: Tensor) -> Tensor:
    """Return x Wᵀ + b. The product reads the weight's copy; gradients go to the weight and the bias."""
    out_RN: Tensor = _Projection.apply(x_RK, copy, weight_NK, bias_N)
    return out_RN


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RK: Tensor, copy: Weight, weight_NK: Tensor, bias_N: Tensor) -> Tensor:
        ctx.save_for_backward(x_RK)
        ctx.copy, ctx.types = copy, (weight_NK.dtype, bias_N.dtype)
        return torch.addmm(bias_N.to(x_RK.dtype), x_RK, copy.values_NK.t())

    @staticmethod
    def backward(ctx: Any, d_RN: Tensor) -> tuple[Tensor | None, ...]:
        (x_RK,), (of_weight, of_bias) = ctx.saved_tensors, ctx.types
        return d_RN @ ctx.copy.values_NK, None, _summed_in_fp32(d_RN.t(), x_RK, of_weight), d_RN.sum(0, dtype=of_bias)


def _summed_in_fp32(left: Tensor, right: Tensor, kind: torch.dtype) -> Tensor:
    if left.is_cuda and kind != left.dtype:
        return torch.mm(left, right, out_dtype=kind)
    return (left.to(kind) @ right.to(kind)) if kind == torch.float32 else left @ right
