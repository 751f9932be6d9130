from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tiny import tiny_plan
from tests.unit.losses.alignment_views import GRID, SAMPLES, WIDTH, normal, place, view
from tintype.errors import UserError
from tintype.flow.part import RoutePart
from tintype.losses.irepa import IrepaSettings, IrepaTerm, spatially_normalised
from tintype.plan import Plan
from tintype.seams import Draws, Route
from tintype.settings import ModelSettings
from tintype.train.session import build_session
from tintype.vision.scene_encoder import SceneTeacherSettings


def term(alpha: float = 0.6) -> IrepaTerm:
    torch.manual_seed(0)
    return IrepaSettings(block=2, teacher=SceneTeacherSettings(), alpha=alpha).build(place())


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_normalisation_is_the_authors_in_plain_numpy(alpha: float) -> None:
    token = normal(3, 7, 5) * 2 + 1
    y = token.double().numpy()
    wanted = np.empty_like(y)
    for sample in range(3):
        for channel in range(5):
            column = y[sample, :, channel]
            mean = sum(column) / 7
            deviation = (sum((value - mean) ** 2 for value in column) / 6) ** 0.5
            wanted[sample, :, channel] = (column - alpha * mean) / (deviation + 1e-6)
    torch.testing.assert_close(spatially_normalised(token, alpha).double(), torch.from_numpy(wanted), atol=1e-5, rtol=0)


def test_the_loss_is_a_convolution_over_rows_and_columns_against_normalised_tokens() -> None:
    """Each output token is the sum over its neighbours on the grid, written out; beyond the edge there is nothing."""
    one = term()
    token, teacher = normal(SAMPLES, 6, WIDTH), normal(SAMPLES, 6, 128, seed=1)
    weight, bias = (one.projector.get_parameter(part).double() for part in ("weight", "bias"))
    assert weight.shape == (128, WIDTH, 3, 3)
    rows, columns = GRID
    projected = torch.zeros(SAMPLES, 6, 128, dtype=torch.float64)
    for row in range(rows):
        for column in range(columns):
            out = bias.expand(SAMPLES, -1).clone()
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    if 0 <= row + dy < rows and 0 <= column + dx < columns:
                        near = token[:, (row + dy) * columns + column + dx].double()
                        out = out + near @ weight[:, :, dy + 1, dx + 1].T
            projected[:, row * columns + column] = out
    target = spatially_normalised(teacher.double(), 0.6)
    cosine = (projected * target).sum(-1) / (projected.norm(dim=-1) * target.norm(dim=-1))
    found = one.loss(view(token, teacher))
    torch.testing.assert_close(found.double(), -cosine.mean(1), atol=1e-5, rtol=1e-4)


def test_a_perfect_projector_gives_minus_one() -> None:
    one = term(alpha=1.0)
    centre = nn.Conv2d(128, 128, 3, padding=1, bias=False)
    nn.init.dirac_(centre.weight)
    one.projector = centre
    teacher = normal(SAMPLES, 6, 128)
    torch.testing.assert_close(one.loss(view(spatially_normalised(teacher, 1.0), teacher)), -torch.ones(SAMPLES))


def test_it_stays_in_fp32_under_autocast() -> None:
    one = term()
    token, teacher = normal(SAMPLES, 6, WIDTH).bfloat16(), normal(SAMPLES, 6, 128, seed=1)
    plain = one.loss(view(token.float(), teacher))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(one.loss(view(token, teacher)), plain)


class HalfSettings(RoutePart):
    """A route by hand: the first half of the tokens goes through the blocks from `start` to just before `end`."""

    kind: Literal["half"] = "half"
    start: int
    end: int
    from_step: int = 0

    def sparse_blocks(self, step: int) -> range:
        return range(self.start, self.end) if step >= self.from_step else range(0)

    def build(self, model: ModelSettings) -> Half:
        return Half(self)


class Half:
    def __init__(self, settings: HalfSettings) -> None:
        self.settings = settings

    def plan(self, grid: tuple[int, int], step: int, draws: Draws) -> Route | None:
        if step < self.settings.from_step:
            return None
        kept_BK = torch.arange(grid[0] * grid[1] // 2).expand(len(draws.position_B), -1)
        return self.sparse(kept_BK)

    def whole(self) -> Route | None:
        return None

    def sparse(self, kept_BK: Tensor) -> Route:
        return Route(self.settings.start, self.settings.end, kept_BK)


def with_route(plan: Plan, start: int, end: int, from_step: int = 0) -> Plan:
    return plan.model_copy(update={"route": HalfSettings(start=start, end=end, from_step=from_step)})


def test_a_route_over_the_aligned_block_is_refused_with_the_plan() -> None:
    plan = tiny_plan(techniques=["irepa:teacher=scenes,block=2"])
    (loss,) = plan.losses
    loss.check(plan)
    for outside in ({"start": 0, "end": 1}, {"start": 2, "end": 3}):
        loss.check(with_route(plan, **outside))
    for inside in ({"start": 0, "end": 2}, {"start": 1, "end": 2}, {"start": 1, "end": 3}):
        message = r"irepa convolves over the whole grid, but block 2 sees .*route.kind 'half'.*take a block outside"
        with pytest.raises(ValueError, match=message):
            loss.check(with_route(plan, **inside))


def routed_losses(plan: Plan, step: int) -> dict[str, Tensor]:
    from tintype.runtime.clock import Clock
    from tintype.train.update import micro_batch_losses

    parts = build_session(plan)
    for one in parts.terms:
        one.part.ready()
    return micro_batch_losses(parts, 0, 4, step, Clock(parts.device)).parts


def test_a_route_that_comes_over_it_later_is_refused_at_that_step() -> None:
    plan = with_route(tiny_plan(techniques=["irepa:teacher=scenes,block=2"]), start=1, end=2, from_step=3)
    plan.losses[0].check(plan)
    assert routed_losses(plan, 2)["irepa"].isfinite()
    with pytest.raises(
        UserError, match=r"but block 2 sees 8 of 16 tokens; take a block outside the route \(irepa:block"
    ):
        routed_losses(plan, 3)
    assert routed_losses(with_route(plan, start=2, end=3), 3)["irepa"].isfinite()


def test_a_single_token_is_refused() -> None:
    with pytest.raises(UserError, match=r"irepa: a denoiser with a single token .* model\.patch"):
        build_session(tiny_plan("model.patch=16", techniques=["irepa:teacher=scenes"]))


def test_defaults_are_the_authors_command_and_repas_weight() -> None:
    (loss,) = tiny_plan(techniques=["irepa"]).losses
    assert (loss.kind, loss.weight) == ("irepa", 0.5)
    assert (loss.alpha, loss.block) == (0.6, 2)  # type: ignore[attr-defined]


def test_both_alignments_go_together_each_with_its_own_teacher() -> None:
    plan = tiny_plan(techniques=["repa:teacher=scenes,hidden=8", "irepa:teacher=scenes,block=3"])
    found = routed_losses(plan, 0)
    assert {"repa", "irepa"} <= set(found)
