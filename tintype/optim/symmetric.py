"""Compute X Xᵀ, and its polynomial in the Newton-Schulz iteration. Both are symmetric, so only one half is computed.

A Triton kernel is used for large bf16 matrices on GPUs with bulk copies (Hopper and later). In all other cases, torch
computes the full product.

N: matrices of a batch, R: rows, C: columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._triton import has_triton

_COPIED_BYTES = 16
"""Alignment in bytes that bulk copies require of addresses and row strides."""
FEWEST_ROWS = 1024
"""Minimum number of rows for the kernel. With fewer, the host limits the speed, and half a product saves nothing."""


def gram(x_NRC: Tensor) -> Tensor:
    """Return X Xᵀ [N, R, R]. X may be a transposed view."""
    if not _takes(x_NRC):
        return torch.bmm(x_NRC, x_NRC.mT)
    from tintype.optim import symmetric_kernel

    return symmetric_kernel.product(x_NRC, None, x_NRC, 0.0, 0.0, 0.0)


def bracket(gram_NRR: Tensor, a: float, b: float, c: float, norm_N: Tensor | None = None) -> Tensor:
    """Return a I + b A + c A² for a symmetric A.

    If the norms n of X are given, where A = X Xᵀ, return (a I + b A / n² + c A² / n⁴) / n. The product of this bracket
    with X is the iteration's step from X / n, without computing X / n. The kernel adds in fp32 and rounds once. n⁴ must
    be less than 3e38.
    """
    if not _takes(gram_NRR):
        return _bracket(gram_NRR, a, b, c, norm_N)
    from tintype.optim import symmetric_kernel

    if norm_N is None:
        norm_N = gram_NRR.new_ones(len(gram_NRR), dtype=torch.float32)
    return symmetric_kernel.product(gram_NRR, gram_NRR, norm_N, a, b, c)


def _bracket(gram_NRR: Tensor, a: float, b: float, c: float, norm_N: Tensor | None) -> Tensor:
    dtype = gram_NRR.dtype
    if norm_N is not None:
        gram_NRR = (gram_NRR / norm_N.square()[:, None, None]).to(dtype)
    bracket_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c)
    bracket_NRR.diagonal(dim1=1, dim2=2).add_(a)
    return bracket_NRR if norm_N is None else (bracket_NRR / norm_N[:, None, None]).to(dtype)


def _takes(x_NRC: Tensor) -> bool:
    return x_NRC.shape[1] >= FEWEST_ROWS and runs_on(x_NRC)


def runs_on(x_NRC: Tensor) -> bool:
    """Return whether the kernel supports the tensor's dtype, device and memory layout."""
    if x_NRC.dtype != torch.bfloat16 or not x_NRC.is_cuda or torch.version.cuda is None or not has_triton():
        return False
    return torch.cuda.get_device_capability(x_NRC.device) >= (9, 0) and _is_aligned(x_NRC)


def _is_aligned(x_NRC: Tensor) -> bool:
    """Return whether columns or rows are contiguous, and all other strides are multiples of sixteen bytes."""
    numbers = _COPIED_BYTES // x_NRC.element_size()
    stored = x_NRC if x_NRC.stride(2) == 1 else x_NRC.mT
    steps = (stored.stride(0), stored.stride(1), x_NRC.shape[1])
    in_steps = all(step % numbers == 0 for step in steps) and x_NRC.data_ptr() % _COPIED_BYTES == 0
    return in_steps and stored.stride(2) == 1
