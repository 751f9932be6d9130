"""Two computations of the same sums as other machines round them; and the bounds that hold for all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.bounds import distance, network_bound, rounding_bound
from tests.other_rounding import OtherRounding


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 64), nn.LayerNorm(64), nn.Linear(64, 8)]
    return nn.Sequential(*layers).requires_grad_(False)


def test_the_same_operation_gives_the_same_bits_and_a_row_of_another_batch_does_not(network: nn.Module) -> None:
    x = normal(6, 64)
    with OtherRounding(1):
        whole, again, first = network(x), network(x.clone()), network(x[:3])
    assert torch.equal(whole, again)
    assert not torch.equal(whole[:3], first)


def test_another_machine_gives_other_bits_within_the_bound(network: nn.Module) -> None:
    x = normal(6, 64)
    exact = network.double()(x.double()).float()
    network.float()
    for seed in range(20):
        with OtherRounding(seed):
            found = network(x)
        assert 0 < distance(found, exact) < network_bound(network, exact)


def test_gradients_are_rounded_too() -> None:
    x, weight = normal(5, 64), normal(64, 64, seed=1).requires_grad_()
    found = []
    for seed in (0, 1):
        with OtherRounding(seed):
            (x @ weight).square().sum().backward()
        found.append(weight.grad)
        weight.grad = None
    assert found[0] is not None and found[1] is not None and not torch.equal(found[0], found[1])
    assert distance(found[0], found[1]) < rounding_bound(64 + 5, found[0])


def test_sums_that_are_exact_on_every_machine_stay_exact() -> None:
    whole = torch.arange(24.0).view(4, 6)
    with OtherRounding(3):
        assert torch.equal(whole @ torch.ones(6, 2), whole.sum(1, keepdim=True).expand(4, 2))
        assert whole.mean() == 11.5 and torch.zeros(3).exp().sum() == 3


def test_a_function_of_one_number_does_not_depend_on_its_place() -> None:
    x = normal(100)
    with OtherRounding(3):
        sine = x.sin()
        assert torch.equal(sine[7:20], x[7:20].sin())
    assert distance(sine, x.sin()) > 0
