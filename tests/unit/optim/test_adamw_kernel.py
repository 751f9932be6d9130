"""The optimizer's one pass beside its plain form, by Triton's interpreter; `model/test_on_gpu.py` runs the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.bounds import distance, rounding_bound
from tests.tiny import tiny_plan
from tests.triton_interpreter import interpret_kernels

interpret_kernels()

from tintype.optim import adamw, adamw_kernel  # noqa: E402
from tintype.optim.adamw import AdamW, AdamWSettings  # noqa: E402
from tintype.optim.ema import Ema  # noqa: E402
from tintype.optim.power_ema import PowerEma  # noqa: E402
from tintype.runtime.clock import Clock  # noqa: E402
from tintype.runtime.copies import Copy, cast  # noqa: E402
from tintype.seams import WeightAverage  # noqa: E402
from tintype.train.session import build_session  # noqa: E402
from tintype.train.state import TrainState, new_state  # noqa: E402
from tintype.train.update import update  # noqa: E402

STEPS, SKIPPED = 4, 2
SHAPES = ((40, 7), (3,), (1300,))
"""The last one is longer than a chunk of the kernel, which is made small here, and no multiple of it."""
GO, SKIP = torch.zeros(()), torch.ones(())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw_kernel, "_CHUNK", 1024)
    monkeypatch.setattr(adamw_kernel, "_BLOCK", 512)


@pytest.fixture
def one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw, "runs_kernels", lambda device: True)


class Training:
    """Weights in two groups; one has no average, and the last one no gradient before the last step."""

    def __init__(self, kind: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weights = [nn.Parameter(torch.randn(*shape, generator=generator)) for shape in (*SHAPES, (5, 2))]
        settings = AdamWSettings(lr=1e-2, weight_decay=0.1, eps=1e-8)
        built = settings.build([(str(index), one) for index, one in enumerate(self.weights[:2])])
        assert isinstance(built, AdamW)
        self.optimizer = built
        self.optimizer.add_param_group({"params": self.weights[2:], "lr": 3e-3})
        averaged = {str(index): one for index, one in enumerate(self.weights) if index != 1}
        self.average: WeightAverage
        if kind == "power":
            self.average = PowerEma((0.1, 0.05), averaged)
        else:
            self.average = Ema(0.9, averaged, ramp=kind == "ramp")
        self.copies = [Copy(one, torch.empty_like(one.detach())) for one in self.weights[:3]]

    def step(self, index: int, *, averaged: bool = True) -> None:
        generator = torch.Generator().manual_seed(index)
        for weight in self.weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        if index < STEPS - 1:
            self.weights[-1].grad = None
        factor, skipped = torch.tensor(0.3), SKIP if index == SKIPPED else GO
        if self.optimizer.clips:
            self.optimizer.gradient_factor = factor
        else:
            torch._foreach_mul_([one.grad for one in self.weights if one.grad is not None], factor)
        averaging = self.average.begin(skipped) if averaged else None
        self.optimizer.found_inf, self.optimizer.averaging, self.optimizer.copies = skipped, averaging, self.copies
        self.optimizer.step()
        if averaging:
            averaging.finish()

    def tensors(self) -> dict[str, Tensor]:
        slots = {
            f"{index}/{slot}": value
            for index, weight in enumerate(self.weights)
            for slot, value in self.optimizer.state[weight].items()
        }
        weights = {str(index): one.detach() for index, one in enumerate(self.weights)}
        return weights | slots | {f"average/{name}": one for name, one in self.average.tensors().items()}


def trained(kind: str, due: Sequence[bool] = (True,) * STEPS) -> Training:
    training = Training(kind)
    for index, averaged in enumerate(due):
        training.step(index, averaged=averaged)
    return training


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], operations: int) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert distance(found[name], expected[name]) <= rounding_bound(operations, 8.0), name


@pytest.mark.parametrize(
    ("kind", "due"),
    [("ramp", (False, False, True, True)), ("fixed", (True,) * STEPS), ("power", (True,) * STEPS)],
    ids=["ramp that begins later", "fixed", "two powers"],
)
def test_the_pass_is_the_plain_form(kind: str, due: Sequence[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups, weight decay, a skipped step, a weight without a gradient, one without an average."""
    plain = trained(kind, due)
    monkeypatch.setattr(adamw, "runs_kernels", lambda device: True)
    fused = trained(kind, due)
    assert fused.optimizer.clips and not plain.optimizer.clips
    assert_close(fused.tensors(), plain.tensors(), 12 * STEPS)


@pytest.mark.usefixtures("one_pass")
def test_averages_are_moved_in_the_pass_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left to the plain form is the weight that has no gradient."""
    left: list[int] = []
    subtract = torch._foreach_sub

    def note(first: list[Tensor], second: list[Tensor]) -> Any:
        left.append(len(first))
        return subtract(first, second)

    monkeypatch.setattr(torch, "_foreach_sub", note)
    trained("power")
    assert left == [1, 1] * (STEPS - 1), "one weight, two lengths; none at the last step"


@pytest.mark.usefixtures("one_pass")
def test_the_first_update_copies_the_weights_bit_for_bit() -> None:
    training = trained("ramp", (True,))
    for name, average in training.average.tensors().items():
        if name != "updates":
            assert torch.equal(average, training.weights[int(name)])


@pytest.mark.usefixtures("one_pass")
def test_a_resumed_optimizer_goes_on_bit_for_bit() -> None:
    whole, first, second = (trained("power", (True,) * steps) for steps in (STEPS, 2, 0))
    with torch.no_grad():
        for old, new in zip(first.weights, second.weights, strict=True):
            new.copy_(old)
        for name, tensor in second.average.tensors().items():
            tensor.copy_(first.average.tensors()[name])
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    for index in range(2, STEPS):
        second.step(index)
    found, expected = second.tensors(), whole.tensors()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.usefixtures("one_pass")
def test_copies_follow_the_weights_also_over_a_skipped_step() -> None:
    training = Training("ramp")
    cast(training.copies)
    for copy in training.copies:
        copy.mark_fresh()
    for index in range(STEPS):
        training.step(index)
        for copy in training.copies:
            assert copy.fresh and torch.equal(copy.values, copy.weight)


@pytest.mark.usefixtures("one_pass")
@pytest.mark.parametrize("skipped", [False, True])
def test_a_copy_that_was_stale_before_the_step_stays_stale(skipped: bool) -> None:
    """A skipped step writes nothing: a stale copy that it called fresh would be read with old numbers."""
    training = Training("ramp")
    training.step(SKIPPED if skipped else 0)
    assert not any(copy.fresh for copy in training.copies)


def test_without_the_pass_a_step_makes_copies_stale() -> None:
    training = Training("ramp")
    cast(training.copies)
    for copy in training.copies:
        copy.mark_fresh()
    training.step(0)
    assert not training.optimizer.clips and not any(copy.fresh for copy in training.copies)


@pytest.mark.usefixtures("one_pass")
def test_gradients_that_lie_between_others_are_moved_to_where_the_pass_can_read_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU stops the process at four numbers that do not begin at a multiple of 16 bytes."""
    weights = [nn.Parameter(torch.ones(size)) for size in (3, 8)]
    optimizer = AdamWSettings().build([(str(index), one) for index, one in enumerate(weights)])
    assert isinstance(optimizer, AdamW)
    optimizer.found_inf, optimizer.gradient_factor = GO, torch.ones(())
    torch.cat([*weights]).square().sum().backward()
    assert weights[1].grad is not None and not adamw_kernel.is_aligned(weights[1].grad), "or this tests nothing"
    seen: list[adamw_kernel.Moved] = []
    step = adamw_kernel.step

    def note(chunks: Any, moved: Sequence[adamw_kernel.Moved], *rest: Any, **more: Any) -> None:
        seen.extend(moved)
        step(chunks, moved, *rest, **more)

    monkeypatch.setattr(adamw_kernel, "step", note)
    optimizer.step()
    for one in seen:
        assert all(map(adamw_kernel.is_aligned, (one.weight, one.gradient, one.mean, one.square)))
        assert torch.equal(one.gradient, torch.full_like(one.gradient, 2.0))


@pytest.mark.usefixtures("one_pass")
@pytest.mark.parametrize("why", ["sharded", "bf16", "strided"])
def test_what_does_not_fit_leaves_every_weight_to_the_plain_form(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16 if why == "bf16" else torch.float32))
    if why == "strided":
        other.data = other.data.t()[:, ::2]
    monkeypatch.setattr(adamw, "is_sharded", lambda parameter: why == "sharded" and parameter is other)
    fitting = nn.Parameter(torch.ones(3))
    both, alone = (AdamWSettings().build([("", one) for one in some]) for some in ((fitting, other), (fitting,)))
    assert isinstance(both, AdamW) and isinstance(alone, AdamW)
    assert alone.clips and not both.clips


def run(steps: int, resume_at: int = 0) -> TrainState:
    plan = tiny_plan("train.accumulate=2", "model.depth=1", techniques=["power-ema"])
    parts = build_session(plan)
    state = new_state(parts)
    for step in range(steps):
        if step and step == resume_at:
            stored = {name: tensor.clone() for name, tensor in state.tensors().items()}
            scalars = state.scalars()
            parts = build_session(plan)
            state = new_state(parts)
            state.load(stored, scalars)
        update(parts, state, Clock(parts.device))
    return state


@pytest.mark.usefixtures("one_pass")
def test_a_run_resumed_in_the_pass_ends_bit_identical_and_beside_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw_kernel, "_CHUNK", 1 << 13)
    monkeypatch.setattr(adamw_kernel, "_BLOCK", 1 << 13)
    whole, resumed = run(2).tensors(), run(2, resume_at=1).tensors()
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    monkeypatch.setattr(adamw, "runs_kernels", lambda device: False)
    plain = run(2).tensors()
    assert plain.keys() == whole.keys() and int(plain["ema/updates"]) == int(whole["ema/updates"]) == 2
    for name, expected in plain.items():
        if name.startswith("ema/0"):
            assert distance(whole[name], expected) <= 2e-3, "not even the direction of a step of 1e-3 differs"
