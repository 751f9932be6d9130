"""A run learns from one set of images and is scored against the held-out images of another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_plan
from tests.tiny_store import image_file, imported, parquet_of
from tintype.data.sources import forget_sources, open_held_out, open_source
from tintype.data.store.importing import ImportOptions
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import ScoredData, held_out
from tintype.evaluation.run import evaluate
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.study.study import load_study
from tintype.techniques.apply import apply_techniques
from tintype.train.loop import train

CPU = torch.device("cpu")
SHOTS = 24


def store(folder: Path, first: int, size: tuple[int, int] = (24, 20), eval_share: float = 0.5) -> str:
    """Write a store whose captions say which images it has."""
    folder.mkdir()
    numbers = range(first, first + SHOTS)
    images = [image_file(number, size) for number in numbers]
    table = parquet_of(folder / "a.parquet", images, caption=[f"number {number}" for number in numbers])
    imported(table, folder / "store", ImportOptions(captions={"long": "caption"}, eval_share=eval_share))
    return str(folder / "store")


def two_stores(tmp_path: Path) -> tuple[str, str]:
    forget_sources()
    return store(tmp_path / "synthetic", 0, eval_share=0), store(tmp_path / "photos", 100)


def of_stores(learnt: str, scored: str, *more: str) -> Plan:
    return tiny_plan(
        *("data.kind=store", f"data.path={learnt}", "data.size_px=16", f"data.evaluate_path={scored}"),
        *("train.steps=2", "train.batch=2", *more),
    )


def test_a_run_learns_from_one_store_and_is_scored_against_the_other(tmp_path: Path) -> None:
    plan = of_stores(*two_stores(tmp_path), "data.limit=3")
    assert train(plan, tmp_path / "run", Interrupt()).finished
    learnt = open_source(plan.data, "train", CPU)
    assert {record.captions["long"] for record in learnt.records(range(3))} <= {f"number {n}" for n in range(SHOTS)}
    protocol = Protocol(count=2, also=(), reference_count=8, validation_count=2, encoders=(), metrics=())
    scored = held_out(ScoredData(plan.data), protocol)
    assert all(int(record.captions["long"].split()[1]) >= 100 for record in scored.records(range(len(scored))))
    assert evaluate(tmp_path / "run", protocol).metrics["validation_loss"] is not None
    known = json.loads((tmp_path / "run" / "loaded.json").read_text())
    assert known["data/evaluate"] == scored.identity != known["data"]


def test_a_mixture_records_the_store_that_its_source_is_scored_against(tmp_path: Path) -> None:
    learnt, scored = two_stores(tmp_path)
    plan = apply_techniques(
        of_stores(learnt, scored), ["mixture:own=own,add.more.data.style=photo,add.more.data.kind=scenes"]
    )
    train(plan, tmp_path / "run", Interrupt())
    known = json.loads((tmp_path / "run" / "loaded.json").read_text())
    assert known["data/own/evaluate"] == open_held_out(plan.data, 1, CPU).identity != known["data/own"]


def test_a_run_is_not_scored_against_another_store_in_that_place(tmp_path: Path) -> None:
    plan = of_stores(*two_stores(tmp_path))
    train(plan, tmp_path / "run", Interrupt())
    (tmp_path / "photos").rename(tmp_path / "away")
    store(tmp_path / "photos", 200)
    forget_sources()
    protocol = Protocol(count=2, also=(), reference_count=8, validation_count=2, encoders=(), metrics=())
    with pytest.raises(UserError, match="identity of 'data/evaluate'"):
        evaluate(tmp_path / "run", protocol)


def test_it_is_in_the_hash_by_its_path_or_by_its_content(tmp_path: Path) -> None:
    learnt, scored = two_stores(tmp_path)
    without = tiny_plan("data.kind=store", f"data.path={learnt}", "data.size_px=16", "train.steps=2", "train.batch=2")
    plan = of_stores(learnt, scored)
    assert plan.hash != without.hash
    assert plan.data.content() == without.data.content(), "training images and their caches are the same"
    pin = f"data.evaluate_sha256='{open_held_out(plan.data, 1, CPU).identity}'"
    assert of_stores(learnt, scored, pin).hash == of_stores(learnt, "elsewhere", pin).hash != plan.hash


def test_what_is_wrong_with_it_names_it(tmp_path: Path) -> None:
    learnt, scored = two_stores(tmp_path)
    small = store(tmp_path / "small", 300, (16, 12))
    for plan, words in (
        (of_stores(learnt, str(tmp_path / "none")), "data.evaluate_path: .*none"),
        (of_stores(learnt, scored, "data.evaluate_sha256='00000000'"), "data.evaluate_path: data.evaluate_sha256"),
        (of_stores(learnt, small), "data.evaluate_path: .*never enlarged; use a smaller size, or .* --min-px 16`"),
    ):
        with pytest.raises(UserError, match=words):
            open_held_out(plan.data, 1, CPU)
    with pytest.raises(UserError, match=r"evaluate_sha256 pins the store.*give evaluate_path too"):
        tiny_plan("data.kind=store", f"data.path={learnt}", "data.evaluate_sha256='00000000'")


def test_scenes_of_one_style_can_be_scored_against_another() -> None:
    plan = tiny_plan("data.style=render", "data.evaluate_style=photo")
    found = open_held_out(plan.data, 4, CPU).images(range(4))
    assert torch.equal(found, open_held_out(tiny_plan("data.style=photo").data, 4, CPU).images(range(4)))
    assert not torch.equal(found, open_held_out(tiny_plan("data.style=render").data, 4, CPU).images(range(4)))
    learnt, usual = (open_source(one.data, "train", CPU) for one in (plan, tiny_plan("data.style=render")))
    assert torch.equal(learnt.images(range(4)), usual.images(range(4)))
    assert plan.data.content() == tiny_plan("data.style=render").data.content()


STUDY = """question: q
recipe: pocket
set: [SET]
seeds: [0]
arms:
  - {name: real, techniques: ["other-images:data.style=photo,store=photos"]}
  - {name: curated, techniques: ["sft:from=arm:baseline,data.count=8,store=curated"]}
  - {name: both, techniques: ["synthetic-then-real:second.style=photo,first.seed=1,store=photos"]}
"""


def test_arms_of_a_study_learn_from_other_images_and_are_scored_alike(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY.replace("SET", "data.evaluate_style=photo"))
    held = {arm.plans[0].data.held_out(8) for arm in load_study(str(file)).arms}
    assert len(held) == 1
    file.write_text(STUDY.replace("SET", "data.style=both"))
    with pytest.raises(
        UserError, match=r"other held-out images than the baseline.*set data\.evaluate_style in the baseline"
    ):
        load_study(str(file))


def test_on_stores_the_same_arms_take_stores_by_their_folders(tmp_path: Path) -> None:
    """None of them need be there before it is trained on."""
    file = tmp_path / "study.yaml"
    own = "data.kind=store, data.path=renders, data.limit=5, data.evaluate_path=unsplash"
    file.write_text(STUDY.replace("SET", own))
    _, *arms = load_study(str(file), ["evaluation.encoders=[]"]).arms
    assert [arm.plans[0].data.model_dump().get("path") for arm in arms] == ["photos", "curated", None]
    both = arms[2].plans[0].data.model_dump()["sources"]
    assert [both[name]["data"]["path"] for name in ("synthetic", "real")] == ["renders", "photos"]
    assert {str(arm.plans[0].data.held_out(8)) for arm in arms} == {str(arms[0].plans[0].data.held_out(8))}
    assert arms[0].plans[0].data.model_dump()["limit"] is None
    shapes = "data.size_px=32, 'data.buckets=[[32,32],[24,40],[40,24]]', model.patch=4"
    file.write_text(STUDY.partition("  - {name: both")[0].replace("SET", f"{own}, {shapes}"))
    shaped = load_study(str(file), ["evaluation.encoders=[]"]).arms
    assert {len(arm.plans[0].data.shapes) for arm in shaped} == {3}, "shapes stay"
