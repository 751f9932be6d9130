"""Losses of bf16 storage, and what stochastic rounding and Kahan's compensation give back."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.optim.adamw import AdamWSettings
from tintype.optim.ema import Ema
from tintype.optim.muon import MuonSettings
from tintype.optim.storage import Rounding, Storage, round_stochastically
from tintype.runtime.clock import Clock
from tintype.runtime.gradients import clip
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.layout import ONE
from tintype.train import checkpoint
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import LOSSES
from tintype.train.record import RunRecord
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

ADAMW = AdamWSettings(lr=1e-4, eps=1e-8)
MUON = MuonSettings(lr=1e-4, matrices=("w",), adamw=ADAMW, compute="fp32")
ROUNDINGS: list[Rounding] = ["nearest", "stochastic", "kahan"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bf16_values(*shape: int, std: float = 1.0) -> Tensor:
    return (std * torch.randn(shape, generator=generator())).bfloat16()


def test_stochastic_rounding_is_right_on_average_and_takes_a_neighbour() -> None:
    value = torch.full((20000,), 1.0 + 2.0**-7 * 0.3)  # three tenths of the way to bf16's next number
    rounded = round_stochastically(value, generator()).float()
    assert set(rounded.tolist()) == {1.0, 1.0 + 2.0**-7}
    assert abs(float((rounded > 1).float().mean()) - 0.3) < 4 * (0.21 / 20000) ** 0.5


def test_stochastic_rounding_leaves_what_bf16_can_say_and_knows_both_signs() -> None:
    exact = bf16_values(1000).float()
    assert torch.equal(round_stochastically(exact, generator()).float(), exact)
    near = -exact.abs() * (1 + 2.0**-12)
    rounded = round_stochastically(near, generator()).double()
    assert bool((rounded <= 0).all()) and float((rounded / near.double() - 1).abs().max()) < 2.0**-7


def moved(
    rounding: Rounding | None, std: float, steps: int = 50, settings: AdamWSettings | MuonSettings = ADAMW
) -> Tensor:
    """How far each of many weights moves, in fp32 for None."""
    start = bf16_values(64, 256, std=std)
    weight = nn.Parameter(start.float() if rounding is None else start.clone())
    optimizer = settings.build([("w", weight)], Storage(rounding or "nearest", seed=5))
    slope = torch.randn(64, 256, generator=generator(1))
    for step in range(steps):
        noise = torch.randn(64, 256, generator=generator(100 + step))
        weight.grad = (slope + noise).to(weight.dtype)
        optimizer.update_number = step  # type: ignore[attr-defined]
        optimizer.step()
    return weight.detach().float() - start.float()


def test_rounded_to_nearest_a_weight_stops_where_half_its_spacing_is_more_than_a_step() -> None:
    """From 1/16 on bf16's numbers are 2^-11 apart, and AdamW's steps of about 1e-4 are less than half of that."""
    large = bf16_values(64, 256, std=0.1).float().abs() >= 2**-4
    assert float(moved(None, 0.1)[large].abs().mean()) > 1e-3
    assert not moved("nearest", 0.1)[large].any()
    assert float(moved("nearest", 0.001).abs().mean()) > 1e-3  # where numbers lie closer, steps are kept
    for rounding in ROUNDINGS[1:]:
        assert float(moved(rounding, 0.1)[large].abs().mean()) > 1e-3


@pytest.mark.parametrize("settings", [ADAMW, MUON], ids=["adamw", "muon"])
def test_kahan_keeps_the_way_and_stochastic_rounding_keeps_its_mean(settings: AdamWSettings | MuonSettings) -> None:
    std = 0.1 if settings is ADAMW else 0.02
    exact, kahan, drawn, lost = (moved(how, std, settings=settings) for how in (None, "kahan", "stochastic", "nearest"))

    def error(found: Tensor) -> float:
        return float((found - exact).norm() / exact.norm())

    def slope(found: Tensor) -> float:
        """Return the slope of the regression on the exact weights: one where the mean is kept."""
        return float((found * exact).sum() / exact.square().sum())

    assert error(kahan) < 0.35 * error(lost)
    assert slope(drawn) == pytest.approx(1, abs=0.12) and slope(lost) < 0.85


def test_the_draws_of_rounding_are_of_the_seed_the_update_and_the_piece() -> None:
    def drawn(seed: int, update: int, piece: int = 0, cut: bool = True) -> Tensor:
        found = Storage("stochastic", seed, piece).generator(torch.device("cpu"), update, cut)
        assert found is not None
        return torch.randint(0, 1 << 16, (8,), generator=found)

    assert torch.equal(drawn(0, 3), drawn(0, 3))
    assert not torch.equal(drawn(0, 3), drawn(0, 4)) and not torch.equal(drawn(0, 3), drawn(1, 3))
    assert torch.equal(drawn(0, 3, piece=1, cut=False), drawn(0, 3)), "what every rank has is rounded alike by all"
    assert not torch.equal(drawn(0, 3, piece=1), drawn(0, 3)) and not torch.equal(drawn(0, 3, 1), drawn(0, 3, 2))


class Asked(Storage):
    """Notes for which updates random numbers are drawn."""

    updates: ClassVar[list[int]] = []

    def generator(self, device: torch.device, update: int, cut: bool = False) -> torch.Generator | None:
        self.updates.append(update)
        return super().generator(device, update, cut)


def test_muon_and_its_adamw_draw_different_numbers_at_every_update() -> None:
    named = {"w": nn.Parameter(bf16_values(8, 8)), "v": nn.Parameter(bf16_values(8))}
    optimizer = MUON.build(named.items(), Asked("stochastic"))
    for update_number in range(3):
        for parameter in named.values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.update_number = update_number  # type: ignore[attr-defined]
        optimizer.step()
    assert len(Asked.updates) == len(set(Asked.updates)) == 6


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("settings", [ADAMW, MUON], ids=["adamw", "muon"])
def test_a_step_that_is_not_finite_leaves_every_bit(rounding: Rounding, settings: AdamWSettings | MuonSettings) -> None:
    weight = nn.Parameter(bf16_values(32, 32))
    optimizer = settings.build([("w", weight)], Storage(rounding))

    def everything() -> list[Tensor]:
        return [weight.detach().clone(), *(slot.clone() for slot in optimizer.state[weight].values())]

    for step in range(2):
        weight.grad = bf16_values(32, 32)
        optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
        optimizer.update_number = step  # type: ignore[attr-defined]
        optimizer.step()
    before = everything()
    weight.grad = torch.full_like(weight, float("nan"))
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))


def test_everything_trained_is_in_bf16_but_losses_and_averages() -> None:
    parts = build_session(tiny_plan(techniques=["bf16-storage", "ema", "repa:teacher=scenes,hidden=8", "sprint"]))
    kinds = {name: parameter.dtype for name, parameter in parts.modules.named_parameters()}
    assert {dtype for name, dtype in kinds.items() if name.startswith(LOSSES)} == {torch.float32}
    assert {dtype for name, dtype in kinds.items() if not name.startswith(LOSSES)} == {torch.bfloat16}
    state = new_state(parts)
    assert isinstance(state.ema, Ema) and {tensor.dtype for tensor in state.ema.average.values()} == {torch.float32}


@pytest.mark.parametrize("technique", ["bf16-storage:rounding=stochastic", "bf16-storage:rounding=kahan"])
@pytest.mark.parametrize("other", [(), ("muon",)], ids=["adamw", "muon"])
def test_resume_is_bit_exact(technique: str, other: tuple[str, ...], tmp_path: Path) -> None:
    plan = tiny_plan(techniques=[technique, *other])
    train(plan, tmp_path / "whole", Interrupt())
    stop_and_go_on(plan, tmp_path / "cut", 3)
    states = [
        checkpoint.read(checkpoint.folder_of(RunRecord(tmp_path / name).checkpoints, 6))[0] for name in ("whole", "cut")
    ]
    assert set(states[0]) == set(states[1])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    moments = {
        tensor.dtype for name, tensor in states[0].items() if name.startswith("optimizer/") and "/step" not in name
    }
    assert moments == {torch.bfloat16}


def test_an_average_is_sampled_from_in_fp32(tmp_path: Path) -> None:
    train(tiny_plan(techniques=["bf16-storage", "ema:decay=0.9"]), tmp_path / "run", Interrupt())
    parts, _ = load_run(tmp_path / "run")
    weight = parts.denoiser.blocks[0].down_proj.weight  # type: ignore[union-attr]
    assert isinstance(weight, Tensor) and weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["precision.storage=bf16"], "weights stored in bf16 are computed with in bf16: set compute to bf16"),
        (["precision.rounding=kahan"], "rounding 'kahan' is for storage bf16"),
    ],
)
def test_what_cannot_be_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_plan(*assignments)


def test_gradients_in_bf16_are_clipped_by_a_norm_in_fp32() -> None:
    plan = tiny_plan("train.clip_norm=0.5", techniques=["bf16-storage"])
    state = new_state(build_session(plan))
    for index, parameter in enumerate(state.modules.parameters()):
        parameter.grad = torch.randn(parameter.shape, generator=generator(index)).to(parameter.dtype)
    exact = torch.cat([p.grad.flatten().double() for p in state.modules.parameters() if p.grad is not None]).norm()
    found = clip(state.parameters, plan.train.clip_norm, ONE)
    assert found.dtype == torch.float32 and float(found) == pytest.approx(float(exact), rel=1e-5)
    left = torch.cat([p.grad.flatten().double() for p in state.modules.parameters() if p.grad is not None]).norm()
    assert float(left) == pytest.approx(0.5, rel=1e-2)


def test_a_skipped_step_leaves_a_weight_that_lies_between_two_numbers() -> None:
    """Opened and closed again the first would be rounded to its even neighbour, and the second's rest cut short."""
    weight = torch.tensor([1 + 2.0**-7, 1.0]).bfloat16()
    state = {"compensation": torch.tensor([2.0**-8, 2.0**-18 * (1 + 2.0**-7)]).bfloat16()}
    before = [weight.clone(), state["compensation"].clone()]
    storage = Storage("kahan")
    storage.close([weight], storage.open([weight], [state]), [state], None, torch.ones(()))
    assert torch.equal(weight, before[0]) and torch.equal(state["compensation"], before[1])


@pytest.mark.parametrize("settings", [ADAMW, MUON], ids=["adamw", "muon"])
def test_an_optimizer_that_skips_a_step_leaves_such_a_weight_too(settings: AdamWSettings | MuonSettings) -> None:
    weight = nn.Parameter(torch.full((4, 4), 1 + 2.0**-7).bfloat16())
    optimizer = settings.build([("w", weight)], Storage("kahan"))
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    before = weight.detach().clone()
    rest = optimizer.state[weight]["compensation"].fill_(2.0**-8)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    assert torch.equal(weight, before) and rest.unique().tolist() == [2.0**-8]


def test_every_update_has_its_own_draws() -> None:
    parts = build_session(tiny_plan(techniques=["bf16-storage:rounding=stochastic"]))
    state, numbers = new_state(parts), []
    for _ in range(3):
        update(parts, state, Clock(parts.device))
        numbers.append(state.optimizer.update_number)  # type: ignore[attr-defined]
    assert numbers == [0, 1, 2]
