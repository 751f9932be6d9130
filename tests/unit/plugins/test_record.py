"""Runs and studies record the plugins that they were made with, and are resumed with the same ones only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin_files import LOSS, only_these_plugins, write_plugin
from tests.stopping import train_to
from tests.tiny import TINY, tiny_plan
from tintype.errors import UserError
from tintype.export.model_folder import export_model
from tintype.plan import Plan, plan_from_folder
from tintype.plugins.load import forget, load_files
from tintype.plugins.record import FILE, check_plugins
from tintype.plugins.registry import Plugin
from tintype.runtime.interrupt import Interrupt
from tintype.study.folder import stored_study
from tintype.study.lab import prepare_study, work_on_study
from tintype.study.study import Study, load_study
from tintype.train.load import load_run
from tintype.train.loop import train

STUDY = "question: q\nrecipe: {plan}\nseeds: [0]\narms: [{{techniques: [{technique}]}}]\n"


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path) -> Iterator[Plugin]:
    with only_these_plugins(write_plugin(tmp_path)) as (loaded,):
        yield loaded


def changed(plugin: Plugin, text: str = LOSS + "# changed\n") -> Plugin:
    """Load the same file with another content in place of a plugin."""
    forget(plugin)
    Path(plugin.place).write_text(text)
    (other,) = load_files([Path(plugin.place)])
    return other


def test_a_run_is_resumed_sampled_and_exported_with_the_same_plugin_only(plugin: Plugin, tmp_path: Path) -> None:
    run, plan = tmp_path / "run", tiny_plan("train.steps=2", "run.save_every_steps=1", techniques=["mine"])
    train_to(plan, run, 1)
    assert json.loads((run / FILE).read_text())["my_ideas.py"] == {"sha256": plugin.sha256}
    wanted = rf"run was made with the plugin my_ideas\.py .*{plugin.sha256}"
    other = changed(plugin)
    for act in (lambda: train(plan, run, Interrupt()), lambda: load_run(run)):
        with pytest.raises(UserError, match=rf"{wanted}\), but .*my_ideas\.py has sha256 {other.sha256}; use the"):
            act()
    assert plan_from_folder(run).hash == plan.hash, "a plan can be read and compared all the same"
    forget(other)
    with pytest.raises(UserError, match=rf"{wanted}.*not loaded; .*`tintype --plugin my_ideas\.py …`"):
        load_run(run)
    with pytest.raises(UserError, match=rf"(?s){wanted}.*not loaded.*unknown kind 'mine'"):
        plan_from_folder(run)
    changed(other, LOSS)
    assert train(plan, run, Interrupt()).finished
    export_model(run, tmp_path / "exported")
    assert FILE in {file.name for file in (tmp_path / "exported").iterdir()}
    assert load_run(tmp_path / "exported")[1] == 2


def test_a_file_is_recorded_where_only_its_technique_was_used_and_extra_ones_are_no_obstacle(
    plugin: Plugin, tmp_path: Path
) -> None:
    plan = tiny_plan("train.steps=2", "run.save_every_steps=1")
    train_to(plan, tmp_path / "with", 1)
    assert (tmp_path / "with" / FILE).exists(), "the user's word made it a part of the run"
    forget(plugin)
    train_to(plan, tmp_path / "without", 1)
    assert not (tmp_path / "without" / FILE).exists()
    with pytest.raises(UserError, match="not loaded"):
        train(plan, tmp_path / "with", Interrupt())
    changed(plugin, LOSS)
    assert train(plan, tmp_path / "without", Interrupt()).finished
    assert not (tmp_path / "without" / FILE).exists()


def test_a_missing_package_is_named_with_its_version(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the plugin ideas \(sha256 00\), .*`pip install ideas==1\.2`"):
        check_plugins(tmp_path, {"ideas": {"sha256": "00", "version": "1.2"}})


def study_with(folder: Path, technique: str = "mine") -> Study:
    (folder / "plan.yaml").write_text(TINY)
    (folder / "study.yaml").write_text(STUDY.format(plan=folder / "plan.yaml", technique=technique))
    return load_study(str(folder / "study.yaml"))


def test_a_study_is_worked_on_with_the_same_plugin_only(plugin: Plugin, tmp_path: Path) -> None:
    study, out = study_with(tmp_path), tmp_path / "out"
    prepare_study(study, out)
    assert json.loads((out / FILE).read_text())["my_ideas.py"] == {"sha256": plugin.sha256}
    other = changed(plugin)
    for act in (lambda: prepare_study(study_with(tmp_path), out), lambda: work_on_study(out)):
        with pytest.raises(
            UserError, match=rf"out was made with .*{plugin.sha256}\), but .* has sha256 {other.sha256}"
        ):
            act()
    assert [arm.name for arm in stored_study(out).arms] == ["baseline", "mine"]
    forget(other)
    with pytest.raises(UserError, match=r"out was made with the plugin my_ideas\.py .*not loaded"):
        work_on_study(out)
    with pytest.raises(UserError, match=r"(?s)out was made with the plugin .*not loaded.*unknown technique 'mine'"):
        stored_study(out)


def test_a_study_that_gets_an_arm_of_a_plugin_records_it_then(plugin: Plugin, tmp_path: Path) -> None:
    forget(plugin)
    out = tmp_path / "out"
    prepare_study(study_with(tmp_path, "ema"), out)
    assert not (out / FILE).exists()
    changed(plugin, LOSS)
    prepare_study(study_with(tmp_path), out)
    assert set(json.loads((out / FILE).read_text())) >= {"my_ideas.py"}


def test_plans_and_studies_name_no_code(tmp_path: Path) -> None:
    for key in ("plugin", "plugins"):
        assert key not in Plan.model_fields
        with pytest.raises(UserError, match=f"{key}: unknown key"):
            tiny_plan(f"{key}=my_ideas.py")
    with pytest.raises(UserError, match="unknown key"):
        study_with(tmp_path)
        text = (tmp_path / "study.yaml").read_text()
        (tmp_path / "study.yaml").write_text(text + "plugins: [my_ideas.py]\n")
        load_study(str(tmp_path / "study.yaml"))


@pytest.mark.slow
def test_the_workers_of_a_study_have_the_plugins(plugin: Plugin, tmp_path: Path) -> None:
    """Run `ablate --jobs 2` with a plugin: its workers are processes of their own."""
    study_with(tmp_path)
    forget(plugin)
    small = ["--set", "evaluation={count: 8, reference_count: 8, validation_count: 2, also: []}"]
    words = ["ablate", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "out"), "--jobs", "2", *small]
    command = [sys.executable, "-m", "tintype", "--plugin", plugin.place, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    records = list(tmp_path.glob("out/runs/*/plugins.json"))
    assert len(records) == 2 and all(plugin.sha256 in record.read_text() for record in records)
