"""Every optimizer raises the version of the weights that it moves: copies of them in bf16 are cast anew by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tintype.optim.adamw import AdamWSettings
from tintype.optim.muon import MuonSettings
from tintype.optim.part import OptimizerPart
from tintype.optim.replay import Replay
from tintype.optim.storage import Storage
from tintype.runtime.layout import ONE


@pytest.mark.parametrize("settings", [AdamWSettings(), MuonSettings()], ids=lambda settings: settings.kind)
@pytest.mark.parametrize("storage", [Storage(), Storage("stochastic"), Storage("kahan")], ids=lambda one: one.rounding)
def test_a_step_raises_the_version_of_each_weight(settings: OptimizerPart, storage: Storage) -> None:
    kind = torch.float32 if storage.rounding == "nearest" else torch.bfloat16
    named = {
        name: nn.Parameter(torch.randn(8, 8).to(kind))
        for name in ("denoiser.blocks.0.a.weight", "denoiser.blocks.1.a.weight")
    }
    named["denoiser.blocks.0.b"] = nn.Parameter(torch.ones(8, dtype=kind))
    optimizer = settings.build(named.items(), storage, ONE)
    for _ in range(2):
        for weight in named.values():
            weight.grad = torch.ones_like(weight)
        before = {name: weight._version for name, weight in named.items()}
        optimizer.step()
        assert all(weight._version > before[name] for name, weight in named.items())


class Graph:
    """Changes the weight as a replayed graph does: past torch."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


def test_a_replayed_step_raises_the_version_too(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.zeros(3)

    def work(inputs: list[Tensor]) -> None:
        weight.add_(inputs[0])

    def past_torch() -> None:
        weight.numpy()[:] += 1

    monkeypatch.setattr(Replay, "_recorded", lambda self: Graph(past_torch))
    replay = Replay(work, lambda: [weight])
    for step in range(1, 4):
        before = weight._version
        replay([torch.ones(3)])
        assert weight._version > before and bool((weight == step).all())
