"""SPRINT against closed forms: which tokens are kept, what is fused, and that sampling is the trained network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.flow.sprint import Sprint, SprintSettings, grouped_kept
from tintype.metrics.validation import velocity_errors
from tintype.model import Transformer
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.seams import Draws, Output, Route
from tintype.settings import ModelSettings
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.session import Session, build_session
from tintype.train.update import micro_batch_losses

WIDTH = 32
DRAWS = Draws(0, torch.arange(400))


def sprint(**changes: object) -> Sprint:
    torch.manual_seed(0)
    return Sprint(SprintSettings(**{"share": 0.75, "first": 2, "last": 2, **changes}), WIDTH)  # type: ignore[arg-type]


def sprint_parts(*options: str, assignments: tuple[str, ...] = ()) -> Session:
    """Every weight random, so that nothing is hidden behind a zero."""
    parts = build_session(tiny_plan(*assignments, techniques=[":".join(["sprint", ",".join(options)]).rstrip(":")]))
    generator = torch.Generator().manual_seed(0)
    for parameter in parts.modules.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return parts


def predict(parts: Session, route: Route | None, taps: tuple[int, ...] = ()) -> Output:
    text = parts.text.encode(["a red ball", "a blue ring"])
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    output: Output = parts.denoiser(x, torch.tensor([0.3, 0.7]), text, route=route, taps=taps)
    return output


def routed(parts: Session, step: int = 0, count: int = 2) -> Route:
    route = parts.router.plan((4, 4), step, Draws(0, torch.arange(count)))
    assert route is not None
    return route


# Which tokens are kept


@pytest.mark.parametrize(("share", "side", "left"), [(0.75, 2, 1), (0.5, 2, 2), (0.625, 4, 6), (0.875, 4, 2)])
def test_as_many_tokens_are_left_of_each_square(share: float, side: int, left: int) -> None:
    """The paper's table: 1 of 2 × 2, 2 of 2 × 2, 6 of 4 × 4, 2 of 4 × 4."""
    rows, columns = 8, 12
    kept_BK = grouped_kept(DRAWS, (rows, columns), share)
    assert torch.equal(kept_BK, kept_BK.sort(dim=1).values)
    square_BK = (kept_BK // columns // side) * (columns // side) + kept_BK % columns // side
    for row in square_BK[:20].tolist():
        assert [row.count(square) for square in range(rows * columns // side**2)] == [left] * (len(row) // left)
    often = torch.bincount(kept_BK.flatten(), minlength=rows * columns) / len(kept_BK)
    assert (often - (1 - share)).abs().max() < 4.5 * (share * (1 - share) / len(kept_BK)) ** 0.5


def test_each_sample_has_its_own_draw_whatever_its_batch() -> None:
    kept_BK = grouped_kept(DRAWS, (4, 4), 0.75)
    assert len({tuple(row) for row in kept_BK.tolist()}) > 100
    assert torch.equal(kept_BK[100:130], grouped_kept(Draws(0, torch.arange(100, 130)), (4, 4), 0.75))


def test_random_sampling_keeps_any_tokens() -> None:
    kept_BK = sprint(sampling="random")._kept((4, 4), DRAWS)
    in_first_square = torch.isin(kept_BK, torch.tensor([0, 1, 4, 5])).sum(dim=1)
    assert kept_BK.shape == (400, 4) and set(in_first_square.tolist()) > {0, 1, 2}


# What is fused


def test_fusion_is_the_linear_layer_on_deep_and_shallow() -> None:
    """Against a loop over tokens, in float64: mask tokens stand where a token is missing, or for a dropped path."""
    part = sprint().double()
    generator = torch.Generator().manual_seed(2)
    whole = torch.randn(2, 4, WIDTH, dtype=torch.float64, generator=generator)
    deep = torch.randn(2, 2, WIDTH, dtype=torch.float64, generator=generator)
    kept = torch.tensor([[0, 3], [1, 2]])
    fused = part.fuse(whole, deep, kept, torch.tensor([False, True]))
    for sample in range(2):
        for token in range(4):
            place = kept[sample].tolist().index(token) if token in kept[sample] else None
            seen = part.mask_D if place is None or sample == 1 else deep[sample, place]
            joined = torch.cat([seen, whole[sample, token]])
            assert torch.allclose(fused[sample, token], part.fusion.weight @ joined + part.fusion.bias, atol=1e-14)


def set_fusion(parts: Session, deep: float, shallow: float) -> None:
    assert isinstance(parts.router, Sprint)
    identity = torch.eye(WIDTH)
    with torch.no_grad():
        parts.router.fusion.weight.copy_(torch.cat([deep * identity, shallow * identity], dim=1))
        parts.router.fusion.bias.zero_()


def test_fusing_the_deep_stream_alone_is_the_baseline_bit_for_bit() -> None:
    parts = sprint_parts()
    set_fusion(parts, 1, 0)
    dense = predict(parts, None).prediction_BCHW
    assert torch.equal(predict(parts, parts.router.whole()).prediction_BCHW, dense)


def test_fusing_the_shallow_stream_alone_removes_the_middle_blocks() -> None:
    parts = sprint_parts()
    set_fusion(parts, 0, 1)
    fused = predict(parts, parts.router.whole()).prediction_BCHW
    del parts.denoiser.blocks[1]
    assert torch.equal(fused, predict(parts, None).prediction_BCHW)


def test_both_streams_carry_gradient_and_missing_tokens_only_the_shallow_one() -> None:
    parts = sprint_parts("path_drop=0")
    route = routed(parts)
    output = predict(parts, route, taps=(0, 1))
    before, inside = output.features[0], output.features[1]
    assert route.kept_BK is not None and inside.shape[1] == 4
    shallow, deep = torch.autograd.grad(output.prediction_BCHW.square().sum(), [before, inside])
    assert bool(shallow.abs().sum(dim=-1).min() > 0) and bool(deep.abs().sum(dim=-1).min() > 0)


# Path-drop


def dropped(parts: Session, count: int, step: int = 0) -> Tensor:
    """Which samples of a step have no deep stream: their kept tokens get no gradient."""
    router = parts.router
    assert isinstance(router, Sprint)
    route = routed(parts, step, count)
    whole = torch.randn(count, 16, WIDTH)
    kept = 16 if route.kept_BK is None else route.kept_BK.shape[1]
    deep = torch.randn(count, kept, WIDTH, requires_grad=True)
    assert route.merge is not None
    (gradient,) = torch.autograd.grad(route.merge(whole, deep, route.kept_BK).sum(), deep)
    return gradient.abs().sum(dim=(1, 2)) == 0


@pytest.mark.parametrize("step", [0, 5])
def test_the_deep_stream_of_some_samples_is_dropped_in_both_stages(step: int) -> None:
    parts = sprint_parts("path_drop=0.25", "dense=0.5")
    share = dropped(parts, 1000, step).float().mean()
    assert abs(float(share) - 0.25) < 4 * (0.25 * 0.75 / 1000) ** 0.5
    assert not dropped(sprint_parts("path_drop=0", "dense=0.5"), 1000, step).any()


def test_the_drop_does_not_look_at_the_time_of_a_sample() -> None:
    parts, draws = sprint_parts("path_drop=0.25"), Draws(0, torch.arange(1000))
    t_B = parts.objective.draw(torch.zeros(1000, 3, 4, 4), draws).t_B
    gone = dropped(parts, 1000)
    assert abs(float(t_B[gone].mean() - t_B[~gone].mean())) < 4 * float(t_B.std()) * (1 / 250 + 1 / 750) ** 0.5


def test_nothing_is_dropped_outside_of_training() -> None:
    parts = sprint_parts("path_drop=0.9")
    assert torch.equal(
        predict(parts, parts.router.whole()).prediction_BCHW, predict(parts, parts.router.whole()).prediction_BCHW
    )
    set_fusion(parts, 1, 0)
    assert torch.equal(predict(parts, parts.router.whole()).prediction_BCHW, predict(parts, None).prediction_BCHW)


# The second stage, sampling and validation


def test_the_last_steps_are_dense_and_fused() -> None:
    parts = sprint_parts("dense=0.5", "path_drop=0")
    assert routed(parts, 2).kept_BK is not None
    late = routed(parts, 3)
    assert late.kept_BK is None
    expected = predict(parts, parts.router.whole()).prediction_BCHW
    assert torch.equal(predict(parts, late).prediction_BCHW, expected)


def test_sampling_and_validation_use_the_fusion() -> None:
    parts = sprint_parts()
    before = velocity_errors(parts, parts.source, 2, 2, 0)
    set_fusion(parts, 0, 0)
    assert not torch.allclose(velocity_errors(parts, parts.source, 2, 2, 0), before)


@pytest.mark.parametrize("mask", ["fixed", "learned"])
def test_the_average_of_a_run_is_the_whole_network(tmp_path: Path, mask: str) -> None:
    """PRX's average left the fusion out, and so scored another network."""
    plan = tiny_plan("optimizer.lr=0.05", techniques=[f"sprint:mask={mask}", "ema:decay=0.5"])
    train(plan, tmp_path / "run", Interrupt())
    parts, _ = load_run(tmp_path / "run")
    names = {name for name in parts.modules.state_dict() if name.startswith("router.")}
    assert names == {"router.fusion.weight", "router.fusion.bias", "router.mask_D"}
    assert isinstance(parts.router, Sprint)
    started = build_session(plan).router
    assert isinstance(started, Sprint)
    assert not torch.equal(parts.router.fusion.weight, started.fusion.weight)
    assert torch.equal(parts.router.mask_D, started.mask_D) == (mask == "fixed")


def test_the_mask_is_drawn_once_or_learned_from_zero() -> None:
    fixed, learned = sprint().mask_D, sprint(mask="learned").mask_D
    assert not isinstance(fixed, nn.Parameter) and 0.01 < float(fixed.std()) < 0.03
    assert isinstance(learned, nn.Parameter) and not learned.any()
    parts = build_session(tiny_plan(techniques=["sprint"]))
    other = build_session(tiny_plan("seed=1", techniques=["sprint"]))
    assert isinstance(parts.router, Sprint) and isinstance(other.router, Sprint)
    assert not torch.equal(parts.router.mask_D, other.router.mask_D)


def test_the_fusion_starts_as_the_papers() -> None:
    """Xavier's uniform bound for 2 D inputs and D outputs, and no bias; torch's own start would be half as wide."""
    fusion, bound = sprint().fusion, (6 / (3 * WIDTH)) ** 0.5
    assert 0.95 * bound < float(fusion.weight.detach().abs().max()) <= bound and not fusion.bias.any()


def test_the_fusion_leaves_the_other_weights_as_the_baselines() -> None:
    dense = build_session(tiny_plan()).modules.state_dict()
    fused = build_session(tiny_plan(techniques=["sprint"])).modules.state_dict()
    assert all(torch.equal(fused[name], tensor) for name, tensor in dense.items())


def test_alignment_sees_the_kept_tokens_and_then_all() -> None:
    plan = tiny_plan(techniques=["sprint:dense=0.5", "repa:teacher=scenes,hidden=8,block=2"])
    parts = build_session(plan)
    for term in parts.terms:
        term.part.ready()
    for step in (0, 5):
        assert torch.isfinite(micro_batch_losses(parts, 0, 4, step, Clock(parts.device)).parts["repa"])


# Bad input


@pytest.mark.parametrize(
    ("options", "assignments", "message"),
    [
        ("sprint:share=0.7", (), "a share that is a multiple of 1/16, not 0.7; or set sampling=random"),
        ("sprint:last=4", (), "sprint: tokens skip blocks 2 to 4, but model.depth is 3"),
        ("sprint", ("data.size_px=20",), "5 × 5 tokens cannot be divided into squares of 2 × 2.*sampling=random"),
        ("sprint:share=0.03,sampling=random", (), "a share of 0.03 of 16 tokens is less than one"),
        ("sprint:path_drop=1.0", (), "path_drop"),
    ],
)
def test_what_cannot_be_is_refused(options: str, assignments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_plan(*assignments, techniques=[options])


def test_prxs_variant_can_be_said() -> None:
    plan: Plan = tiny_plan("data.size_px=20", techniques=["sprint:sampling=random,mask=learned,path_drop=0"])
    assert isinstance(plan.route, SprintSettings)
    assert (plan.route.sampling, plan.route.mask, plan.route.path_drop) == ("random", "learned", 0)


def test_the_fusion_of_the_small_prx_has_its_known_size() -> None:
    with torch.device("meta"):
        router = Sprint(SprintSettings(share=0.75, first=3, last=13), ModelSettings().width)
        Transformer(ModelSettings(), 16, 2304)
    assert sum(parameter.numel() for parameter in router.parameters()) == 2 * 1792 * 1792 + 1792


def test_a_route_that_begins_late_resumes(tmp_path: Path) -> None:
    """Before it the learned mask has no gradient, and the optimizer nothing to restore for it."""
    schedule = "schedule: {kind: until, start: 4, end: 6}"
    plan = tiny_plan(f"route={{kind: sprint, share: 0.75, first: 2, last: 2, mask: learned, path_drop: 0, {schedule}}}")
    stop_and_go_on(plan, tmp_path / "run", 2)
