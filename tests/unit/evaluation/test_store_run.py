"""Training and scoring on a store: what a protocol needs of it, and what it has no meaning for."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.edit_checked import edit_text
from tests.shared import shared
from tests.tiny import tiny_plan
from tests.tiny_clip import write_clip
from tests.tiny_store import image_file, imported, parquet_of, tiny_store
from tintype.cli import app
from tintype.config.strict import parse, read_yaml
from tintype.data.mixture.settings import MixedSource, MixtureSettings
from tintype.data.mixture.source import identities
from tintype.data.scenes.source import ScenesSettings
from tintype.data.sources import forget_sources, open_source
from tintype.data.store.changes import add_column
from tintype.data.store.encode import Sizing
from tintype.data.store.importing import ImportOptions
from tintype.data.store.layout import open_store
from tintype.errors import UserError
from tintype.evaluation.fit import readiness_problems, refuse
from tintype.evaluation.protocol import Protocol, definitions
from tintype.evaluation.reference import ScoredData, data_fingerprint, held_out
from tintype.evaluation.run import evaluate
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.plan import Plan, plan_from_document
from tintype.recipes import packaged
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.sampling.sample import sample_run
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.record import RunRecord

PROTOCOL = """
count: 10
reference_count: 12
validation_count: 4
encoders: [{kind: clip, source: CLIP}]
metrics: [fd, recall]
sampler: {steps: 2, batch: 8}
also: [{name: short, prompts: short, count: 8, distances: false}]
"""


@dataclass(frozen=True)
class Trained:
    folder: Path
    store: Path
    clip: Path

    def protocol(self, more: str = "") -> Protocol:
        data = read_yaml(PROTOCOL.replace("CLIP", str(self.clip)), "protocol").data | (
            read_yaml(more, "more").data or {}
        )
        return parse(Protocol, read_yaml(json.dumps(data), "protocol"))


def plan_of(store: Path, *more: str) -> Plan:
    return tiny_plan("data.kind=store", f"data.path={store}", *more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("on-store")
    store = tiny_store(folder)
    train(plan_of(store), folder / "run", Interrupt())
    return Trained(folder, store, write_clip(folder / "clip"))


def check_ready(protocol: Protocol, plan: Plan) -> None:
    refuse(readiness_problems(protocol, [plan.data], torch.device("cpu")))


def test_a_run_on_a_store_is_scored_without_what_only_scenes_have(trained: Trained) -> None:
    protocol = trained.protocol()
    result = evaluate(trained.folder / "run", protocol)
    assert set(result.metrics) == set(definitions(protocol, of_scenes=False))
    assert {"fd_clip", "validation_loss", "clip_score_clip_short"} <= set(result.metrics)
    assert not any("scene" in name for name in (*result.metrics, *result.details, *result.real))
    assert RunRecord(trained.folder / "run").identities == {"data": open_store(trained.store).identity}


def test_the_reference_is_that_of_the_content(trained: Trained, tmp_path: Path) -> None:
    """The same store elsewhere reads the same features; another never does."""
    copy = shutil.copytree(trained.store, tmp_path / "copy")
    other = tiny_store(tmp_path, 61, "other")
    protocol = trained.protocol()
    found = []
    for store in (trained.store, copy, other):
        data = plan_of(store, "data.limit=7" if store is copy else "data.limit=null").data
        found.append(data_fingerprint(data, held_out(ScoredData(data), protocol)))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("encoders: [scenes]", "'scenes' was trained on the embedded scenes.* inception .* and vgg16"),
        (
            "reference_count: 40",
            r"reference_count=40: the store holds out 2\d images; take no more.* --eval-share",
        ),
        ("validation_count: 99\ncount: 98", "count=98, validation_count=99: the store holds out"),
        ("also: [{name: many, prompts: short, count: 97}]", r"also \(many\): count=97: the store holds out"),
    ],
)
def test_a_protocol_that_does_not_fit_is_refused_before_training(trained: Trained, more: str, message: str) -> None:
    protocol = trained.protocol(more)
    with pytest.raises(UserError, match=message):
        check_ready(protocol, plan_of(trained.store))
    with pytest.raises(UserError, match=message):
        evaluate(trained.folder / "run", protocol)
    check_ready(trained.protocol(), plan_of(trained.store))


def test_captions_that_the_store_has_not_are_named_with_those_that_it_has(trained: Trained, tmp_path: Path) -> None:
    images = [image_file(index) for index in range(40)]
    source = parquet_of(tmp_path / "a.parquet", images, words=["x"] * 40, title=["y"] * 40)
    imported(source, tmp_path / "s", ImportOptions(captions={"long": "words", "title": "title"}, eval_share=0.5))
    with pytest.raises(
        UserError, match=r"captions called 'short' are read, and the store has long, title; .*short=COLUMN"
    ):
        check_ready(trained.protocol(), plan_of(tmp_path / "s"))
    check_ready(trained.protocol("also: []"), plan_of(tmp_path / "s"))
    with pytest.raises(UserError, match="no caption column 'short'; its caption columns are long, title"):
        train(plan_of(tmp_path / "s", "captions.column=short"), tmp_path / "run", Interrupt())


@pytest.mark.parametrize("mixed", [False, True])
def test_captions_that_were_added_since_change_nothing(tmp_path: Path, trained: Trained, mixed: bool) -> None:
    store = Path(shutil.copytree(trained.store, tmp_path / "store"))
    add_column(store, "vlm", ["first"] * len(open_store(store)), {})
    plan = plan_of(store, "data.where=height > 3")
    if mixed:
        sources = {"a": MixedSource(data=plan.data), "b": MixedSource(data=ScenesSettings(size_px=plan.data.size_px))}
        data = MixtureSettings(size_px=plan.data.size_px, sources=sources, evaluate="a")
        plan = plan.model_copy(update={"data": data})
    stop_at(plan, tmp_path / "run", 3)
    noted = (tmp_path / "run" / "loaded.json").read_text()
    add_column(store, "later", ["second"] * len(open_store(store)), {})
    forget_sources()
    run = tmp_path / "run"
    for name, identity in identities(open_source(plan.data, "train", torch.device("cpu"))).items():
        assert identity is None or identity not in noted
        RunRecord(run).check_identity(name, identity)
    assert train(plan, tmp_path / "run", Interrupt()).finished
    assert (tmp_path / "run" / "loaded.json").read_text() == noted
    add_column(store, "vlm", ["other"] * len(open_store(store)), {})
    forget_sources()
    with pytest.raises(UserError, match="identity of 'data'"):
        RunRecord(run).check_identity("data", open_source(plan.data, "train", torch.device("cpu")).identity)


def stop_at(plan: Plan, folder: Path, step: int) -> None:
    interrupt = Interrupt()

    def stop(progress: object) -> None:
        if getattr(progress, "step", 0) == step:
            interrupt.signal = 2

    assert not train(plan, folder, interrupt, stop).finished


def test_another_store_in_the_same_place_is_refused(trained: Trained, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(trained.store, store)
    plan = plan_of(store)
    stop_at(plan, tmp_path / "run", 3)
    shutil.rmtree(store)
    tiny_store(tmp_path, 61)
    forget_sources()
    with pytest.raises(UserError, match=r"identity of 'data' .*put the first one back"):
        train(plan, tmp_path / "run", Interrupt())
    with pytest.raises(UserError, match="identity of 'data'"):
        evaluate(tmp_path / "run", trained.protocol())
    unbiased = SamplerSettings(steps=1, guidance=ClassifierFreeSettings(unbias=True))
    with pytest.raises(UserError, match="identity of 'data'"):
        sample_run(tmp_path / "run", ["a dog"], None, tmp_path / "samples", unbiased, count=1, seed=0, size_px=None)
    shutil.rmtree(store)
    shutil.copytree(trained.store, store)
    forget_sources()
    assert train(plan, tmp_path / "run", Interrupt()).finished


def test_a_run_is_sampled_where_its_store_is_not(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.folder / "run", tmp_path / "run")
    plan = tmp_path / "run" / "plan.yaml"
    edit_text(plan, str(trained.store), str(tmp_path / "nowhere"))
    parts, step = load_run(tmp_path / "run")
    assert step == 6
    with pytest.raises(UserError, match="nowhere is not a store"):
        len(parts.source)


def test_pocket_trains_on_real_photographs(trained: Trained, tmp_path: Path) -> None:
    options = ImportOptions(split_column="split", splits={"extra": "train"}, limit=160, sizing=Sizing(short_px=64))
    about = imported(shared("data/photos.parquet"), tmp_path / "photos", options)
    assert about.counts["train"] > 100 and about.counts["eval"] > 12
    overrides = ["data.kind=store", f"data.path={tmp_path / 'photos'}", "data.size_px=32", "train.steps=4"]
    plan = plan_from_document(packaged.find("plans", "pocket"), [*overrides, "train.batch=8", "run.device=cpu"])
    assert train(plan, tmp_path / "run", Interrupt()).finished
    result = evaluate(tmp_path / "run", trained.protocol())
    assert math.isfinite(result.metrics["fd_clip"]) and math.isfinite(result.metrics["validation_loss"])


def test_options_that_contradict_are_refused(tmp_path: Path) -> None:
    command = ["data", "import", str(tmp_path), "--out", str(tmp_path / "out")]
    for more, message in (
        (["--split-column", "a", "--eval-share", "0.2"], "give one of them"),
        (["--split", "a=train"], "give --split-column too"),
    ):
        refused = CliRunner().invoke(app, [*command, *more])
        assert isinstance(refused.exception, UserError) and message in str(refused.exception)
