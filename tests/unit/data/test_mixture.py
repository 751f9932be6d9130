"""Mixtures: exact shares, each source's own epochs, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks import run_ranks
from tests.tiny import tiny_plan
from tests.tiny_store import captioned, imported, tiny_store
from tests.tiny_vae import write_tiny_vae
from tintype.bench.run import at_size
from tintype.data.mixture.settings import MixtureSettings, images_before
from tintype.data.mixture.source import Mixed, MixtureSource
from tintype.data.sources import open_source
from tintype.data.store.importing import ImportOptions
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import ScoredData, data_fingerprint, held_out
from tintype.evaluation.run import evaluate
from tintype.plan import Plan, diff, plan_from_yaml
from tintype.runtime.files import read_json
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import build_session, check_columns

CPU = torch.device("cpu")
MIXTURE = ("data.kind=mixture", "data.sources.b.data.style=photo", "data.sources.b.data.count=7")
TWO = (*MIXTURE, "data.sources.a.data.count=11", "data.sources.a.share=3")


def mixture(**sources: dict[str, Any]) -> MixtureSettings:
    return MixtureSettings.model_validate({"size_px": 16, "sources": sources})


def ramp(kind: str, start: int, end: int) -> dict[str, Any]:
    return {"kind": kind, "start": start, "end": end}


SHARES = {
    "thirds": mixture(a={"share": 1.0}, b={"share": 2.0}),
    "five": mixture(
        **{name: {"share": share} for name, share in zip("abcde", (0.1, 3.0, 0.7, 0.01, 2.0), strict=True)}
    ),
    "crossing": mixture(
        a={"schedule": ramp("fall", 20, 60), "rest": 0.1}, b={"share": 0.9, "schedule": ramp("ramp", 20, 60)}
    ),
    "three phases": mixture(
        a={"schedule": ramp("until", 0, 30)},
        b={"schedule": ramp("until", 10, 70)},
        c={"schedule": ramp("ramp", 50, 90)},
    ),
}


@pytest.mark.parametrize("batch", [1, 5, 16])
@pytest.mark.parametrize("name", SHARES)
def test_counts_follow_the_shares_to_rounding_at_every_step(name: str, batch: int) -> None:
    data, steps = SHARES[name], 100
    before_SN = images_before(data.shares, batch, steps)
    count_SN = before_SN.diff(dim=0)
    weight_SN = torch.tensor(
        [[one.share_at(step) for one in data.shares] for step in range(steps)], dtype=torch.float64
    )
    share_SN = weight_SN / weight_SN.sum(1, keepdim=True)
    assert (count_SN >= 0).all() and (count_SN.sum(1) == batch).all()
    assert (count_SN[share_SN == 0] == 0).all() and (count_SN[share_SN == 1] == batch).all()
    error = (before_SN[1:] - batch * share_SN.cumsum(0)).abs().max()
    assert error <= (0.5 + 1e-6 if len(data.read) == 2 else len(data.read) / 2)
    assert torch.equal(images_before(data.shares, batch, 40), before_SN[:41]), "a longer run begins alike"


def order(data: MixtureSettings, sizes: dict[str, int], batch: int = 5, steps: int = 40, seed: int = 0) -> Mixed:
    return Mixed(seed, data, batch, steps, sizes)


@pytest.mark.parametrize("name", SHARES)
def test_each_source_gives_every_image_once_in_each_of_its_own_epochs(name: str) -> None:
    data = SHARES[name]
    sizes = {one: 3 + 4 * index for index, one in enumerate(data.read)}
    ids = order(data, sizes, steps=100).ids(0, 500)
    first = 0
    for one in data.read:
        own = [id_ - first for id_ in ids if first <= id_ < first + sizes[one]]
        for begin in range(0, len(own) - sizes[one] + 1, sizes[one]):
            assert sorted(own[begin : begin + sizes[one]]) == list(range(sizes[one]))
        assert own
        first += sizes[one]


def test_any_cut_gives_the_same_and_seeds_differ() -> None:
    one = order(SHARES["crossing"], {"a": 9, "b": 20})
    whole = one.ids(0, 300)  # behind the training's end too, where the last shares stay
    for size in (1, 3, 5, 64):
        assert [id_ for first in range(0, 300, size) for id_ in one.ids(first, min(size, 300 - first))] == whole
    other = order(SHARES["crossing"], {"a": 9, "b": 20}, seed=1).ids(0, 300)
    assert sum(a == b for a, b in zip(whole, other, strict=True)) < 60
    places = [[place for place in range(5) if whole[step * 5 + place] < 9] for step in range(25, 40)]
    assert len(set(map(tuple, places))) > 3, "the sources' places in a batch change"


def test_how_the_sources_are_written_changes_nothing() -> None:
    turned = MixtureSettings(sources=dict(reversed(SHARES["five"].sources.items())), size_px=16, evaluate="e")
    plans = [tiny_plan().model_copy(update={"data": data}) for data in (SHARES["five"], turned)]
    assert plans[0].hash == plans[1].hash
    sizes = dict.fromkeys("abcde", 6)
    assert order(plans[0].data, sizes).ids(0, 90) == order(plans[1].data, sizes).ids(0, 90)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [0, 50, 120])
def test_what_is_made_ready_is_what_training_asks_for(first: int) -> None:
    one = order(SHARES["crossing"], {"a": 9, "b": 200})
    chunks = list(one.once(first, 200, 16))
    ids = [id_ for chunk in chunks for id_ in chunk]
    assert set(ids) == set(one.ids(first, 200 - first)) and max(map(len, chunks)) <= 16
    assert max(Counter(ids).values()) == 1, "where an epoch is whole, or only one is begun"


def test_it_is_one_source_of_all_its_images() -> None:
    parts = build_session(tiny_plan(*TWO))
    assert isinstance(parts.source, MixtureSource) and len(parts.source) == 18
    ids = [17, 0, 11, 10, 0]
    alone = parts.source.parts
    images, records = parts.source.images(ids), parts.source.records(ids)
    for place, (name, own) in enumerate([("b", 6), ("a", 0), ("b", 0), ("a", 10), ("a", 0)]):
        assert torch.equal(images[place], alone[name].images([own])[0])
        assert records[place] == alone[name].records([own])[0]
    assert parts.source.identity is None


def test_a_plan_of_a_mixture_says_its_size_once_and_comes_back() -> None:
    plan = tiny_plan(*TWO)
    assert plan_from_yaml(plan.to_yaml(), "again") == plan and plan.to_yaml().count("size_px") == 1
    assert {one.data.size_px for one in tiny_plan(*TWO, "data.size_px=32").data.shares} == {32}  # type: ignore[attr-defined]
    assert tiny_plan(*TWO, "data.sources.b.share=2").hash != plan.hash
    changes = diff(tiny_plan(), plan)
    assert str(changes["data.sources.a"][1]).startswith("share 3 of scenes (count 11") and len(changes) == 4
    assert diff(plan, tiny_plan(*TWO, "data.sources.b.share=2")) == {"data.sources.b.share": (1.0, 2.0)}


def test_a_bench_takes_few_images_of_each_source_at_its_size() -> None:
    plan = at_size(tiny_plan(*TWO), 64, batch=8)
    assert isinstance(plan.data, MixtureSettings) and plan.data.size_px == 32
    assert {name: one.data.model_dump()["count"] for name, one in plan.data.sources.items()} == {"a": 8, "b": 7}


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["data.sources.a.share=0", "data.sources.b.share=0"], "shares of all sources are 0"),
        (["data.sources.a.share=0"], r"sources\.a: its share is 0, so it is never read"),
        (["data.evaluate=c"], "there is no source 'c'; there are b, a"),
        (["data.sources.b.data.size_px=32"], r"sources\.b: its size_px is 32 and the mixture's is 16"),
        (["data.sources.a.rest=0.1"], "a constant schedule has no such step"),
        (["data.sources.a.share=-1"], "must be at least 0"),
        (["data.sources.a.data.kind=mixture"], "unknown kind 'mixture'"),
        (
            ["data.sources.a.schedule.kind=ramp", "data.sources.a.schedule.start=6", "data.sources.a.schedule.end=7"],
            r"data\.sources\.a is never read in 6 steps of 4 images \(share 3, schedule 'ramp'\)",
        ),
        (
            [f"data.sources.{name}.schedule.{key}" for name in "ab" for key in ("kind=until", "start=0", "end=4")],
            "at step 4 the shares of all sources are 0",
        ),
    ],
)
def test_what_cannot_be_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_plan(*TWO, "data.evaluate=b", *assignments)


def test_a_source_without_a_share_may_be_what_is_scored_against() -> None:
    plan = tiny_plan(*TWO, "data.evaluate=b", "data.sources.b.share=0")
    parts = build_session(plan)
    assert len(parts.source) == 11 and set(parts.order.ids(0, 44)) == set(range(11))
    assert plan.data.scored.style == "photo"  # type: ignore[attr-defined]


def test_stores_and_scenes_mix_and_are_known_by_their_content(tmp_path: Path) -> None:
    images = tiny_store(tmp_path)
    plan = tiny_plan(*MIXTURE, "data.sources.mine.data.kind=store", f"data.sources.mine.data.path={images}")
    assert plan_from_yaml(plan.to_yaml(), "a file") == plan
    with pytest.raises(UserError, match="a mixture has images of one shape; leave buckets out"):
        plan_from_yaml(plan.to_yaml(), "a file", ["data.sources.mine.data.buckets=[[16, 16], [8, 16]]"])
    source = open_source(plan.data, "train", CPU)
    identity = source.identity
    assert identity is not None and not plan.data.of_scenes
    (tmp_path / "store").rename(tmp_path / "moved")
    pin = f"data.sources.mine.data.sha256={open_source(plan.data, 'train', CPU).parts['mine'].identity}"  # type: ignore[attr-defined]
    pinned = tiny_plan(*MIXTURE, "data.sources.mine.data.kind=store", pin, "data.sources.mine.data.path=elsewhere")
    moved = tiny_plan(
        *MIXTURE, "data.sources.mine.data.kind=store", pin, f"data.sources.mine.data.path={tmp_path}/moved"
    )
    assert pinned.hash == moved.hash != plan.hash
    assert not pinned.data.at_hand and moved.data.at_hand
    assert open_source(moved.data, "train", CPU).identity == identity
    train(moved, tmp_path / "run", Interrupt())
    loaded = read_json(tmp_path / "run" / "loaded.json")
    assert loaded["data"] == identity
    assert loaded[moved.data.scored_name] == open_source(moved.data.held_out(1), "eval", CPU).identity


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sources.mine.data.where=widht > 3", r"^data\.sources\.mine\.data\.where, character 1: "),
        ("sources.mine.data.where=width > 300", r"^data\.sources\.mine: .* data\.sources\.mine\.data\.where excludes"),
        ("sources.mine.data.path=/no/data.where", r"^data\.sources\.mine: /no/data\.where is not a store"),
        ("sources.mine.data.sha256=0000000a", r"^data\.sources\.mine\.data\.sha256 records another identity"),
        ("size_px=32", r"^data\.sources\.mine: .* than data\.size_px=32 .*: data\.sources\.mine\.data\.where='min"),
    ],
)
def test_what_is_wrong_with_a_source_names_the_source(tmp_path: Path, setting: str, message: str) -> None:
    mine = ("data.sources.mine.data.kind=store", f"data.sources.mine.data.path={tiny_store(tmp_path)}")
    data = tiny_plan(*MIXTURE, "data.evaluate=mine", *mine, f"data.{setting}").data
    with pytest.raises(UserError, match=message):
        open_source(data, "train", CPU)
    with pytest.raises(UserError, match=message):
        held_out(ScoredData(data), Protocol(count=8, also=(), reference_count=8))


def test_every_source_must_have_the_captions(tmp_path: Path) -> None:
    imported(captioned(tmp_path / "p.parquet", 40), tmp_path / "s", ImportOptions(captions={"other": "caption_long"}))
    plan = tiny_plan(*MIXTURE, "data.sources.mine.data.kind=store", f"data.sources.mine.data.path={tmp_path / 's'}")
    with pytest.raises(
        UserError, match="the source 'mine' has no caption column 'long'; its caption columns are other"
    ):
        check_columns(plan, open_source(plan.data, "train", CPU))


def test_cached_latents_change_nothing_and_serve_all_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINTYPE_CACHE", str(tmp_path / "cache"))
    vae = write_tiny_vae(tmp_path / "vae")
    latents = (*TWO, f'tokenizer={{"kind":"small-vae","folder":"{vae}"}}', "model.patch=1")
    train(tiny_plan(*latents), tmp_path / "without", Interrupt())
    train(tiny_plan(*latents, "run.latents=disk"), tmp_path / "with", Interrupt())
    without, kept = ([line["loss"] for line in RunRecord(tmp_path / name).lines] for name in ("without", "with"))
    assert without == kept
    train(tiny_plan(*latents, "run.latents=disk", "data.sources.a.share=1"), tmp_path / "other", Interrupt())
    assert len(list((tmp_path / "cache" / "latents").iterdir())) == 1


def _losses(plan: Plan, folder: Path) -> list[float]:
    train(plan, folder, Interrupt())
    return [line["loss"] for line in RunRecord(folder).lines]


def test_ranks_and_micro_batches_see_the_same_images(tmp_path: Path) -> None:
    plan = tiny_plan(*TWO)
    alone = _losses(plan, tmp_path / "alone")
    assert _losses(tiny_plan(*TWO, "train.accumulate=2"), tmp_path / "halves") == pytest.approx(alone, rel=1e-5)
    run_ranks(2, _losses, plan, tmp_path / "ranks")
    assert [line["loss"] for line in RunRecord(tmp_path / "ranks").lines] == pytest.approx(alone, rel=1e-5)


def test_a_run_is_scored_against_the_held_out_images_of_one_source(tmp_path: Path) -> None:
    protocol = Protocol(count=8, also=(), reference_count=8, validation_count=2, sampler=SamplerSettings(steps=1))
    plan, photos = tiny_plan(*TWO, "data.evaluate=b"), tiny_plan("data.style=photo", "data.max_objects=4").data
    assert plan.data.of_scenes
    source = held_out(ScoredData(plan.data), protocol)
    assert torch.equal(source.images(range(8)), held_out(ScoredData(photos), protocol).images(range(8)))
    assert data_fingerprint(plan.data.scored, source) == data_fingerprint(photos, source)
    train(plan, tmp_path / "run", Interrupt())
    assert {"scene_accuracy", "fd_scenes"} <= set(evaluate(tmp_path / "run", protocol).metrics)
