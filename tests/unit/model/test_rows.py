"""Rows taken and put back: the same numbers and gradients as by `gather` and `scatter`."""

from __future__ import annotations

import torch
from torch import Tensor

from tintype.model.rows import put_rows, take_rows


def by_scatter(x_BLD: Tensor, index_BK: Tensor, factor: Tensor) -> Tensor:
    index_BKD = index_BK[:, :, None].expand(-1, -1, x_BLD.shape[2])
    return x_BLD.scatter(1, index_BKD, x_BLD.gather(1, index_BKD) * factor)


def by_rows(x_BLD: Tensor, index_BK: Tensor, factor: Tensor) -> Tensor:
    return put_rows(x_BLD, index_BK, take_rows(x_BLD, index_BK) * factor)


def test_rows_and_their_gradients_are_those_of_gather_and_scatter() -> None:
    generator = torch.Generator().manual_seed(0)
    index_BK = torch.rand(3, 7, generator=generator).argsort(1)[:, :4]
    found = []
    for form in (by_scatter, by_rows):
        generator.manual_seed(1)
        x_BLD, factor, d_out = (torch.randn(*shape, generator=generator) for shape in ((3, 7, 5), (5,), (3, 7, 5)))
        out = form(x_BLD.requires_grad_(), index_BK, factor.requires_grad_())
        out.backward(d_out)
        found.append((out, x_BLD.grad, factor.grad))
    for expected, mine in zip(*found, strict=True):
        assert expected is not None and mine is not None and torch.equal(mine, expected)
