"""Sampling errors by jackknife and bootstrap, with stateless randomness.

The generated images are resampled, and the reference stays fixed. So the error is the spread over different noises,
with the same model and reference. The error does not include the spread over training seeds.

An error does not depend on the order of the images. Duplicates of an image are not independent. So `copy_N` gives equal
images equal numbers, and an image is resampled together with its duplicates.

N: images, C: distinct images, G: groups, D: bootstrap draws, F: numbers of a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tintype import rng
from tintype.metrics.metric import Measured

SEED = 0
GROUPS = 10
BY_GROUPS = f"jackknife over {GROUPS} groups of the generated images"
DRAWS = 1000
_CHUNK = 1 << 22


def canonical_order(row_NF: Tensor) -> Tensor:
    """Return an order of the rows that depends only on their content.

    The sort is lexicographic. A rounding error in a number can only swap neighbouring rows.
    """
    columns = 1
    while True:
        order_N = torch.arange(len(row_NF), device=row_NF.device)
        for column in reversed(range(columns)):
            order_N = order_N[row_NF[order_N, column].argsort(stable=True)]
        before, after = order_N[:-1], order_N[1:]
        tied = (row_NF[before, :columns] == row_NF[after, :columns]).all(1)
        if columns == row_NF.shape[1] or row_NF[before[tied]].equal(row_NF[after[tied]]):
            return order_N
        columns = min(2 * columns, row_NF.shape[1])


def mean_error(value_N: Tensor, copy_N: Tensor | None = None) -> float | None:
    """Return the standard error of the mean of independent values; None for fewer than two distinct images."""
    count = len(value_N)
    offset_C = _summed(value_N.double() - value_N.double().mean(), copy_N)
    if len(offset_C) < 2:
        return None
    return math.sqrt(float(offset_C.square().sum()) * len(offset_C) / (len(offset_C) - 1)) / count


def _summed(value_N: Tensor, copy_N: Tensor | None) -> Tensor:
    """For each distinct image, return the sum over its duplicates."""
    if copy_N is None:
        return value_N
    return value_N.new_zeros(int(copy_N.max()) + 1).index_add(0, copy_N, value_N)


def jackknife_error(left_out_G: Tensor, copy_G: Tensor | None = None) -> float | None:
    """Return the standard error, from values with one image or one of G equal groups left out.

    The standard error is that of the mean of the pseudo-values G whole - (G - 1) left_out (Efron and Tibshirani 1993,
    chapter 11).
    """
    return mean_error((1 - len(left_out_G)) * left_out_G, copy_G)


def group_of(count: int, stream: str, device: torch.device | str = "cpu", groups: int = GROUPS) -> Tensor:
    """Return a random group for each image, the same in every process and device. Sizes differ by at most one."""
    order_N = rng.bits(SEED, stream, torch.arange(count), 1)[:, 0].argsort()
    return order_N.argsort().to(device) % groups


def bootstrap_error(value_N: Tensor, copy_N: Tensor | None = None) -> float | None:
    """Return the standard error of a mean, from resamples with replacement; None for fewer than two distinct images."""
    value_N = value_N.double().cpu()
    copy_N = None if copy_N is None else copy_N.cpu()
    table_C2 = torch.stack([_summed(value_N, copy_N), _summed(torch.ones_like(value_N), copy_N)], 1)
    sum_C, size_C = table_C2[canonical_order(table_C2)].T
    count = len(sum_C)
    if count < 2:
        return None
    draws = torch.arange(DRAWS).split(max(1, _CHUNK // count))
    drawn = (rng.integers(SEED, "bootstrap", draw_D, count, (count,)) for draw_D in draws)
    return float(torch.cat([sum_C[index_DC].sum(1) / size_C[index_DC].sum(1) for index_DC in drawn]).std())


def mean_with_error(value_N: Tensor, copy_N: Tensor | None = None) -> Measured:
    error = bootstrap_error(value_N, copy_N)
    method = "" if error is None else f"bootstrap over the images, {DRAWS} draws"
    return Measured(float(value_N.double().mean()), error, method, per_image=tuple(value_N.double().tolist()))
