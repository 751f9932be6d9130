"""Gather rows of each sample and write them back, with one index per row.

With one index per number, as in `gather` and `scatter`, torch's deterministic mode would sort all numbers, not rows.

B: samples, L: rows of a sample, K: rows taken, D: width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def take_rows(x_BLD: Tensor, index_BK: Tensor) -> Tensor:
    """Return some rows of each sample, [B, K, D]."""
    row_ND = x_BLD.flatten(0, 1).index_select(0, _flat(index_BK, x_BLD.shape[1]))
    return row_ND.view(*index_BK.shape, x_BLD.shape[2])


def put_rows(x_BLD: Tensor, index_BK: Tensor, row_BKD: Tensor) -> Tensor:
    """Return the samples with some of their rows replaced. No row index may occur twice."""
    return x_BLD.flatten(0, 1).index_copy(0, _flat(index_BK, x_BLD.shape[1]), row_BKD.flatten(0, 1)).view_as(x_BLD)


def _flat(index_BK: Tensor, rows: int) -> Tensor:
    """Return indices into the concatenated rows of all samples."""
    return (torch.arange(len(index_BK), device=index_BK.device)[:, None] * rows + index_BK).flatten()
