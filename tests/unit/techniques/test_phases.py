"""The techniques of data phases: what they make of a plan."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.tiny import tiny_plan
from tintype.data.mixture.settings import MixtureSettings, images_before
from tintype.data.scenes.source import ScenesSettings
from tintype.data.store.settings import StoreSettings
from tintype.errors import UserError
from tintype.plan import Plan

STEPS = "train.steps=20"


def counts(plan: Plan) -> dict[str, list[int]]:
    """Number of images of each source in each step."""
    assert isinstance(plan.data, MixtureSettings)
    count_SN = images_before(plan.data.shares, plan.train.batch, plan.train.steps).diff(dim=0)
    return dict(zip(plan.data.read, count_SN.T.tolist(), strict=True))


def phased(options: str = "", *assignments: str) -> Plan:
    return tiny_plan("data.style=photo", STEPS, *assignments, techniques=[f"synthetic-then-real{options}"])


def test_a_sudden_change_is_at_one_step() -> None:
    plan = phased()
    assert counts(plan) == {"real": [0] * 10 + [4] * 10, "synthetic": [4] * 10 + [0] * 10}
    data = plan.data
    assert isinstance(data, MixtureSettings) and data.evaluate == "real"
    first, second = data.sources["synthetic"].data, data.sources["real"].data
    assert (
        isinstance(first, ScenesSettings) and first.style == "render" and second == tiny_plan("data.style=photo").data
    )
    assert first.model_copy(update={"style": "photo"}) == second, "by default as in the plan's own data"


def test_a_slow_change_is_a_line_and_leaves_the_rest() -> None:
    found = counts(phased(":at=0.25,over=0.5,rest=0.25"))
    assert found["synthetic"][:5] == [4] * 5 and found["synthetic"][15:] == [1] * 5
    assert sum(found["synthetic"][5:15]) in (23, 24), "23.5 of them"
    middle = found["synthetic"][5:15]
    assert max(later - sooner for sooner, later in pairwise(middle)) <= 1


@pytest.mark.parametrize(
    ("options", "assignments", "message"),
    [
        (":at=0.8,over=0.3", [], "would end after the training"),
        ("", ["data.style=render"], "both sources are the plan's own data"),
        (":first.stile=render", [], r"synthetic-then-real': first: stile: unknown key; did you mean 'style'"),
        (":first.kind=stores", [], "unknown kind of data 'stores'; did you mean 'store'"),
        (":first.size_px=32", [], "its size_px is 32 and the mixture's is 16"),
    ],
)
def test_phases_that_cannot_be_are_refused(options: str, assignments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        phased(options, *assignments)


def test_a_mixture_adds_sources_to_the_plans_own() -> None:
    one = "mixture:own=real,share=3,add.other.data.style=photo,add.other.data.count=7"
    plan = tiny_plan(STEPS, techniques=[one])
    assert counts(plan) == {"other": [1] * 20, "real": [3] * 20}
    assert isinstance(plan.data, MixtureSettings) and plan.data.scored == tiny_plan().data
    again = tiny_plan(
        *(f"data.{key}" for key in ("kind=mixture", "sources.a.share=1")), techniques=["mixture:add.b.data.style=photo"]
    )
    assert isinstance(again.data, MixtureSettings) and (list(again.data.sources), again.data.evaluate) == (
        ["a", "b"],
        "a",
    )


@pytest.mark.parametrize(
    ("technique", "message"),
    [
        ("mixture", "add: this key is required"),
        ("mixture:add.own.share=1", r"add\.own: the data already has a source with this name"),
        ("mixture:add.b.share=0", r"sources\.b: its share is 0, so it is never read"),
        ("mixture:share=0,add.b.share=0", "the shares of all sources are 0"),
        ("mixture:add.b.data.kind=store", "path: this key is required"),
        ("mixture:add.b.schedule.kind=until,add.b.schedule.start=8,add.b.schedule.end=9", r"sources\.b is never read"),
        ("mixture:add.b.data.kind=mixture,add.b.data.sources.c.share=1", r"add\.b\.data: a source of a mixture cannot"),
        ("sft:from=base,data.style=[photo]", "data: style: must be 'render', .* .found .'photo'"),
        ("sft", "from: this key is required"),
        ("sft:form=x", "unknown key; did you mean 'from'"),
        ("sft:from=arm:x,sha256=0123456789abcdef", "sha256 applies only to a run's folder"),
    ],
)
def test_options_that_cannot_be_are_refused(technique: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_plan(techniques=[technique])


def test_a_stage_has_its_own_rate_steps_and_data() -> None:
    plan = tiny_plan(techniques=["sft:from=base,steps=3,lr=5e-4,warmup_steps=1,data.count=5"])
    assert plan.start is not None and plan.start.model_dump()["folder"] == "base"
    assert (plan.train.steps, plan.train.warmup_steps, plan.optimizer.model_dump()["lr"]) == (3, 1, 5e-4)
    assert plan.data == tiny_plan("data.count=5").data
    assert tiny_plan(techniques=["sft:from=base"]).optimizer.model_dump()["lr"] == pytest.approx(1e-4)
    both = tiny_plan(techniques=["muon:lr=0.02", "sft:from=base,lr=0.01"]).optimizer.model_dump()
    assert (both["lr"], both["adamw"]["lr"]) == (0.01, pytest.approx(5e-4)), "the ratio of the two stays"


def test_a_stages_data_may_have_lists_and_another_source() -> None:
    store = "data={kind: store, path: mine, size_px: 16, sha256: aaaaaaaa}"
    data = tiny_plan(store, techniques=["sft:from=base,data.buckets=[[16,16],[8,16]],data.limit=5"]).data
    assert data == tiny_plan(store, "data.buckets=[[16,16],[8,16]]", "data.limit=5").data
    mixed = (
        "data.kind=mixture",
        "data.sources.b.share=2",
        "data.sources.b.data.style=photo",
        f"data.sources.a.{store}",
    )
    data = tiny_plan(*mixed, techniques=["sft:from=base,data.sources.b.share=3,data.sources.a.data.path=other"]).data
    moved = "data.sources.a.data={kind: store, path: other}"
    assert data == tiny_plan(*mixed, "data.sources.b.share=3", moved).data, "without the pin of the other path"


def test_a_pin_stays_with_the_place_that_it_is_of() -> None:
    own = "data={kind: store, path: mine, size_px: 16, sha256: aaaaaaaa, skip: a.txt, skip_sha256: bbbbbbbb}"

    def added(options: str) -> StoreSettings:
        data = tiny_plan(own, techniques=[f"mixture:{options}"]).data
        assert isinstance(data, MixtureSettings)
        found = data.sources["more"].data
        assert isinstance(found, StoreSettings)
        return found

    other = added("add.more.data.path=other")
    assert (other.sha256, other.skip, other.skip_sha256) == (None, "a.txt", "bbbbbbbb")
    pinned = added("add.more.data.path=other,add.more.data.sha256=cccccccc,add.more.data.skip=b.txt")
    assert (pinned.sha256, pinned.skip_sha256) == ("cccccccc", None)
    part = added("add.more.data.where=contains(long, 'red'),add.more.data.limit=5")
    assert (part.sha256, part.where, part.limit) == ("aaaaaaaa", "contains(long, 'red')", 5)
