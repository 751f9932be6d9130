from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_plan
from tests.unit.losses.alignment_views import SAMPLES, WIDTH, normal, place, view
from tintype.errors import UserError
from tintype.losses.self_alignment import SelfAlignmentSettings, teacher_time
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.forms import under
from tintype.seams import LossInputs, Route, Tapped
from tintype.techniques.apply import apply_techniques
from tintype.train.session import Session, build_session
from tintype.train.state import TrainState, new_state
from tintype.train.update import micro_batch_losses, update

TOKENS = 6


def shown(student_BKD: Tensor, teacher_BLD: Tensor, route: Route | None = None) -> tuple[LossInputs, list[Tensor]]:
    """Inputs whose average gives these tokens, and the times at which it was asked."""
    asked: list[Tensor] = []

    def averaged(t_B: Tensor, taps: frozenset[int]) -> Tapped:
        assert taps == {2}
        asked.append(t_B)
        return Tapped({2: teacher_BLD}, None)

    inputs = view(student_BKD, None, route)
    sample = replace(inputs.sample, t_B=torch.tensor([0.05, 0.3, 0.6, 0.99]))
    return replace(inputs, sample=sample, averaged=averaged), asked


def term(**options: object) -> torch.nn.Module:
    settings = SelfAlignmentSettings.model_validate({"block": 2, "teacher_block": 3, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return settings.build(place())


def projected(alignment: torch.nn.Module, token_BKD: Tensor) -> Tensor:
    """The head written out in float64: two layers with SiLU between them."""
    first, _, last = alignment.head  # type: ignore[misc]
    hidden = token_BKD.double() @ first.weight.double().T + first.bias.double()
    hidden = hidden / (1 + torch.exp(-hidden))
    out: Tensor = hidden @ last.weight.double().T + last.bias.double()
    return out


def test_smooth_l1_is_the_formula() -> None:
    student, teacher = normal(SAMPLES, TOKENS, WIDTH), 0.1 * normal(SAMPLES, TOKENS, WIDTH, seed=1)
    alignment = term()
    error = (projected(alignment, student) - teacher.double()).abs()
    assert (error < 0.05).any() and (error > 0.05).any(), "both pieces are tried"
    expected = torch.where(error < 0.05, error.square() / (2 * 0.05), error - 0.05 / 2).mean((1, 2))
    found = alignment.loss(shown(student, teacher)[0])  # type: ignore[operator]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_cosine_is_minus_its_mean_over_tokens() -> None:
    student, teacher = normal(SAMPLES, TOKENS, WIDTH), normal(SAMPLES, TOKENS, WIDTH, seed=1)
    alignment = term(distance="cosine")
    a, b = projected(alignment, student), teacher.double()
    expected = -((a * b).sum(2) / a.norm(dim=2) / b.norm(dim=2)).mean(1)
    found = alignment.loss(shown(student, teacher)[0])  # type: ignore[operator]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_average_sees_the_batch_at_a_lower_t_by_at_most_the_gap() -> None:
    inputs, asked = shown(normal(SAMPLES, TOKENS, WIDTH), normal(SAMPLES, TOKENS, WIDTH))
    term().loss(inputs)  # type: ignore[operator]
    t_B, uniform_B = inputs.sample.t_B, inputs.draws.uniform("self-alignment")
    assert torch.equal(asked[0], (t_B - 0.2 * uniform_B).clamp_min(0))
    assert ((t_B - asked[0]) <= 0.2).all() and (asked[0] <= t_B).all() and (asked[0] >= 0).all()
    assert torch.equal(teacher_time(t_B, uniform_B, 0.0), t_B)


def test_only_the_tokens_that_a_route_kept_are_compared() -> None:
    kept_BK = torch.tensor([[0, 2], [1, 5], [3, 4], [0, 5]])
    teacher = normal(SAMPLES, TOKENS, WIDTH)
    chosen = torch.stack([teacher[row, kept] for row, kept in enumerate(kept_BK)])
    student, alignment = normal(SAMPLES, 2, WIDTH, seed=1), term()
    routed = alignment.loss(shown(student, teacher, Route(1, 2, kept_BK))[0])  # type: ignore[operator]
    assert torch.equal(routed, alignment.loss(shown(student, chosen)[0]))  # type: ignore[operator]


def plan(*assignments: str, techniques: tuple[str, ...] = ("ema:decay=0.5", "self-alignment")) -> Plan:
    return tiny_plan(*assignments, techniques=techniques)


def begun(one: Plan, steps: int) -> tuple[Session, TrainState]:
    parts = build_session(one)
    state = new_state(parts)
    for _ in range(steps):
        update(parts, state, Clock(parts.device))
    return parts, state


@pytest.mark.parametrize("average", ["ema:decay=0.5", "ema:decay=0.5,ramp=false", "power-ema:snapshots=2"])
def test_the_teacher_is_the_average_as_it_is_now(average: str) -> None:
    """After each step it has the averages' numbers, and they differ from the weights."""
    parts, state = begun(plan(techniques=(average, "self-alignment")), 2)
    assert state.teacher is not None and state.ema is not None and parts.plan.ema is not None
    network = state.teacher.network(parts.denoiser)
    for _ in range(2):
        update(parts, state, Clock(parts.device))
        weights = under("denoiser.", parts.plan.ema.sampled(state.ema.tensors()))
        assert state.teacher.network(parts.denoiser) is network
        assert all(torch.equal(one, weights[name]) for name, one in network.named_parameters())
        assert not torch.equal(network.img_in.weight, parts.denoiser.img_in.weight)  # type: ignore[arg-type]
    assert not any(one.requires_grad for one in network.parameters())


def test_before_its_first_update_the_denoiser_itself_is_the_teacher() -> None:
    parts, state = begun(plan(techniques=("ema:every=2", "self-alignment")), 1)
    assert state.teacher is not None and state.teacher.network(parts.denoiser) is parts.denoiser
    update(parts, state, Clock(parts.device))
    assert state.teacher.network(parts.denoiser) is not parts.denoiser


def test_the_training_step_compares_with_the_averaged_block() -> None:
    parts, state = begun(plan(), 3)
    (alignment,) = (one.part for one in parts.terms)
    with_average = micro_batch_losses(parts, 0, 4, 3, Clock(parts.device), None, state.teacher).parts
    with_own = micro_batch_losses(parts, 0, 4, 3, Clock(parts.device)).parts
    assert with_average["flow"] == with_own["flow"]
    assert with_average["self-alignment"] != with_own["self-alignment"]
    found = {name: value.item() for name, value in with_average.items()}
    assert found["loss"] == pytest.approx(found["flow"] + 0.2 * found["self-alignment"])
    assert alignment.taps == {0}


@pytest.mark.parametrize(("depth", "blocks"), [(3, (1, 2)), (12, (4, 8)), (16, (5, 11))])
def test_its_blocks_are_the_authors_shares_of_the_depth(depth: int, blocks: tuple[int, int]) -> None:
    (loss,) = plan(f"model.depth={depth}").losses
    assert isinstance(loss, SelfAlignmentSettings) and (loss.block, loss.teacher_block) == blocks
    (cosine,) = plan(techniques=("ema", "self-alignment:distance=cosine")).losses
    assert (loss.weight, cosine.weight) == (0.2, 0.5)


@pytest.mark.parametrize(
    ("assignments", "specs", "message"),
    [
        (
            [],
            ["self-alignment"],
            "the teacher is the weight average, but the plan has no average; add the technique ema",
        ),
        (["run.distribution.kind=fsdp"], ["ema", "self-alignment"], "fsdp shards it"),
        ([], ["ema", "self-alignment:teacher_block=4"], "block 4 does not exist"),
    ],
)
def test_what_cannot_be_is_refused(assignments: list[str], specs: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        apply_techniques(tiny_plan(*assignments), specs)
