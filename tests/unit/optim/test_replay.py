"""Muon's step on a GPU as a graph that is played again: the same numbers as kernel by kernel, whatever happens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tintype.optim.muon import Muon, MuonSettings
from tintype.optim.storage import Storage

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: graphs are CUDA's")
SHAPES = {"a": (64, 192), "b": (192, 64), "c": (64, 192), "d": (64, 64), "e": (64,)}


def optimizer_of(dtype: torch.dtype = torch.float32) -> tuple[dict[str, nn.Parameter], Muon]:
    generator = torch.Generator().manual_seed(0)
    named = {
        f"denoiser.blocks.{name}": nn.Parameter(torch.randn(shape, generator=generator).to("cuda", dtype))
        for name, shape in SHAPES.items()
    }
    optimizer = MuonSettings(weight_decay=0.1).build(named.items(), Storage())
    assert isinstance(optimizer, Muon)
    return named, optimizer


def run(steps: int, changed: Callable[[int, Muon], None] = lambda step, optimizer: None, **how: Any) -> list[Tensor]:
    named, optimizer = optimizer_of(**how)
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 + step)
        for parameter in named.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)
        changed(step, optimizer)
        optimizer.step()
    return [one.detach().clone() for one in named.values()]


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Tensor]]:
    def run_by_kernels(*args: Any, **how: Any) -> list[Tensor]:
        with monkeypatch.context() as patch:
            patch.setattr(Muon, "_same", lambda self, batches, fused: False)
            return run(*args, **how)

    return run_by_kernels


def another_lr(step: int, optimizer: Muon) -> None:
    optimizer.param_groups[0]["lr"] = 0.01 * (step + 1)


def one_is_skipped(step: int, optimizer: Muon) -> None:
    optimizer.found_inf = torch.full((), float(step == 3), device="cuda")


def state_is_loaded(step: int, optimizer: Muon) -> None:
    if step == 4:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize("changed", [another_lr, one_is_skipped, state_is_loaded])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_gives_the_same_bits(changed: Any, dtype: torch.dtype, by_kernels: Callable[..., list[Tensor]]) -> None:
    played, started = run(7, changed, dtype=dtype), by_kernels(7, changed, dtype=dtype)
    assert all(torch.equal(one, other) for one, other in zip(played, started, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(played, run(6, changed, dtype=dtype), strict=True))


class _Calls(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_the_host_has_little_to_do() -> None:
    calls = _Calls()  # type: ignore[no-untyped-call]

    def counted(step: int, optimizer: Muon) -> None:
        if step == 5:
            calls.__enter__()  # type: ignore[no-untyped-call]

    run(6, counted)
    calls.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    assert 0 < calls.count < 20
