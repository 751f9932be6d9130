"""Every stored tensor has the type that the plan says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.fault.promises import Promise
from tests.tiny import tiny_plan
from tests.tiny_tuning import NO_PERCEPTUAL, tuned_plan
from tintype.optim import ema
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

REPA = "repa:teacher=scenes,hidden=8"
BF16 = ("precision.compute=bf16", "precision.storage=bf16")
PLANS: dict[str, Callable[[], Plan]] = {
    "fp32": lambda: tiny_plan(techniques=["ema", REPA]),
    "bf16 compute": lambda: tiny_plan("precision.compute=bf16", techniques=["ema", REPA]),
    "bf16": lambda: tiny_plan(*BF16, techniques=["ema", REPA]),
    "bf16 stochastic": lambda: tiny_plan(*BF16, "precision.rounding=stochastic", techniques=["power-ema", REPA]),
    "bf16 kahan": lambda: tiny_plan(*BF16, "precision.rounding=kahan", techniques=["muon", "ema", REPA]),
    "muon": lambda: tiny_plan("train.skip_spikes.window=4", techniques=["muon", "power-ema"]),
    "tuned tokenizer in bf16": lambda: tuned_plan(*BF16, techniques=[NO_PERCEPTUAL, "ema"]),
}
COUNTS = {"ema/updates": torch.int64, "spikes/seen": torch.int64, "spikes/values": torch.float64}
FP32 = ("losses_", "tokenizer.", "adversary.")
"""Stored in fp32 always, with their moments: a loss's own parameters, a trained tokenizer and its discriminator."""


def expected(plan: Plan, name: str) -> torch.dtype:
    room, _, rest = name.partition("/")
    if name in COUNTS:
        return COUNTS[name]
    if room == "ema" or rest.startswith(FP32) or rest.endswith("/step"):
        return torch.float32
    return torch.bfloat16 if plan.precision.storage == "bf16" else torch.float32


def wrong_types(plan: Plan) -> dict[str, bool]:
    """For each tensor of the state after three steps, whether it has another type than expected."""
    parts = build_session(plan)
    parts.ready()
    state = new_state(parts)
    for _ in range(3):
        update(parts, state, Clock(parts.device))
    return {name: tensor.dtype != expected(plan, name) for name, tensor in state.tensors().items()}


@pytest.mark.promise(22)
@pytest.mark.parametrize("name", PLANS)
def test_stored_tensors_have_the_type_that_the_plan_says(name: str, promise: Promise) -> None:
    """Take three steps with each precision, and look at the type of each weight, optimizer slot and average."""
    for tensor, wrong in wrong_types(PLANS[name]()).items():
        promise.count(not wrong, f"{name}: {tensor}")


@pytest.mark.promise(22, control="the average is kept in bf16")
def test_control_an_average_in_bf16_is_found(promise: Promise, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the same steps with an average in the type of the weights."""

    class Narrow(ema.Ema):
        def tensors(self) -> dict[str, torch.Tensor]:
            return {name: tensor.bfloat16() for name, tensor in super().tensors().items()}

    monkeypatch.setattr(ema, "Ema", Narrow)
    for tensor, wrong in wrong_types(PLANS["bf16"]()).items():
        promise.count(not wrong, tensor)
