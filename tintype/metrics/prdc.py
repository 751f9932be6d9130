"""Improved precision and recall (arXiv 1904.06991): is each image inside the other set's manifold?

The manifold of a set is the union of balls around its points that reach to their k-th neighbour.

N, M: images, F: size of a feature vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tintype.seams import Direction

NEIGHBOURS = 3


@dataclass(frozen=True)
class Precision:
    name: str
    direction: Direction = "higher"
    definition: str = f"share of generated images inside the real manifold, k = {NEIGHBOURS} (arXiv 1904.06991)"

    def __call__(self, fake_NF: Tensor, real_NF: Tensor) -> float:
        return share_inside(fake_NF, real_NF)


@dataclass(frozen=True)
class Recall:
    name: str
    direction: Direction = "higher"
    definition: str = f"share of real images inside the generated manifold, k = {NEIGHBOURS} (arXiv 1904.06991)"

    def __call__(self, fake_NF: Tensor, real_NF: Tensor) -> float:
        return share_inside(real_NF, fake_NF)


def share_inside(point_NF: Tensor, manifold_MF: Tensor) -> float:
    points, manifold = point_NF.double(), manifold_MF.double()
    own = torch.cdist(manifold, manifold)
    radius_M = own.kthvalue(NEIGHBOURS + 1, dim=1).values  # the nearest is the point itself
    inside_NM = torch.cdist(points, manifold) <= radius_M
    return float(inside_NM.any(1).double().mean())
