"""Draws for a sample depend on its position in the training, and not on the rank that draws."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fault.promises import Promise
from tests.ranks import run_ranks
from tests.tiny import tiny_plan
from tintype.runtime.clock import Clock
from tintype.seams import Draws, Route
from tintype.train import update as updating
from tintype.train.batch import read_batch
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

STEPS, BATCH = 3, 8
SETTINGS = (f"train.batch={BATCH}", "captions.dropout=0.5")
LAYOUTS: dict[str, tuple[int, list[str]]] = {
    "two ranks": (2, []),
    "one process, two micro-batches": (1, ["train.accumulate=2"]),
    "two ranks, two micro-batches": (2, ["train.accumulate=2"]),
    "four ranks": (4, []),
    "two ranks of fsdp": (2, ["run.distribution.kind=fsdp"]),
}


@dataclass
class Drawn:
    """Noise, time, caption and kept tokens of one sample."""

    noise: bytes = b""
    t: float = 0.0
    caption: str = ""
    """Empty where it was dropped."""
    kept: list[int] = field(default_factory=list)
    """The tokens that a router kept."""


@dataclass
class Recorder:
    """Stands before a part that draws, and notes what each position got. `by_rank`: each rank draws for itself."""

    part: Any
    found: dict[int, Drawn]
    by_rank: bool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)

    def _draws(self, draws: Draws) -> Draws:
        return Draws(draws.seed, torch.arange(len(draws.position_B))) if self.by_rank else draws

    def draw(self, z_BCHW: Tensor, draws: Draws) -> Any:
        sample = self.part.draw(z_BCHW, self._draws(draws))
        for index, position in enumerate(draws.position_B.tolist()):
            self.found[position].noise = sample.noise_BCHW[index].numpy().tobytes()
            self.found[position].t = float(sample.t_B[index])
        return sample

    def plan(self, grid: tuple[int, int], step: int, draws: Draws) -> Route | None:
        route: Route | None = self.part.plan(grid, step, self._draws(draws))
        assert route is not None and route.kept_BK is not None
        for position, kept_K in zip(draws.position_B.tolist(), route.kept_BK.tolist(), strict=True):
            self.found[position].kept = kept_K
        return route


def draw(settings: list[str], by_rank: bool = False) -> dict[int, Drawn]:
    """Train a few steps and return what this rank's samples got, by their position in the training."""
    found: dict[int, Drawn] = {}

    def note_captions(*args: Any) -> Any:
        batch = read_batch(*args)
        for position, caption in zip(batch.draws.position_B.tolist(), batch.captions, strict=True):
            assert position not in found, "every position is drawn for once"
            found[position] = Drawn(caption=caption)
        return batch

    parts = build_session(tiny_plan(*SETTINGS, *settings, techniques=["tread"]))
    parts = replace(
        parts,
        objective=Recorder(parts.objective, found, by_rank),
        router=Recorder(parts.router, found, by_rank),
    )
    state = new_state(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updating, "read_batch", note_captions)
        for _ in range(STEPS):
            update(parts, state, Clock(parts.device))
    return found


def of_all(size: int, settings: list[str], by_rank: bool = False) -> dict[int, Drawn]:
    ranks = [draw(settings, by_rank)] if size == 1 else run_ranks(size, draw, settings, by_rank)
    assert sum(map(len, ranks)) == STEPS * BATCH
    return {position: drawn for some in ranks for position, drawn in some.items()}


def count_pairs(promise: Promise, found: dict[int, Drawn]) -> None:
    """Each pair of samples has noise, times and kept tokens of its own."""
    for first, second in combinations(sorted(found), 2):
        one, other = found[first], found[second]
        apart = one.noise != other.noise and one.t != other.t and one.kept != other.kept
        promise.count(held=apart, what=f"positions {first} and {second} got the same")


@pytest.mark.slow
@pytest.mark.promise(10)
def test_draws_are_those_of_the_sample_in_every_layout(promise: Promise) -> None:
    """Compare noise, time, caption and kept tokens of each sample between layouts, and of all pairs of samples."""
    alone = of_all(1, [])
    assert {drawn.caption == "" for drawn in alone.values()} == {True, False}
    count_pairs(promise, alone)
    for name, (size, settings) in list(LAYOUTS.items())[: None if promise.full else 2]:
        found = of_all(size, settings)
        for position in range(STEPS * BATCH):
            promise.count(held=found[position] == alone[position], what=f"{name}: position {position}")


@pytest.mark.promise(10, control="each rank draws for itself")
def test_ranks_that_draw_for_themselves_draw_the_same(promise: Promise) -> None:
    """Key the draws by the place within a rank's share: samples get the same numbers."""
    count_pairs(promise, of_all(1, [], by_rank=True))
