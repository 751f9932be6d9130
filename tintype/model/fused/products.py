"""The matrix products of a fused block: operands and weights in bf16, or in FP8 with a scale for each row.

R: rows (tokens), K: size in, N: size out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.model.fused.quantise import new_transposed, quantise, transpose

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
COPY_TYPE = torch.bfloat16


@dataclass(frozen=True)
class Operand:
    """A matrix as a kernel wrote it: in the type of the stream, or in FP8 with the scale of each row."""

    values_RC: Tensor
    scale_R: Tensor

    @property
    def quantised(self) -> bool:
        return self.values_RC.dtype.itemsize == 1


def new_operand(rows: int, columns: int, kind: torch.dtype, device: torch.device) -> Operand:
    """Return room for an operand."""
    scales = rows if kind.itemsize == 1 else 0
    return Operand(
        torch.empty(rows, columns, dtype=kind, device=device), torch.empty(scales, dtype=torch.float32, device=device)
    )


def quantised(x_RC: Tensor, kind: torch.dtype) -> Operand:
    """Return a matrix in FP8."""
    operand = new_operand(x_RC.shape[0], x_RC.shape[1], kind, x_RC.device)
    quantise(x_RC, operand.values_RC, operand.scale_R)
    return operand


class Weight:
    """One or several parameters, one under the other, as the products read them: cast once a step, not once a batch.

    The copies stay where they are in memory, so that a captured graph can fill them too.
    """

    def __init__(self, parameters: Sequence[Tensor], fp8: bool) -> None:
        self._parameters, self._fp8 = parameters, fp8
        self._sizes = [len(parameter) for parameter in parameters]
        self._cast_from: list[tuple[int, int]] | None = None
        like, rows = parameters[0], sum(self._sizes)
        operand = new_operand(rows, like.shape[1], E4M3 if fp8 else COPY_TYPE, like.device)
        self.values_NK, self.scale_N = operand.values_RC, operand.scale_R
        if fp8:
            self.transposed_KN, self.scale_K = new_transposed(self.values_NK), like.new_empty(like.shape[1])

    def refresh(self) -> None:
        """Cast the parameters if one has changed since the last time."""
        now = [(parameter.data_ptr(), parameter._version) for parameter in self._parameters]
        capturing = self.values_NK.is_cuda and torch.cuda.is_current_stream_capturing()
        if now != self._cast_from or capturing:
            self._cast()
            self._cast_from = now

    @torch.no_grad()
    def _cast(self) -> None:
        if not self._fp8:
            torch._foreach_copy_(list(self.values_NK.split(self._sizes)), list(self._parameters))
            return
        places = zip(self.values_NK.split(self._sizes), self.scale_N.split(self._sizes), strict=True)
        for parameter, (values_NK, scale_N) in zip(self._parameters, places, strict=True):
            quantise(parameter, values_NK, scale_N)
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
    """`fast` sums with fewer bits, which forward products bear and gradients should not."""
    return torch._scaled_mm(
        x.values_RC,
        right_CK.t(),
        x.scale_R[:, None],
        scale_C[None, :],
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )


def weight_gradient(d: Operand, x: Operand, kind: torch.dtype) -> Tensor:
    """Return the gradient of the weight, dᵀ x [N, K], summed in fp32. In FP8 all rows are brought to one scale."""
    if not d.quantised:
        return _summed_in_fp32(d.values_RC.t(), x.values_RC, kind)
    scale_R = d.scale_R * x.scale_R
    most = scale_R.amax()
    d_NR, x_KR = new_transposed(d.values_RC), new_transposed(x.values_RC)
    transpose(d.values_RC, d_NR, scale_R / most)
    transpose(x.values_RC, x_KR)
    return torch._scaled_mm(d_NR, x_KR.t(), most, torch.ones_like(most), out_dtype=torch.float32).to(kind)


def _summed_in_fp32(left: Tensor, right: Tensor, kind: torch.dtype) -> Tensor:
    if left.is_cuda and kind != left.dtype:
        return torch.mm(left, right, out_dtype=kind)
    return (left.to(kind) @ right.to(kind)) if kind == torch.float32 else left @ right
