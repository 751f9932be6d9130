from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.ranks import run_ranks
from tests.tiny import tiny_plan
from tests.unit.losses.alignment_views import SAMPLES, WIDTH, normal, place, view
from tintype.errors import UserError
from tintype.losses.dispersive import DispersiveSettings, dispersive_loss
from tintype.runtime.clock import Clock
from tintype.runtime.dist import ALONE, World, current
from tintype.runtime.gradients import GradientMean
from tintype.runtime.layout import Layout
from tintype.seams import Route
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import micro_batch_losses, update

TOKENS = 6


def written_out(feature_NF: Tensor, temperature: float) -> float:
    """The formula pair by pair, those of a sample with itself included."""
    rows = feature_NF.double().tolist()
    total = 0.0
    for one in rows:
        for other in rows:
            distance = sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / len(one)
            total += math.exp(-distance / temperature)
    return math.log(total / len(rows) ** 2)


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_the_loss_is_the_formula_pair_by_pair(temperature: float) -> None:
    feature_NF = normal(5, 12).double() + 7
    found = dispersive_loss(feature_NF, temperature, ALONE)
    assert float(found) == pytest.approx(written_out(feature_NF, temperature), rel=1e-12)


def test_gradients_are_those_of_the_formula() -> None:
    feature_NF = normal(4, 6).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda one: dispersive_loss(one, 0.5, ALONE), feature_NF)


def test_it_is_zero_for_equal_samples_and_least_for_samples_far_apart() -> None:
    assert float(dispersive_loss(torch.ones(4, 8), 0.5, ALONE)) == pytest.approx(0, abs=1e-6)
    assert float(dispersive_loss(1e3 * normal(4, 8), 0.5, ALONE)) == pytest.approx(-math.log(4))


def test_a_common_offset_costs_no_digits() -> None:
    feature_NF = normal(6, 64)
    near, far = (float(dispersive_loss(feature_NF + offset, 0.5, ALONE)) for offset in (0.0, 64.0))
    assert far == pytest.approx(near, abs=1e-4)


def test_the_term_flattens_the_tokens_of_its_block_and_gives_every_sample_the_same() -> None:
    token_BLD = normal(SAMPLES, TOKENS, WIDTH).bfloat16()
    term = DispersiveSettings(block=2, temperature=0.5).build(place())
    found = term.loss(view(token_BLD, None))
    assert found.shape == (SAMPLES,) and found.dtype == torch.float32
    assert found.tolist() == pytest.approx([written_out(token_BLD.flatten(1), 0.5)] * SAMPLES, rel=1e-5)


ROWS, SIZE = 6, 5


def _gradient(world: World, detach: bool) -> Tensor:
    """The gradient of a shared weight, averaged over the ranks as training does it."""
    generator = torch.Generator().manual_seed(0)
    x_NF = torch.randn(ROWS, SIZE, generator=generator, dtype=torch.float64)
    weight = torch.nn.Parameter(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))
    with GradientMean([weight], Layout(world)).over(last=True):
        feature_BF = torch.tanh(x_NF.chunk(world.size)[world.rank] @ weight)
        if detach:
            others = world.all_gather_tensor(feature_BF.detach()).chunk(world.size)[1 - world.rank]
            dispersive_loss(torch.cat([feature_BF, others]), 0.5, ALONE).backward()
        else:
            dispersive_loss(feature_BF, 0.5, world).expand(len(feature_BF)).mean().backward()
    assert weight.grad is not None
    return weight.grad


def _first_step() -> dict[str, Tensor]:
    """The gradients of a training step. Weights are not compared: AdamW makes a whole step of a gradient that is zero
    but for rounding, such as that of a bias, which moves all samples alike."""
    parts = build_session(tiny_plan("train.batch=12", "train.clip_norm=null", techniques=["dispersive"]))
    update(parts, new_state(parts), Clock(parts.device))
    return {name: one.grad for name, one in parts.modules.named_parameters() if one.grad is not None}


def _gradients() -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    world = current()
    detached = _gradient(world, detach=True) if world.size == 2 else None
    return _gradient(world, detach=False), detached, _first_step()


@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_one_process_with_the_whole_batch() -> None:
    """The control: where the rows of the other rank are cut off, they differ."""
    ((alone, _, first),) = run_ranks(1, _gradients)
    for found, detached, of_step in run_ranks(2, _gradients):
        torch.testing.assert_close(found, alone, rtol=1e-6, atol=1e-7)
        assert (detached - alone).abs().max() > 1e-2
        assert of_step.keys() == first.keys()
        for name, gradient in first.items():
            torch.testing.assert_close(of_step[name], gradient, rtol=1e-5, atol=1e-7)


def test_the_training_step_adds_it_by_its_weight() -> None:
    parts = build_session(tiny_plan(techniques=["dispersive:weight=0.25"]))
    found = {key: value.item() for key, value in micro_batch_losses(parts, 0, 4, 0, Clock(parts.device)).parts.items()}
    assert -math.log(4) <= found["dispersive"] <= 0
    assert found["loss"] == pytest.approx(found["flow"] + 0.25 * found["dispersive"])


def test_its_block_is_a_quarter_of_the_depth() -> None:
    blocks = [tiny_plan(f"model.depth={depth}", techniques=["dispersive"]).losses[0].block for depth in (1, 3, 8, 16)]  # type: ignore[attr-defined]
    assert blocks == [1, 1, 2, 4]


@pytest.mark.parametrize(
    ("assignments", "specs", "message"),
    [
        (["train.accumulate=4"], ["dispersive"], "one sample in each"),
        ([], ["dispersive:block=4"], "block 4 does not exist"),
        ([], ["dispersive:temperature=0"], "must be above 0"),
        ([], ["tread", "dispersive:block=2"], r"block 2 sees a part of the tokens \(route.kind 'tread'\)"),
    ],
)
def test_what_cannot_be_is_refused(assignments: list[str], specs: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        apply_techniques(tiny_plan(*assignments), specs)


def test_a_route_that_begins_later_is_refused_at_its_step() -> None:
    term = DispersiveSettings(block=2).build(place())
    route = Route(1, 2, torch.zeros(SAMPLES, 3, dtype=torch.int64))
    with pytest.raises(UserError, match="block 2 sees 3 tokens"):
        term.loss(view(normal(SAMPLES, 3, WIDTH), None, route))
