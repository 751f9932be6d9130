"""No setting is ignored: a misspelt one is refused, an arm changes something, and each one is read when it is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict

import tintype
from tests.fault.promises import Promise
from tests.offline import NAMES, refused_by_the_device, with_technique
from tests.plan_fields import document, fields
from tests.tiny import TINY, tiny_plan
from tintype.config.strict import Document, parse
from tintype.data.sources import forget_sources
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.recipes import packaged
from tintype.runtime.interrupt import Interrupt
from tintype.settings import Settings, TrainSettings
from tintype.study.settings import StudySettings
from tintype.study.study import load_study
from tintype.techniques import TECHNIQUES
from tintype.train.loop import train

MODELS: list[type[Settings]] = [Plan, StudySettings, *dict.fromkeys(one.options for one in TECHNIQUES.values())]


def misspelt(key: str) -> str:
    """Two letters changed places, or one given twice."""
    swapped = key[0] + key[2:3] + key[1:2] + key[3:]
    return swapped if swapped != key else key + key[-1]


@pytest.mark.promise(21)
def test_each_misspelt_key_is_refused_and_named(promise: Promise) -> None:
    """Misspell each key of plans, studies and options of techniques, one at a time."""
    cases = [(model, *field) for model in MODELS for field in fields(model)]
    assert len(cases) > 400
    for model, path, kinds, owner in promise.choose(cases, short=250):
        names = {field.alias or name for name, field in owner.model_fields.items()}
        if path[-1] == "kind" or (wrong := misspelt(str(path[-1]))) in names:
            continue
        with pytest.raises(UserError) as refused:
            parse(model, Document("plan.yaml", document((*path[:-1], wrong), kinds, 1)))
        lines = str(refused.value).splitlines()
        where = ".".join(map(str, (*path[:-1], wrong)))
        promise.count(any(f"{where}: unknown key" in line for line in lines), f"{where}: {lines}")


@pytest.mark.promise(21, control="unknown keys are left out")
def test_control_without_the_refusal_a_misspelt_key_is_ignored(promise: Promise) -> None:
    """Read a misspelt learning rate with settings that leave unknown keys out."""

    class Loose(Settings):
        model_config = ConfigDict(extra="ignore")
        lr: float = 1.0

    found = Loose.model_validate({"lrr": 2.0})
    promise.count(found.lr == 2.0, "lrr")


@pytest.mark.promise(21)
@pytest.mark.parametrize("name", packaged.names("studies"))
def test_every_arm_of_every_packaged_study_changes_something(promise: Promise, name: str) -> None:
    """Compare each arm of the packaged studies with its baseline."""
    for arm in load_study(name).arms:
        if arm.role == "arm":
            promise.count(bool(arm.changes), arm.label)


STUDY = "question: q\nrecipe: PLAN\nseeds: [0]\narms: [{name: same, set: [optimizer.lr=1e-3]}]\n"


@pytest.mark.promise(21)
def test_an_arm_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    """Load a study with an arm that sets what the baseline has."""
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(STUDY.replace("PLAN", str(tmp_path / "plan.yaml")))
    with pytest.raises(UserError, match="arm 'same': it changes nothing"):
        load_study(str(tmp_path / "study.yaml"))


@pytest.mark.promise(21, control="arms are not compared with the baseline")
def test_control_without_the_guard_an_empty_arm_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the same study without the guard."""
    monkeypatch.setattr("tintype.study.study.check_arm", lambda what, before, after, declared: {})
    monkeypatch.setattr("tintype.study.study._refuse_twins", lambda arms: None)
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(STUDY.replace("PLAN", str(tmp_path / "plan.yaml")))
    assert not load_study(str(tmp_path / "study.yaml")).arms[1].changes


CONDITIONAL = {
    ("DistributionSettings", "reshard"): "with several ranks",
    ("DistributionSettings", "shards"): "with several ranks",
    ("MixtureSettings", "evaluate"): "the source that runs are scored against",
    ("PrecisionSettings", "gather"): "with several ranks",
    ("ScenesSettings", "evaluate_style"): "where runs are scored",
    ("RunSettings", "latents_folder"): "with latents on disk",
    ("RunSettings", "tracker_project"): "with a tracker",
    ("RunSettings", "protocol"): "by an evaluation",
    ("RunSettings", "ranks"): "by the workers of a study",
    ("Plan", "sampling"): "where images are sampled",
    ("SamplingSettings", "guidance"): "where images are sampled",
    ("SamplingSettings", "shift"): "where images are sampled",
    ("Schedule", "start"): "of a term that begins later",
    ("SmallVaeSettings", "posterior"): "where latents are not tuned",
    ("TrainSettings", "most_skipped"): "after a step that is not finite",
    ("TrainSettings", "most_skips"): "after a step that is not finite",
    ("TuningDiscriminator", "lr"): "where its weight is above 0",
    ("TuningDiscriminator", "start_step"): "where its weight is above 0",
    ("TuningDiscriminator", "width"): "where its weight is above 0",
    ("TuningPerceptual", "net"): "of LPIPS",
    ("TuningPerceptual", "weights"): "of LPIPS",
    ("WatchdogSettings", "floor_minutes"): "with several ranks",
    ("WatchdogSettings", "multiple"): "with several ranks",
}
"""Fields that a training of the tiny plan with one technique need not read, and when they are."""
Key = tuple[str, str]


class Recorder:
    """Notes which fields of settings are declared in plans, and which a training reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.declared: set[Key] = set()
        self.read: set[Key] = set()
        self._on = False
        before = Settings.__getattribute__

        def note(settings: Settings, name: str) -> Any:
            if self._on:
                self.read.add((type(settings).__name__, name))
            return before(settings, name)

        monkeypatch.setattr(Settings, "__getattribute__", note)

    def train(self, plan: Plan, folder: Path) -> None:
        self._declare(plan)
        forget_sources()  # one that is open reads nothing
        self._on = True
        try:
            train(plan, folder, Interrupt())
        finally:
            self._on = False

    def _declare(self, value: Any) -> None:
        if isinstance(value, Settings):
            for name in type(value).model_fields:
                self.declared.add((type(value).__name__, name))
                self._declare(getattr(value, name))
        elif isinstance(value, tuple | list | dict):
            for one in value.values() if isinstance(value, dict) else value:
                self._declare(one)

    @property
    def unread(self) -> set[Key]:
        return {key for key in self.declared - self.read if key[1] != "kind"} - set(CONDITIONAL)


def short(plan: Plan) -> Plan:
    """Return the plan with four steps, so that some come after the warm-up."""
    return plan.model_copy(update={"train": plan.train.model_copy(update={"steps": 4})})


@pytest.mark.promise(21)
def test_a_training_reads_each_field_of_its_plan(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train a few steps with each technique and note which fields of the plan are read."""
    names = [name for name in NAMES if not refused_by_the_device(name)]
    plans = {name: short(with_technique(name)) for name in promise.choose(names, short=8)}
    recorder = Recorder(monkeypatch)
    for name, plan in {"baseline": short(tiny_plan()), **plans}.items():
        recorder.train(plan, tmp_path / name)
    for key in sorted(recorder.declared):
        promise.count(key not in recorder.unread, ".".join(key))
    assert promise.tries > 80


@pytest.mark.promise(21, control="a field that nothing reads")
def test_control_a_field_that_nothing_reads_is_found(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train with a plan that has one field more."""

    class More(TrainSettings):
        unused: int = 3

    plan = short(tiny_plan())
    recorder = Recorder(monkeypatch)
    recorder.train(plan.model_copy(update={"train": More(**dict(plan.train))}), tmp_path / "run")
    promise.count(("More", "unused") not in recorder.unread, "unused")


def test_each_conditional_field_is_read_somewhere() -> None:
    package = "\n".join(file.read_text() for file in Path(tintype.__file__).parent.rglob("*.py"))
    for _, name in CONDITIONAL:
        assert re.search(rf"\.{name}\b", package), name
