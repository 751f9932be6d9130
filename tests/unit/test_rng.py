from __future__ import annotations

import pytest
import torch
from scipy import stats

from tintype import rng


def positions(count: int) -> torch.Tensor:
    return torch.arange(count)


def test_a_draw_depends_on_its_position_and_not_on_the_batch() -> None:
    together = rng.normal(3, "noise", positions(10), (2, 5))
    alone = rng.normal(3, "noise", torch.tensor([7]), (2, 5))
    assert torch.equal(together[7], alone[0])


@pytest.mark.parametrize("other", [(4, "noise"), (3, "time")])
def test_seeds_and_streams_are_apart(other: tuple[int, str]) -> None:
    first = rng.bits(3, "noise", positions(100), 4)
    second = rng.bits(*other, positions(100), 4)
    assert not torch.isin(first, second).any()


def test_no_two_positions_share_a_number() -> None:
    drawn = rng.bits(0, "s", positions(2000), 100).flatten()
    assert len(drawn.unique()) == len(drawn)


def test_known_answers() -> None:
    """The numbers are part of the format: a change would alter every run."""
    known = [[-871939751651056929, 659711041124126188], [-4126557754145767360, 7015886441541156184]]
    assert rng.bits(0, "noise", torch.tensor([0, 1]), 2).tolist() == known


def test_splitmix64_reference_value() -> None:
    """First output of SplitMix64 from state 0, as published with it."""
    state = torch.tensor([0x9E3779B97F4A7C15 - (1 << 64)])
    assert int(rng.mix(state)) & ((1 << 64) - 1) == 0xE220A8397B1DCDAF


def test_uniform_and_normal_have_the_right_distribution() -> None:
    uniform = rng.uniform(1, "u", positions(500), (200,)).flatten()
    normal = rng.normal(1, "n", positions(500), (200,)).flatten()
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(normal.numpy(), "norm").pvalue > 1e-3


def test_neighbouring_positions_are_not_correlated() -> None:
    normal = rng.normal(0, "n", positions(400), (500,))
    correlation = torch.corrcoef(normal)
    off_diagonal = correlation[~torch.eye(400, dtype=torch.bool)]
    assert float(off_diagonal.abs().max()) < 6 / 500**0.5
    assert abs(float((normal[:-1] * normal[1:]).mean())) < 4 / (399 * 500) ** 0.5


def test_integers_cover_their_range_evenly() -> None:
    drawn = rng.integers(0, "i", positions(7000), 7)
    assert stats.chisquare(torch.bincount(drawn, minlength=7).numpy()).pvalue > 1e-3


def test_positions_must_be_integers() -> None:
    with pytest.raises(TypeError, match="int64"):
        rng.uniform(0, "u", torch.zeros(3))
