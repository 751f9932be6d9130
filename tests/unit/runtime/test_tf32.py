"""Layers in fp32 while training is autocast. Their TF32 products are a GPU's: here the flags are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tintype.runtime import tf32
from tintype.runtime.machine import exact_fp32

EXACT, FAST = ("highest", False), ("high", True)


@pytest.fixture(autouse=True)
def exact_elsewhere() -> Iterator[None]:
    with exact_fp32():
        yield


def flags() -> tuple[str, bool]:
    """Return how fp32 products are computed, and whether convolutions are TF32."""
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


class Noted(torch.autograd.Function):
    """Passes numbers on, and notes the flags of either pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seen: list[tuple[str, bool]]) -> Tensor:
        ctx.seen = seen
        seen.append(flags())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.seen.append(flags())
        return gradient, None


class Layers(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 3))
        self.seen: list[tuple[str, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        noted: Tensor = Noted.apply(super().forward(x), self.seen)  # type: ignore[no-untyped-call]
        return noted


@pytest.fixture
def layers() -> Layers:
    torch.manual_seed(0)
    return Layers()


@pytest.mark.parametrize("learns", ["all", "tokens", "layers"])
def test_the_gradients_are_those_of_the_layers_and_both_passes_are_tf32(learns: str, layers: Layers) -> None:
    x, found = torch.randn(2, 5, 6), []
    layers.requires_grad_(learns != "tokens")
    for apply in (nn.Module.__call__, tf32.in_tf32):
        layers.seen.clear()
        layers.zero_grad()
        given = x.clone().requires_grad_(learns != "layers")
        out = apply(layers, given)
        out.square().sum().backward()
        found.append([out, given.grad, *(one.grad for one in layers.parameters())])
    for plain, fast in zip(*found, strict=True):
        assert (plain is None) == (fast is None) and (plain is None or torch.equal(plain, fast))
    assert layers.seen == [FAST, FAST] and flags() == EXACT


def test_fp32_stays_fp32_under_autocast_and_without_it(layers: Layers) -> None:
    x = torch.randn(2, 5, 6).bfloat16()
    expected = layers(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(tf32.in_fp32(layers, x), expected)
    assert torch.equal(tf32.in_fp32(layers, x), expected) and set(layers.seen) == {EXACT}


def test_an_error_leaves_products_as_they_were() -> None:
    with pytest.raises(RuntimeError), tf32.tf32_products():
        raise RuntimeError
    assert flags() == EXACT
