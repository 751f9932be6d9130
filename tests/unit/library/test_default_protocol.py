"""`evaluate` scores a run as its study did, or as studies of its recipe do, and says by which protocol."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

import tintype
from tests.studies import run_study
from tests.tiny import tiny_plan
from tests.tiny_store import tiny_store
from tintype.cli import app
from tintype.errors import UserError
from tintype.evaluation.fit import fit_protocol
from tintype.evaluation.presets import default_protocol, protocol_of
from tintype.evaluation.protocol import Protocol
from tintype.library.runs import protocol_for
from tintype.plan import read_plan
from tintype.recipes import packaged
from tintype.settings import ProtocolName
from tintype.study.results import read_results_file
from tintype.study.study import load_study

SMALL = ("train.steps=1", "train.warmup_steps=0", "train.batch=2", "data.count=2", "model.depth=1", "model.width=24")


def test_evaluate_repeats_the_numbers_of_the_pocket_study(tmp_path: Path) -> None:
    """A run in the study's folder, and the same plan trained outside of it."""
    study = load_study("pocket", ["seeds=[0]", "control_seeds=[]", "arms=[]", f"set=[{','.join(SMALL)}]"])
    assert not run_study(study, tmp_path / "study", 1).failed
    (arm,) = read_results_file(tmp_path / "study" / "results.json").arms
    expected = {name: value for name, value in arm.runs[0].metrics.items() if name != "images_per_s"}
    inside = tintype.load_run(tmp_path / "study")
    outside = tintype.train(tintype.load_plan("pocket", *SMALL), tmp_path / "run")
    for run, words in ((inside, "study"), (outside, "pocket")):
        assert words in protocol_for(run.path)[1]
        found = tintype.evaluate(run).metrics
        assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("name", packaged.names("plans"))
def test_a_recipe_has_the_protocol_of_its_study(name: str) -> None:
    """A packaged study of a recipe's own name is scored by the recipe's default."""
    default = default_protocol(read_plan(name))
    if name in packaged.names("studies"):
        assert load_study(name).settings.evaluation.hash == default.hash
    assert default.hash != Protocol().hash, "a recipe names its protocol in run.protocol"


def test_a_study_takes_what_it_does_not_give_from_its_recipe(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("question: Is it?\nrecipe: pocket\nseeds: [0, 1, 2]\narms: [{techniques: [x-prediction]}]\n")
    own, usual = load_study(str(file)).settings.evaluation, load_study("pocket").settings.evaluation
    assert own.hash == usual.hash
    changed = load_study(str(file), ["evaluation.sampler.steps=3"]).settings.evaluation
    assert changed.count == usual.count and changed.sampler == usual.sampler.model_copy(update={"steps": 3})
    assert load_study(str(file), ["evaluation=prx"]).settings.evaluation.count == 10_000


def test_settings_replace_single_settings_of_the_default() -> None:
    pocket = default_protocol(read_plan("pocket"))
    changed = protocol_of(["sampler.steps=3"], pocket)
    assert changed.sampler.guidance == pocket.sampler.guidance and changed.count == pocket.count
    assert protocol_of(["preset=prx", "count=64"], pocket) == protocol_of(["preset=prx", "count=64"])


def test_on_a_store_the_default_is_fitted_to_the_data(tmp_path: Path) -> None:
    """Settings of the recipe were not asked for by the user: captions and encoders that do not fit are replaced."""
    data = tiny_plan("data.kind=store", f"data.path={tiny_store(tmp_path)}").data
    fitted = fit_protocol(protocol_of(["encoders=[]"], default_protocol(read_plan("pocket"))), data)
    assert fitted.protocol.also == () and fitted.protocol.count < 256 and fitted.protocol.sampler.steps == 12


def test_an_unknown_protocol_is_refused_before_training() -> None:
    assert list(get_args(ProtocolName)) == packaged.names("protocols")
    with pytest.raises(UserError, match=r"run\.protocol"):
        read_plan("pocket", ["run.protocol=pockt"])
    assert read_plan("pocket", ["run.protocol=null"]).hash == read_plan("pocket").hash


def test_the_command_says_which_protocol_it_uses(tmp_path: Path) -> None:
    tintype.train(tiny_plan("train.steps=1", "run.protocol=pocket"), tmp_path / "run")
    small = ["count=8", "reference_count=8", "validation_count=2", "sampler.steps=1", "also=[]"]
    options = [word for one in small for word in ("--set", one)]
    shown = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), *options])
    assert "protocol: pocket, as the plan's run.protocol says; given: count, " in shown.stderr, shown.output
