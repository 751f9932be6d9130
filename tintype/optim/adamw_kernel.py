"""AdamW in one pass over weights, gradients and moments, clipping included; by itself, as not all have Triton.

Plain form: torch's fused AdamW on gradients that were multiplied by the factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK, _BLOCK = 1 << 15, 1 << 11
_COLUMNS = 4


@triton.jit
def _pointer(table, column):
    """Return one of a weight's four addresses; torch aligns them."""
    return tl.multiple_of(tl.load(table + column).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def _move(weight, gradient, mean, square, here, mask, factor, rate, decay, root, beta1, beta2, eps):
    number = tl.load(weight + here, mask=mask)
    slope = tl.load(gradient + here, mask=mask) * factor
    first = tl.load(mean + here, mask=mask)
    second = tl.load(square + here, mask=mask)
    first += (1 - beta1) * (slope - first)
    second = beta2 * second + (1 - beta2) * slope * slope
    number = number * decay - rate * first / (tl.sqrt(second) * root + eps)
    tl.store(weight + here, number, mask=mask)
    tl.store(mean + here, first, mask=mask)
    tl.store(square + here, second, mask=mask)


@triton.jit
def _adamw(table, sizes, owners, starts, corrections, factor, skipped, lr, beta1, beta2, eps, weight_decay,
           CHUNK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    if tl.load(skipped) == 0:
        owner = tl.load(owners + tl.program_id(0))
        start = tl.multiple_of(tl.load(starts + tl.program_id(0)), BLOCK)
        size = tl.load(sizes + owner)
        weight, gradient = _pointer(table + owner * 4, 0), _pointer(table + owner * 4, 1)
        mean, square = _pointer(table + owner * 4, 2), _pointer(table + owner * 4, 3)
        scale = tl.load(factor)
        rate = lr * tl.load(corrections + owner * 2)
        root = tl.load(corrections + owner * 2 + 1)
        decay = 1 - lr * weight_decay
        if start + CHUNK <= size:  # no mask: then a thread reads and writes four numbers at once
            for offset in range(0, CHUNK, BLOCK):
                here = start + offset + tl.arange(0, BLOCK)
                _move(weight, gradient, mean, square, here, None, scale, rate, decay, root, beta1, beta2, eps)
        else:
            for offset in range(0, CHUNK, BLOCK):
                here = start + offset + tl.arange(0, BLOCK)
                _move(weight, gradient, mean, square, here, here < size, scale, rate, decay, root, beta1, beta2, eps)


class Chunks:
    """Which part of which weight a program moves: the same at every step."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        device = weights[0].device
        sizes = torch.tensor([weight.numel() for weight in weights])
        count = -(-sizes // _CHUNK)
        self.shapes = [weight.shape for weight in weights]
        self.owners = torch.repeat_interleave(count).int().to(device)
        before = torch.repeat_interleave(count.cumsum(0) - count, count)
        self.starts = ((torch.arange(len(before)) - before) * _CHUNK).to(device)
        self.sizes = sizes.to(device)


def step(
    chunks: Chunks,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: Sequence[Tensor],
    factor: Tensor,
    skipped: Tensor,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """Move the weights by their gradients times `factor`, unless `skipped` is 1."""
    taken = (1 - skipped).to(steps[0].dtype)
    torch._foreach_add_(list(steps), [taken] * len(steps))  # one tensor for all would be read by the host, which waits
    number = torch.stack(list(steps)).double()
    first, second = 1 - beta1**number, 1 - beta2**number
    corrections = torch.stack([1 / first, second.rsqrt()], dim=1).float()
    rows = [[one.data_ptr() for one in four] for four in zip(weights, gradients, means, squares, strict=True)]
    table = torch.tensor(rows, dtype=torch.int64).pin_memory().to(factor.device, non_blocking=True)
    with torch.cuda.device(factor.device):
        _adamw[(len(chunks.owners),)](
            table, chunks.sizes, chunks.owners, chunks.starts, corrections, factor, skipped, lr, beta1, beta2, eps,
            weight_decay, CHUNK=_CHUNK, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
    for changed in (weights, means, squares):
        torch.autograd.graph.increment_version(changed)
