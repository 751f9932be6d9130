"""Which tokens skip which blocks. What the denoiser makes of a route is tested with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.flow.tread import Tread, TreadSettings
from tintype.losses.alignment import AlignmentTerm
from tintype.runtime.clock import Clock
from tintype.schedule import Schedule
from tintype.seams import Draws, Route
from tintype.train.session import Term, build_session
from tintype.train.update import micro_batch_losses

GRID = (4, 5)


def routed(share: float = 0.5, step: int = 0, positions: Tensor | None = None, dense: str = "") -> Route | None:
    settings = TreadSettings.model_validate_json(f'{{"share": {share}, "first": 2, "last": 3{dense}}}')
    return Tread(settings).plan(GRID, step, Draws(0, torch.arange(300) if positions is None else positions))


def kept(share: float = 0.5, positions: Tensor | None = None) -> Tensor:
    route = routed(share, positions=positions)
    assert route is not None and route.kept_BK is not None
    return route.kept_BK


@pytest.mark.parametrize(("share", "left"), [(0.5, 10), (0.55, 9), (0.99, 1), (0.05, 19)])
def test_the_papers_number_of_tokens_is_left(share: float, left: int) -> None:
    """N - int(N r)."""
    kept_BK = kept(share)
    assert kept_BK.shape == (300, left)
    assert all(len(set(row)) == left and 0 <= min(row) <= max(row) < 20 for row in kept_BK.tolist())


def test_every_token_is_kept_equally_often_and_each_sample_has_its_own() -> None:
    kept_BK = kept(positions=torch.arange(4000))
    shares = torch.bincount(kept_BK.flatten(), minlength=20) / 4000
    assert (shares - 0.5).abs().max() < 4 * (0.25 / 4000) ** 0.5
    assert len({tuple(row) for row in kept_BK[:50].tolist()}) == 50


def test_the_draw_is_of_the_sample_and_not_of_its_batch() -> None:
    assert torch.equal(kept()[100:200], kept(positions=torch.arange(100, 200)))


def test_a_dense_end_has_one_step_at_least() -> None:
    route = tiny_plan("train.steps=6", techniques=["tread:dense=0.05"]).route
    assert route is not None and route.sparse_blocks(4) and not route.sparse_blocks(5)


@pytest.mark.parametrize("name", ["tread", "sprint"])
@pytest.mark.parametrize(("dense", "steps"), [("0.92", 6), ("0.999", 100), ("0.5", 1)])
def test_a_run_that_is_dense_from_its_first_step_is_refused(name: str, dense: str, steps: int) -> None:
    with pytest.raises(
        UserError, match=rf"dense: tokens never skip, since the last {dense} of the {steps} steps \(train\.steps\) .*"
    ):
        tiny_plan(f"train.steps={steps}", techniques=[f"{name}:dense={dense}"])
    late = (
        f"route={{kind: {name}, share: 0.75, first: 2, last: 2, schedule: {{kind: until, start: {steps}, end: 200}}}}"
    )
    with pytest.raises(UserError, match=rf"{name}: no token skips at any step: route\.schedule starts at step {steps}"):
        tiny_plan(f"train.steps={steps}", late)


def test_one_sparse_step_is_enough() -> None:
    route = tiny_plan("train.steps=6", techniques=["tread:dense=0.9"]).route
    assert route is not None and route.sparse_blocks(0) and not route.sparse_blocks(1)


def test_the_last_steps_can_be_dense() -> None:
    plan = tiny_plan("train.steps=10", techniques=["tread:dense=0.3"])
    router = build_session(plan).router
    draws = Draws(0, torch.arange(2))
    assert [router.plan((4, 4), step, draws) is None for step in (0, 6, 7, 9)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("depth", "options", "blocks"),
    [
        (16, "tread", (3, 13)),  # PRX's
        (3, "tread", (2, 2)),
        (12, "tread:first=3,last=9", (3, 9)),
        (12, "tread:first=0.25,last=0.75", (3, 9)),
        (12, "tread:first=1,last=1.0", (1, 12)),
    ],
)
def test_blocks_are_numbers_from_one_or_shares_of_the_depth(depth: int, options: str, blocks: tuple[int, int]) -> None:
    plan = tiny_plan(f"model.depth={depth}", techniques=[options])
    assert isinstance(plan.route, TreadSettings) and (plan.route.first, plan.route.last) == blocks
    route = plan.route.build(plan.model).plan((4, 4), 0, Draws(0, torch.arange(2)))
    assert route is not None and (route.start, route.end) == (blocks[0] - 1, blocks[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("tread:last=4", "skip blocks 2 to 4, but model.depth is 3"),
        ("tread:first=3,last=2", r"the last block to skip \(2\) comes before the first \(3\)"),
        ("tread:share=1.0", "share"),
        ("tread:share=0.05", "a share of 0.05 of 16 tokens is less than one"),
        ("tread:first=2.5", r"first: a block must be a whole number of at least 1, or a share of the depth"),
        ("tread:first=0", r"first: a block must be a whole number of at least 1, or a share of the depth"),
    ],
)
def test_a_range_that_cannot_be_is_refused(options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_plan(techniques=[options])


def test_a_share_that_changes_by_the_step_is_refused() -> None:
    with pytest.raises(ValidationError, match="its schedule is constant or until"):
        TreadSettings(share=0.5, first=2, last=3, schedule=Schedule(kind="ramp", end=5))


class Recorder(AlignmentTerm):
    """REPA's own term, which notes how many tokens it was given."""

    shapes: tuple[int, int, int] = (0, 0, 0)

    def compare(self, projected_BKT: Tensor, teacher_BLT: Tensor, kept_BK: Tensor | None) -> Tensor:
        assert kept_BK is not None
        self.shapes = (projected_BKT.shape[1], kept_BK.shape[1], teacher_BLT.shape[1])
        return super().compare(projected_BKT, teacher_BLT, kept_BK)


def test_alignment_compares_the_kept_tokens() -> None:
    parts = build_session(tiny_plan(techniques=["tread", "repa:teacher=scenes,hidden=8"]))
    (term,) = parts.terms
    assert isinstance(term.part, AlignmentTerm)
    recorder = Recorder(term.part._settings, term.part._context, term.part.projector)
    recorder.ready()
    micro_batch_losses(replace(parts, terms=(Term(term.settings, recorder),)), 0, 4, 0, Clock(parts.device))
    assert recorder.shapes == (8, 8, 16)


def test_a_route_says_which_blocks_miss_tokens_and_when() -> None:
    route = tiny_plan("train.steps=10", "model.depth=5", techniques=["tread:first=2,last=4,dense=0.3"]).route
    assert route is not None
    assert [list(route.sparse_blocks(step)) for step in (0, 6, 7)] == [[1, 2, 3], [1, 2, 3], []]
