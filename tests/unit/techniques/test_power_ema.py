from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.bounds import distance, rounding_bound
from tests.tiny import tiny_plan
from tests.unit.train.test_update import Poisoned, clock
from tintype.errors import UserError
from tintype.optim.ema import EmaSettings
from tintype.optim.power_ema import PowerEma, PowerEmaSettings
from tintype.optim.power_function import exponent
from tintype.plan import plan_from_yaml
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

GO, SKIP = torch.zeros(()), torch.ones(())


def power_weights(length: float, count: int) -> Tensor:
    """Return the share of each update in the average, in closed form."""
    power = torch.arange(count + 1, dtype=torch.float64) ** (exponent(length) + 1)
    return power.diff() / power[-1]


def test_each_average_is_fp32_and_has_the_closed_form() -> None:
    weight = torch.full((3,), 9.0, dtype=torch.bfloat16)
    ema = PowerEma((0.05, 0.2), {"w": weight})
    values = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    for value in values:
        weight.copy_(value)
        ema.update(GO)
    for length in (0.05, 0.2):
        average = ema.averages[length]["w"]
        assert average.dtype == torch.float32
        expected = (power_weights(length, 40)[:, None] * values.double()).sum(0)
        assert distance(average.double(), expected) < rounding_bound(40, values.float())


def test_the_first_update_copies_the_weights_bit_for_bit() -> None:
    """Even where the weights became much smaller, and a step from the old ones would round away their digits."""
    weight = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e3
    ema = PowerEma((0.05,), {"w": weight})
    weight.mul_(torch.linspace(-1e-5, 1e-5, 1000))
    ema.update(GO)
    assert torch.equal(ema.averages[0.05]["w"], weight)


@pytest.mark.parametrize("skips", [{0}, {0, 1, 7}, {3, 4, 19}])
def test_a_skipped_step_leaves_no_trace(skips: set[int]) -> None:
    """Neither in the averages nor in the number of updates, from which the next share is taken."""
    values = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    found = []
    for with_skips in (True, False):
        weight = torch.zeros(5)
        ema = PowerEma((0.05, 0.1), {"w": weight})
        for index, value in enumerate(values):
            if index not in skips:
                weight.copy_(value)
                ema.update(GO)
            elif with_skips:
                ema.update(SKIP)
        found.append({name: tensor.clone() for name, tensor in ema.tensors().items()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[1])
    assert found[0]["updates"] == 20 - len(skips)


class HostReads(TorchDispatchMode):
    """Notes each number that the host asks for: on a GPU it would wait for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_an_update_asks_the_device_for_nothing() -> None:
    ema = PowerEma((0.05, 0.1), {"w": torch.ones(3)})
    with HostReads() as reads:
        ema.update(GO)
        ema.update(SKIP)
    assert reads.count == 0
    with reads:
        assert int(ema.updates) == 1
    assert reads.count == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_step_never_reaches_the_averages(bad: float) -> None:
    parts = build_session(tiny_plan(techniques=["power-ema"]))
    state = new_state(parts)
    poisoned = replace(parts, objective=Poisoned(parts.objective, bad))
    for _ in range(2):  # the first before there is any average
        before = {name: tensor.clone() for name, tensor in state.tensors().items() if name.startswith("ema/")}
        assert not update(poisoned, state, clock()).finite
        assert all(torch.equal(state.tensors()[name], tensor) for name, tensor in before.items())
        assert update(parts, state, clock()).finite
    assert state.tensors()["ema/updates"] == 2


@pytest.mark.parametrize(("snapshots", "steps", "due"), [(3, 6, [2, 4, 6]), (16, 6, [1, 2, 3, 4, 5, 6]), (1, 6, [6])])
def test_snapshots_are_evenly_spaced_and_the_last_is_at_the_end(snapshots: int, steps: int, due: list[int]) -> None:
    settings = PowerEmaSettings(snapshots=snapshots)
    assert [step for step in range(1, steps + 1) if settings.snapshot_due(step, steps)] == due


def test_as_many_snapshots_as_asked_for_when_they_do_not_divide_the_steps() -> None:
    due = [step for step in range(1, 1001) if PowerEmaSettings(snapshots=16).snapshot_due(step, 1000)]
    assert len(due) == 16 and due[-1] == 1000
    assert {later - earlier for earlier, later in itertools.pairwise(due)} == {62, 63}


def test_a_list_can_be_given_as_an_option() -> None:
    plan = tiny_plan(techniques=["power-ema:lengths=[0.03,0.2],snapshots=4"])
    assert plan.ema == PowerEmaSettings(lengths=(0.03, 0.2), snapshots=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("lengths=[]", "must have 1 or more values"),
        ("lengths=[0]", "must be above 0"),
        ("lengths=[0.05,-0.1]", "must be above 0"),
        ("lengths=[0.3]", "must be below 0.28"),
        ("lengths=[0.1,0.05,0.1]", "given twice"),
        ("snapshots=0", "must be at least 1"),
        ("length=[0.1]", "did you mean 'lengths'"),
    ],
)
def test_bad_options_are_refused_by_name(options: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"power-ema.*{message}"):
        apply_techniques(tiny_plan(), [f"power-ema:{options}"])


def test_a_plan_has_either_kind_of_average_and_says_what_is_wrong_with_it() -> None:
    assert tiny_plan("ema.decay=0.9").ema == EmaSettings(decay=0.9)
    assert tiny_plan("ema.lengths=[0.2]").ema == PowerEmaSettings(lengths=(0.2,))
    with pytest.raises(UserError, match=r"^--set ema.decai=0.9: ema.decai: unknown key; did you mean 'decay'\?$"):
        tiny_plan("ema.decai=0.9")
    with pytest.raises(UserError, match=r"^\S+, line 1: ema: unknown kind 'powr'; did you mean 'power'\?$"):
        plan_from_yaml("ema: {kind: powr}", "plan.yaml")
