from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.ranks import TIMEOUT_S, RankError, run_ranks


def _sum_of_squared_ranks(scale: float) -> tuple[int, float, torch.Tensor]:
    weight = torch.tensor(scale, requires_grad=True)
    (weight * dist.get_rank()).square().backward()
    assert weight.grad is not None
    dist.all_reduce(weight.grad)
    return dist.get_rank(), float(weight.grad), torch.full((2,), dist.get_rank())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_rank_returns_what_it_found(size: int) -> None:
    torch.ones((), requires_grad=True).square().backward()  # a fork of this process could do so no more
    results = run_ranks(size, _sum_of_squared_ranks, 3.0)
    assert [rank for rank, _, _ in results] == list(range(size))
    assert {total for _, total, _ in results} == {6.0 * sum(rank**2 for rank in range(size))}
    assert torch.equal(torch.cat([row for _, _, row in results]), torch.arange(size).repeat_interleave(2))


def _fail_on_rank_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank one has had enough")
    dist.barrier()


def _die_on_rank_one() -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    time.sleep(2 * TIMEOUT_S)  # who waits for it hears of the time-out instead


def test_a_failure_is_told_with_its_traceback_and_stops_the_others() -> None:
    with pytest.raises(RankError, match=r"rank 1 of 2:(.|\n)*_fail_on_rank_one(.|\n)*ValueError: rank one has had"):
        run_ranks(2, _fail_on_rank_one)
    with pytest.raises(RankError, match="rank 1 of 2:\nthe process ended without a word"):
        run_ranks(2, _die_on_rank_one)


def _sleep_on_rank_zero() -> None:
    if dist.get_rank() == 0:
        time.sleep(60)
    dist.barrier()


def test_ranks_that_hang_are_stopped() -> None:
    with pytest.raises(RankError, match=r"ranks \[0, 1\] have not ended in 2 s"):
        run_ranks(2, _sleep_on_rank_zero, timeout_s=2)
