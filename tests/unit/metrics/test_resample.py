from __future__ import annotations

import math

import pytest
import torch

from tintype.metrics.resample import (
    bootstrap_error,
    canonical_order,
    group_of,
    jackknife_error,
    mean_error,
)


def draws(count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_three_ways_to_the_error_of_a_mean() -> None:
    x = draws(300)
    left_out = (x.sum() - x) / 299
    assert jackknife_error(left_out) == pytest.approx(float(x.std()) / math.sqrt(300))
    assert mean_error(x) == pytest.approx(float(x.std()) / math.sqrt(300))
    assert bootstrap_error(x) == pytest.approx(float(x.std()) / math.sqrt(300), rel=0.08)


def test_the_error_of_a_mean_does_not_depend_on_the_order() -> None:
    x, order = draws(50), torch.randperm(50, generator=torch.Generator().manual_seed(1))
    assert bootstrap_error(x[order]) == pytest.approx(bootstrap_error(x), rel=1e-12)
    copy = torch.arange(50) // 2
    assert bootstrap_error(x[order], copy_N=copy[order]) == pytest.approx(bootstrap_error(x, copy_N=copy), rel=1e-12)


def test_copies_count_once_in_the_error_of_a_mean() -> None:
    x, copy = draws(300), torch.arange(300)
    assert mean_error(x.repeat(4), copy.repeat(4)) == pytest.approx(mean_error(x))
    assert bootstrap_error(x.repeat(4), copy_N=copy.repeat(4)) == pytest.approx(bootstrap_error(x))
    assert mean_error(x[:1].repeat(4), copy[:1].repeat(4)) is None
    assert bootstrap_error(x[:1].repeat(4), copy_N=copy[:1].repeat(4)) is None


def test_the_canonical_order_depends_on_the_rows_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(0, 3, (60, 4), generator=generator).double()  # most first numbers are ties, some rows copies
    expected = sorted(map(tuple, table.tolist()))
    for _ in range(3):
        moved = table[torch.randperm(60, generator=generator)]
        assert list(map(tuple, moved[canonical_order(moved)].tolist())) == expected


def test_single_image_has_no_error() -> None:
    assert mean_error(torch.ones(1)) is None and bootstrap_error(torch.ones(1)) is None
    assert bootstrap_error(torch.ones(5)) == 0


def test_groups_are_equal_and_random() -> None:
    group = group_of(103, "a")
    assert sorted(group.bincount().tolist()) == [10] * 7 + [11] * 3
    assert group.equal(group_of(103, "a")) and not group.equal(group_of(103, "b"))
    assert group_of(50, "a", groups=50).sort().values.equal(torch.arange(50))
