"""AdamW in one pass over weights, gradients and moments. The pass includes clipping, weight averages and cast copies.

The kernel is in a separate module, since not every system has Triton. The plain form is torch's fused AdamW with
gradients multiplied by the factor, then `averages.Update.finish` and `runtime.copies.cast`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tintype.runtime.copies import Copy
from tintype.runtime.transfer import send

_CHUNK, _BLOCK = 1 << 15, 1 << 11
_COLUMNS = tl.constexpr(5)
"""Columns of the address table for weight, gradient, two moments and copy. The averages' addresses come after them."""
_COPY = tl.constexpr(4)
_ALIGNED_BYTES = 16
COPY_TYPES = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@triton.jit
def _pointer(table, column, KIND: tl.constexpr):
    """Return an address from a weight's row of the address table; 0 if the weight has no such tensor."""
    return tl.multiple_of(tl.load(table + column).to(tl.pointer_type(KIND)), 16)


@triton.jit
def _move(row, shares, weight, gradient, mean, square, here, mask, factor, rate, decay, root, beta1, beta2, eps,
          AVERAGES: tl.constexpr, KIND: tl.constexpr):  # fmt: skip
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
    if tl.load(row + _COPY) != 0:
        tl.store(_pointer(row, _COPY, KIND) + here, number.to(KIND), mask=mask)
    for index in tl.static_range(AVERAGES):
        if tl.load(row + _COLUMNS + index) != 0:
            average = _pointer(row, _COLUMNS + index, tl.float32) + here
            before = tl.load(average, mask=mask)
            tl.store(average, before + tl.load(shares + index) * (number - before), mask=mask)


@triton.jit
def _adamw(table, shares, sizes, owners, starts, corrections, factor, skipped, lr, beta1, beta2, eps, weight_decay,
           AVERAGES: tl.constexpr, KIND: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    if tl.load(skipped) == 0:
        owner = tl.load(owners + tl.program_id(0))
        start = tl.multiple_of(tl.load(starts + tl.program_id(0)), BLOCK)
        size = tl.load(sizes + owner)
        row = table + owner * (_COLUMNS + AVERAGES)
        weight, gradient = _pointer(row, 0, tl.float32), _pointer(row, 1, tl.float32)
        mean, square = _pointer(row, 2, tl.float32), _pointer(row, 3, tl.float32)
        scale = tl.load(factor)
        rate = lr * tl.load(corrections + owner * 2)
        root = tl.load(corrections + owner * 2 + 1)
        decay = 1 - lr * weight_decay
        if start + CHUNK <= size:  # no mask: then a thread reads and writes four numbers at once
            for offset in range(0, CHUNK, BLOCK):
                here = start + offset + tl.arange(0, BLOCK)
                _move(row, shares, weight, gradient, mean, square, here, None, scale, rate, decay, root, beta1, beta2,
                      eps, AVERAGES, KIND)  # fmt: skip
        else:
            for offset in range(0, CHUNK, BLOCK):
                here = start + offset + tl.arange(0, BLOCK)
                _move(row, shares, weight, gradient, mean, square, here, here < size, scale, rate, decay, root, beta1,
                      beta2, eps, AVERAGES, KIND)  # fmt: skip


class Chunks:
    """The range of a weight that each program updates. The range of a program is the same at every step."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        device = weights[0].device
        sizes = torch.tensor([weight.numel() for weight in weights])
        count = -(-sizes // _CHUNK)
        self.shapes = [weight.shape for weight in weights]
        self.owners = torch.repeat_interleave(count).int().to(device)
        before = torch.repeat_interleave(count.cumsum(0) - count, count)
        self.starts = ((torch.arange(len(before)) - before) * _CHUNK).to(device)
        self.sizes = sizes.to(device)


@dataclass(frozen=True)
class Moved:
    weight: Tensor
    gradient: Tensor
    mean: Tensor
    square: Tensor
    step: Tensor
    copy: Copy | None
    averages: Sequence[Tensor]

    def addresses(self, averages: int) -> list[int]:
        """Return a row of the address table. Missing tensors have the address 0."""
        four = [one.data_ptr() for one in (self.weight, self.gradient, self.mean, self.square)]
        copy = 0 if self.copy is None else self.copy.values.data_ptr()
        return [*four, copy, *([one.data_ptr() for one in self.averages] or [0] * averages)]


def is_aligned(x: Tensor) -> bool:
    """Return whether a tensor is aligned such that the pass can load four numbers at once."""
    return x.is_contiguous() and x.data_ptr() % _ALIGNED_BYTES == 0


def takes(copy: Copy) -> bool:
    """Return whether the pass can keep a copy up to date.

    The copy must already equal its weight, since a skipped step does not write it.
    """
    return copy.fresh and is_aligned(copy.values) and copy.values.dtype in COPY_TYPES


def step(
    chunks: Chunks,
    moved: Sequence[Moved],
    shares: Sequence[Tensor],
    factor: Tensor,
    skipped: Tensor,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """Update weights by gradients times `factor`, and averages by `shares`. If `skipped` is 1, change nothing."""
    steps = [one.step for one in moved]
    taken = (1 - skipped).to(steps[0].dtype)
    torch._foreach_add_(steps, [taken] * len(steps))  # one tensor for all would be read by the host, which waits
    number = torch.stack(steps).double()
    first, second = 1 - beta1**number, 1 - beta2**number
    corrections = torch.stack([1 / first, second.rsqrt()], dim=1).float()
    table = send(torch.tensor([one.addresses(len(shares)) for one in moved]), factor.device)
    share_A = torch.stack(list(shares)) if shares else corrections
    copies = [one.copy for one in moved if one.copy is not None]
    kind = COPY_TYPES[copies[0].values.dtype if copies else torch.bfloat16]
    with torch.cuda.device_of(factor):
        _adamw[(len(chunks.owners),)](
            table, share_A, chunks.sizes, chunks.owners, chunks.starts, corrections, factor, skipped, lr, beta1, beta2,
            eps, weight_decay, AVERAGES=len(shares), KIND=kind, CHUNK=_CHUNK, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
    for one in moved:
        torch.autograd.graph.increment_version((one.weight, one.mean, one.square, *one.averages))
    for copy in copies:
        copy.mark_fresh()
