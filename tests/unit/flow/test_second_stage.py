"""`dense=1`: a second stage in which no token skips, from the weights of a stage in which tokens skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.tiny_start import trained
from tintype.errors import UserError
from tintype.flow.routes import RangePart
from tintype.plan import Plan, diff
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.seams import Draws
from tintype.train.folder import RunFolder
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.session import Session, build_session
from tintype.train.start import begin
from tintype.train.state import new_state
from tintype.train.update import micro_batch_losses

DRAWS = Draws(0, torch.arange(2))
ROUTES = ["tread", "sprint:path_drop=0"]


def options(route: str, more: str) -> str:
    return f"{route}{',' if ':' in route else ':'}{more}"


def first_stage(route: str) -> Plan:
    return tiny_plan(techniques=[route])


def second_stage(route: str) -> Plan:
    parent = trained(first_stage(route))
    return tiny_plan(techniques=[options(route, "dense=1"), f"sft:from={parent},lr=1e-4"])


def begun(plan: Plan, folder: Path) -> Session:
    parts = build_session(plan)
    begin(RunFolder(folder), parts, new_state(parts))
    return parts


@pytest.mark.parametrize("route", ROUTES)
def test_no_token_skips_at_any_step(route: str) -> None:
    plan = tiny_plan(techniques=[options(route, "dense=1")])
    assert isinstance(plan.route, RangePart) and plan.route.dense
    assert not any(plan.route.sparse_blocks(step) for step in range(plan.train.steps))
    router = build_session(plan).router
    for step in range(plan.train.steps):
        planned = router.plan((4, 4), step, DRAWS)
        assert planned is None or planned.kept_BK is None
    control = build_session(first_stage(route)).router.plan((4, 4), 0, DRAWS)
    assert control is not None and control.kept_BK is not None, "without it tokens skip"


@pytest.mark.parametrize("route", ROUTES)
def test_it_starts_from_the_weights_of_the_sparse_stage_and_trains_what_is_sampled(route: str, tmp_path: Path) -> None:
    """Its loss is that of the network that sampling runs: all tokens, for sprint with the fusion of the parent."""
    plan = second_stage(route)
    parent = load_run(trained(first_stage(route)), raw=True)[0]
    parts = begun(plan, tmp_path)
    own, theirs = parts.modules.state_dict(), parent.modules.state_dict()
    assert set(own) == set(theirs) and all(torch.equal(own[name], tensor) for name, tensor in theirs.items())
    assert (any(name.startswith("router.fusion") for name in own)) == route.startswith("sprint")

    found = micro_batch_losses(parts, 0, 4, 0, Clock(parts.device)).parts["flow"]
    dense = parts.router.whole()
    sparse = build_session(first_stage(route)).router.plan((4, 4), 0, DRAWS)
    x_t, t = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([0.3, 0.7])
    text = parts.text.encode(["a red ball", "a blue ring"])
    planned = parts.router.plan((4, 4), 0, DRAWS)
    with torch.no_grad():
        trained_on, sampled, skipped = (
            parts.denoiser(x_t, t, text, route=one).prediction_BCHW for one in (planned, dense, sparse)
        )
    assert torch.isfinite(found) and torch.equal(trained_on, sampled) and not torch.equal(trained_on, skipped)


@pytest.mark.parametrize("route", ROUTES)
def test_stopped_and_resumed_it_is_the_same_run(route: str, tmp_path: Path) -> None:
    plan = second_stage(route)
    assert train(plan, tmp_path / "whole", Interrupt()).finished
    stop_and_go_on(plan, tmp_path / "stopped", 3)
    whole, stopped = (load_run(tmp_path / name, raw=True)[0].modules.state_dict() for name in ("whole", "stopped"))
    assert all(torch.equal(stopped[name], tensor) for name, tensor in whole.items())


def test_it_is_part_of_the_hash() -> None:
    plan = tiny_plan(techniques=["tread"])
    assert plan.route is not None and "dense" in plan.route.model_dump()
    dense = tiny_plan(techniques=["tread:dense=1"])
    assert diff(plan, dense) == {"route.dense": (False, True)} and plan.hash != dense.hash


def test_a_schedule_beside_it_is_refused() -> None:
    route = "{kind: tread, share: 0.5, first: 2, last: 2, dense: true, schedule: {kind: until, end: 3}}"
    with pytest.raises(UserError, match=r"tread: with dense no token skips at any step, so its schedule does nothing"):
        tiny_plan(f"route={route}")
