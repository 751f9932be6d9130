"""Bounds that follow from the arithmetic, so that they hold on every machine.

Two computations of the same sum, in another order, batch, memory layout or library, differ by rounding. Each addition
errs by at most half an eps of the partial sum, in either direction. Errors of either direction add up like a random
walk: n of them make sqrt(n), not n.

Only the same operations on the same shapes in one process give the same bits: compare those with `torch.equal`. Not
even a network that was loaded from two files gives them: some libraries round by the alignment of the weights.
A literal bound of 1e-9 or less is for numbers that are float64 on both sides: even 1e-13 is 450 of its eps.
`pytest --other-rounding SEED` tries bounds with errors several times as large as this machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor, nn

_SAFETY = 4.0
"""Over one eps for each addition, twice what it can err by: no element of a tensor strays so far by chance."""


def rounding_bound(terms: int, scale: float | Tensor, dtype: torch.dtype = torch.float32) -> float:
    """Return how far two computations of sums of `terms` numbers may differ. `scale` has the largest partial sum."""
    largest = float(scale.detach().abs().max()) if isinstance(scale, Tensor) else scale
    return _SAFETY * sqrt(terms) * torch.finfo(dtype).eps * largest


def network_bound(network: nn.Module, output: Tensor, dtype: torch.dtype = torch.float32) -> float:
    """Return how far two computations of a network's output may differ, where its layers keep the scale of errors.

    The additions on the way to one element are those of all layers in a row: each sums over its inputs.
    """
    inputs = sum(parameter[0].numel() if parameter.dim() > 1 else len(parameter) for parameter in network.parameters())
    return rounding_bound(inputs, output, dtype)


def muon_bound(steps: int, lr: float, side: int) -> float:
    """Return how far two computations of Muon's weights may differ after `steps`, with matrices of up to `side`.

    An orthogonal matrix follows from five iterations of three products each, and its step has at most `lr` times the
    root of `side` as its scale.
    """
    return steps * rounding_bound(5 * 3 * side, lr * sqrt(side))


def gradient_distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest difference of a parameter's gradients, over their norm or a hundredth of that of all.

    It is for networks with kinks (L1, ReLU, max pooling). Rounding can put a number on the other side of a kink, which
    moves the gradient of one pixel as a whole: little of the norm of many, but more than rounding elsewhere.
    """
    least = 0.01 * torch.stack([gradient.norm() for gradient in other.values()]).norm()
    return max(
        float((one[name] - gradient).norm() / gradient.norm().clamp(min=least)) for name, gradient in other.items()
    )


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two elements."""
    return float((one - other).detach().abs().max())
