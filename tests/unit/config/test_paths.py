"""Relative paths in studies and plans are found beside the file, then in the working directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import TINY
from tests.tiny_vae import write_tiny_vae
from tintype.config.paths import find_beside, locate, locate_assignments, locate_options
from tintype.config.strict import marks_of, settings_in
from tintype.evaluation.protocol import Protocol
from tintype.plan import Plan, read_plan
from tintype.settings import NamesFile, Settings, plain
from tintype.study.folder import claim_folder, stored_study
from tintype.study.settings import StudySettings
from tintype.study.study import load_study
from tintype.techniques import TECHNIQUES


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a study; the working directory is another one."""
    for name in ("here", "study"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "study"


def test_what_lies_beside_the_file_wins(elsewhere: Path) -> None:
    here = Path.cwd()
    for file in (elsewhere / "both", elsewhere / "beside", here / "both", here / "only here"):
        file.touch()
    assert find_beside(elsewhere, "both") == str(elsewhere / "both")
    assert find_beside(elsewhere, "beside") == str(elsewhere / "beside")
    assert find_beside(Path("../study"), "beside") == str(elsewhere / "beside"), "whatever directory comes next"
    for text in ("only here", "nowhere", str(here / "both"), "org/model", ""):
        assert find_beside(elsewhere, text) == text
    assert find_beside(here, "both") == find_beside(Path(), "both") == "both", "runs keep their names"


def test_only_settings_that_name_files_are_found(elsewhere: Path) -> None:
    for name in ("store", "long", "pocket", "short words", "euler"):
        (elsewhere / name).touch()
    found = locate_assignments(["data.path=store", "data={kind: store, path: short words}"], [Plan], elsewhere)
    assert found[0] == f"data.path={elsewhere / 'store'}"
    assert json.loads(found[1].partition("=")[2]) == {"kind": "store", "path": str(elsewhere / "short words")}
    same = ["captions.column=store", "data.where=store", "optimizer.lr=3", "data.path", "run.latents_folder=store"]
    assert locate_assignments(same, [Plan], elsewhere) == tuple(same)
    (elsewhere / "mine.txt").touch()
    also = [{"prompts": "long", "method": "euler"}, {"prompts": "mine.txt"}]
    located = locate({"recipe": "pocket", "evaluation": {"also": also}}, [StudySettings], elsewhere)
    assert located["recipe"] == "pocket" and located["evaluation"]["also"][0] == also[0]
    assert located["evaluation"]["also"][1] == {"prompts": str(elsewhere / "mine.txt")}


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("sft:from=store,lr=1e-4", "sft:from={}/store,lr=1e-4"),
        ("sft:from=arm:store", "sft:from=arm:store"),
        ("sft:from=arm:x,data.path=store", "sft:from=arm:x,data.path={}/store"),
        ("mixture:own=store,add.store.data.path=store", "mixture:own=store,add.store.data.path={}/store"),
        ("tokenizer:to.kind=taef2,to.weights=store", "tokenizer:to.kind=taef2,to.weights={}/store"),
        ("text-encoder:to={kind: t5, weights: store}", 'text-encoder:to={"kind": "t5", "weights": "{}/store"}'),
        ("repa:teacher.kind=vgg16,teacher.weights=store", "repa:teacher.kind=vgg16,teacher.weights={}/store"),
    ],
)
def test_options_of_techniques_are_found(spec: str, found: str, elsewhere: Path) -> None:
    (elsewhere / "store").touch()
    options = TECHNIQUES[spec.partition(":")[0]].options
    assert locate_options(spec, [options], elsewhere) == found.replace("{}", str(elsewhere))


def every_class() -> Iterator[type[Settings]]:
    seen: list[type[Settings]] = [StudySettings, Plan, *(technique.options for technique in TECHNIQUES.values())]
    for one in seen:
        yield one
        inside = [inner for field in one.model_fields.values() for inner in settings_in(field)]
        seen += [inner for inner in inside if inner not in seen]


def test_every_setting_of_this_name_is_looked_for() -> None:
    """A new kind with a `folder` or `weights` is found beside its file too."""
    names = ("path", "folder", "weights", "source", "skip", "from_", "prompts", "recipe")
    fields = [(one, name, field) for one in every_class() for name, field in one.model_fields.items() if name in names]
    texts = [(one, name, field) for one, name, field in fields if field.annotation in (str, str | None)]
    texts = [text for text in texts if text[:2] != (Protocol, "prompts")]  # a kind of caption, never a file
    marked = [field for _, _, field in fields if any(isinstance(mark, NamesFile) for mark in marks_of(field))]
    assert len(marked) > 20 and not [(one, name) for one, name, field in texts if field not in marked]


STUDY = """
question: Does it run from anywhere?
recipe: plans/p.yaml
seeds: [0, 1]
set: [model.patch=4]
arms:
  - techniques: ["tokenizer:to.kind=small-vae,to.folder=vae"]
  - techniques: ["sft:from=base,lr=1e-4"]
evaluation: {also: [{name: mine, prompts: prompts.txt}], encoders: [{kind: clip, source: base}], metrics: [fd]}
primary: [scene_accuracy]
"""


def test_a_study_runs_from_any_directory(elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "plans" / "tok").mkdir(parents=True)
    write_tiny_vae(elsewhere / "vae")
    (elsewhere / "base").mkdir()
    (elsewhere / "prompts.txt").write_text("a ball\n")
    (elsewhere / "plans" / "p.yaml").write_text(TINY + "start: {folder: tok}\n")
    (elsewhere / "s.yaml").write_text(STUDY)
    study = load_study("../study/s.yaml")
    baseline, vae, sft = study.arms
    assert plain(baseline.plans[0])["start"]["folder"] == str(elsewhere / "plans" / "tok"), "beside the plan"
    assert plain(vae.plans[0])["tokenizer"]["folder"] == str(elsewhere / "vae")
    assert plain(sft.plans[0])["start"]["folder"] == str(elsewhere / "base")
    assert [vae.name, sft.name] == ["tokenizer:to.kind=small-vae,to.folder=vae", "sft:from=base,lr=1e-4"]
    assert study.settings.evaluation.also[0].prompts == str(elsewhere / "prompts.txt")
    monkeypatch.chdir(tmp_path)
    assert load_study("study/s.yaml") == study
    (tmp_path / "out").mkdir()
    claim_folder(study, tmp_path / "out")
    monkeypatch.chdir(elsewhere / "plans")
    stored = stored_study(tmp_path / "out")
    assert [[plan.hash for plan in arm.plans] for arm in stored.arms] == [
        [plan.hash for plan in arm.plans] for arm in study.arms
    ]
    assert [arm.name for arm in stored.arms] == [arm.name for arm in study.arms]


def test_overrides_on_the_command_line_are_of_the_working_directory(elsewhere: Path) -> None:
    for folder in (elsewhere, Path.cwd()):
        (folder / "base").mkdir()
    (elsewhere / "p.yaml").write_text(TINY + "start: {folder: base}\n")
    assert plain(read_plan("../study/p.yaml"))["start"]["folder"] == str(elsewhere / "base")
    assert plain(read_plan("../study/p.yaml", ["start.folder=base"]))["start"]["folder"] == "base"
