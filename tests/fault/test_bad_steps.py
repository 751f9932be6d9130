"""A step that is not finite, or a spike where those are skipped, leaves the weights alone, on one rank and on two."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from tests.fault.promises import Promise
from tests.ranks import run_ranks
from tests.stopping import train_to
from tests.tiny import tiny_plan
from tintype.losses import LossPart
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.dist import current
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.layout import local
from tintype.seams import Draws, LossInputs, LossTerm
from tintype.tokenizers.pixels import Pixels
from tintype.train import checkpoint
from tintype.train import update as update_module
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import Session, Term, build_session
from tintype.train.spikes import SpikeWindow
from tintype.train.state import TrainState, new_state
from tintype.train.update import _decide, update

SPIKES = ("train.skip_spikes.window=4", "train.skip_spikes.deviations=20")
BAD = ("nan", "inf", "1e9")
PLACES = ("data", "loss", "gradient")
CASES = [(place, bad) for place in PLACES for bad in BAD]
PLANS: dict[str, tuple[list[str], list[str]]] = {
    "adamw": ([], ["ema"]),
    "muon": ([], ["muon", "power-ema"]),
    "bf16": (["precision.compute=bf16", "precision.storage=bf16", "precision.rounding=kahan"], ["ema"]),
}
LAYOUTS: dict[str, list[str]] = {"ddp": [], "fsdp": ["run.distribution.kind=fsdp"]}


class BadPixels(Pixels):
    """The real tokenizer, but one value of the first image is bad."""

    def __init__(self, bad: float) -> None:
        self.bad = bad

    def encode(self, image_BCHW: Tensor, draws: Draws | None = None) -> Tensor:
        z_BCHW = super().encode(image_BCHW, draws)
        z_BCHW[0, 0, 0, 0] = self.bad
        return z_BCHW


class BadLossSettings(LossPart):
    kind: Literal["bad"] = "bad"


class BadLoss(LossTerm):
    """A loss without a gradient: the sum is bad, and no gradient tells of it."""

    taps = frozenset[int]()

    def __init__(self, bad: float) -> None:
        self.bad = bad

    def loss(self, view: LossInputs) -> Tensor:
        return torch.full_like(view.sample.t_B, self.bad)


def spoiled(parts: Session, place: str, bad: float, handles: list[Any]) -> Session:
    if place == "data":
        return replace(parts, tokenizer=BadPixels(bad))
    if place == "loss":
        return replace(parts, terms=(Term(BadLossSettings(weight=1.0), BadLoss(bad)),))

    def spoil(gradient: Tensor) -> Tensor:
        changed = gradient.clone()
        changed.view(-1)[0] = bad
        return changed

    parameter = next(one for name, one in parts.modules.named_parameters() if name.startswith("text."))
    handles.append(parameter.register_hook(spoil))
    return parts


def digest(state: TrainState) -> str:
    """Return a digest of everything on this rank that a skipped step must not change."""
    sha256 = hashlib.sha256()
    for name, tensor in state.tensors().items():
        if not name.startswith("spikes/"):
            sha256.update(local(tensor.detach()).contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()


Tried = tuple[str, bool, bool, str]
"""Name of a case, whether it was skipped, whether the state stayed, and the window of spikes."""


def try_all(settings: Sequence[str], techniques: Sequence[str], spikes: bool = True) -> list[Tried]:
    """Take three good steps, then a step for each case, which the last rank alone has."""
    parts = build_session(tiny_plan("train.batch=4", *settings, *(SPIKES if spikes else ()), techniques=techniques))
    state, clock = new_state(parts), Clock(parts.device)
    for _ in range(3):
        assert not update(parts, state, clock).skipped
    found = []
    for place, bad in CASES:
        before, handles = digest(state), list[Any]()
        mine = spoiled(parts, place, float(bad), handles) if current().rank == current().size - 1 else parts
        skipped = update(mine, state, clock).skipped
        for handle in handles:
            handle.remove()
        seen = "" if state.spikes is None else str(state.spikes.value_VW.tolist())
        found.append((f"{bad} in {place}", skipped, digest(state) == before, seen))
    assert not update(parts, state, clock).skipped, "a good step afterwards is taken"
    return found


@pytest.mark.promise(11)
@pytest.mark.parametrize("plan", PLANS)
def test_a_bad_value_never_reaches_the_weights(plan: str, promise: Promise) -> None:
    """NaN, inf and 1e9 in the data, the loss and one gradient."""
    for what, skipped, stayed, _ in try_all(*PLANS[plan]):
        promise.count(skipped and stayed, f"{plan}: {what}")


def try_layouts() -> list[Tried]:
    """Starting ranks takes longer than all of this."""
    return [case for settings in LAYOUTS.values() for case in try_all(settings, ["ema"])]


@pytest.mark.slow
@pytest.mark.promise(11)
def test_ranks_agree_on_a_bad_value_that_one_of_them_has(promise: Promise) -> None:
    """Put the same values on one rank of two, weights replicated and sharded: both skip, with equal windows."""
    for case in zip(*run_ranks(2, try_layouts), strict=True):
        skipped, stayed = all(one[1] for one in case), all(one[2] for one in case)
        promise.count(skipped and stayed and len({one[3] for one in case}) == 1, case[0][0])


@pytest.mark.promise(11, control="train.skip_spikes is off")
def test_control_without_the_setting_a_spike_is_trained_on(promise: Promise) -> None:
    """Put the same values in without skipping spikes: 1e9 reaches the weights."""
    for what, skipped, stayed, _ in try_all(*PLANS["adamw"], spikes=False):
        promise.count(skipped and stayed, what)
        assert stayed == (not what.startswith("1e9")), "what is not finite is skipped always"


@pytest.mark.promise(11, control="no step is skipped")
def test_control_without_the_guard_everything_reaches_the_weights(
    promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put the same values in and take every step."""

    def never(*arguments: Any) -> tuple[Tensor, Tensor]:
        loss, skipped = _decide(*arguments)
        return loss, torch.zeros_like(skipped)

    monkeypatch.setattr(update_module, "_decide", never)
    for what, skipped, stayed, _ in try_all(*PLANS["adamw"]):
        promise.count(skipped and stayed, what)


SPOILT_STEP = 5
PLAN = tiny_plan("run.save_every_steps=1", *SPIKES, techniques=["ema"])


def spoil_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put 1e9 into the images of one step, wherever it is run."""
    real = update_module.frozen_latents

    def latents(parts: Session, batch: Any, clock: Clock) -> Tensor:
        z_BCHW = real(parts, batch, clock)
        return z_BCHW.fill_(1e9) if batch.step == SPOILT_STEP - 1 else z_BCHW

    monkeypatch.setattr(update_module, "frozen_latents", latents)


def last(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return checkpoint.read(folder / "checkpoints" / f"step-{PLAN.train.steps:09d}")


def resumed_equals_whole(plan: Plan, folder: Path, stop: int) -> bool:
    if not (folder / "whole").exists():
        train(plan, folder / "whole", Interrupt())
    train_to(plan, folder / str(stop), stop)
    assert train(plan, folder / str(stop), Interrupt()).finished
    (first, numbers), (second, others) = last(folder / "whole"), last(folder / str(stop))
    return numbers == others and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.promise(1)
def test_the_window_of_spikes_resumes_bit_exactly(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop a run that skips spikes at each step before and after a spike, and resume it."""
    spoil_step(monkeypatch)
    for stop in promise.choose(range(1, PLAN.train.steps), short=3):
        promise.count(resumed_equals_whole(PLAN, tmp_path, stop), f"skip_spikes, stopped at step {stop}")
    events = RunRecord(tmp_path / "whole").events
    assert [(event["event"], event["step"]) for event in events] == [("skipped-spike", SPOILT_STEP)]
    assert (events[0]["first_position"], events[0]["last_position"]) == (16, 19) and len(events[0]["ids"]) == 4
    assert float(events[0]["loss"]) > 1e12
    assert last(tmp_path / "whole")[1]["skips"] == 1
    lines = RunRecord(tmp_path / "whole").lines
    assert lines[SPOILT_STEP - 1]["loss"] is None, "the mean is over the steps that were taken"


@pytest.mark.promise(1, control="the window of spikes is not restored")
def test_control_a_window_that_begins_anew_resumes_otherwise(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume in the same way with the window left out of the state."""
    spoil_step(monkeypatch)
    monkeypatch.setattr(SpikeWindow, "tensors", lambda self: {})
    promise.count(resumed_equals_whole(PLAN, tmp_path, SPOILT_STEP - 1), "stopped just before the spike")
