"""Plugins are loaded from files and packages; what is wrong with them is refused by name."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.plugin_files import EXAMPLES, LOSS, only_these_plugins, write_plugin
from tests.tiny import tiny_plan
from tintype.cli import app
from tintype.cli.shared import _take_plugins
from tintype.errors import UserError
from tintype.plan import Plan, plan_from_yaml
from tintype.plugins import load, registry
from tintype.plugins.load import VARIABLE, added, forget, given_files, load_environment, load_files, loaded
from tintype.plugins.registry import Plugin
from tintype.study.launch import choose
from tintype.study.launch.launcher import Crew
from tintype.techniques import TECHNIQUES
from tintype.techniques.apply import apply_techniques

LAUNCHERS_ARE_DECLARED = choose.__name__  # a collision is found where the table of the group is known


@pytest.fixture(autouse=True)
def no_plugins() -> Iterator[None]:
    with only_these_plugins():
        yield


def test_a_file_opens_the_tables(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown technique 'mine'"):
        apply_techniques(tiny_plan(), ["mine"])
    schema = Plan.model_json_schema()
    (plugin,) = load_files([write_plugin(tmp_path)])
    plan = tiny_plan(techniques=["mine:weight=0.2,sides=[3]"])
    assert plan.losses[0].kind == "mine" and TECHNIQUES["mine"].name == "mine" and "mine" in list(TECHNIQUES)
    assert plan_from_yaml(plan.to_yaml(), "again") == plan == Plan(**dict(plan))
    assert "MineSettings" in Plan.model_json_schema()["$defs"] and "MineSettings" not in schema["$defs"]
    forget(plugin)
    assert "mine" not in TECHNIQUES and not given_files()
    assert Plan.model_json_schema() == schema


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("{kind: mein}", r"unknown kind 'mein'; did you mean 'mine'\?"),
        ("{kind: mine, wieght: 2}", r"losses\.0\.wieght: unknown key; did you mean 'weight'\?"),
        ("{kind: mine, weight: -1}", r"losses\.0\.weight: must be above 0"),
        ("{kind: mine, sides: [x]}", r"losses\.0\.sides\.0: must be a whole number"),
    ],
)
def test_a_mistake_in_its_settings_is_named_like_any_other(setting: str, error: str, tmp_path: Path) -> None:
    load_files([write_plugin(tmp_path)])
    with pytest.raises(UserError, match=error):
        tiny_plan(f"losses=[{setting}]")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("LOSSES = (", r"line 1: '\(' was never closed"),
        ("\n1 / 0", r"line 2: ZeroDivisionError: division by zero"),
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("x = 1", "the plugin adds nothing; define at least one of TECHNIQUES, LOSSES"),
        ("LOSSES = 3", "LOSSES is not a list, tuple or mapping"),
        ("LOSSES = (int,)", r"its loss 'int' is not a tintype\.losses\.part\.LossPart"),
        ("TECHNIQUES = {'a': 1}", r"its technique 'a' is not a tintype\.techniques\.technique\.Technique"),
        ("LAUNCHERS = {'a': 1}", "its launcher 'a' is not a function"),
        ("LAUNCHERS = {'slurm': print}", "its launcher 'slurm' is built into tintype"),
        (LOSS.replace('"mine"', '"repa"'), "'repa' is built into tintype; choose another name for your own"),
        (LOSS.replace("LOSSES = (", "LOSSES = (MineSettings, "), "the loss 'mine' is given twice"),
    ],
)
def test_a_wrong_file_is_refused_and_leaves_nothing(text: str, error: str, tmp_path: Path) -> None:
    file = write_plugin(tmp_path, text)
    with pytest.raises(UserError, match=error):
        load_files([file])

    assert not loaded() and not os.environ.get(VARIABLE)
    assert not any(registry.known(group) for group in registry.GROUPS)
    assert not [name for name in sys.modules if name.startswith("tintype.plugins.files.")]


def test_a_part_that_comes_before_its_table_is_checked_by_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._groups, "metrics", registry._Group())
    registry.add("metrics", "late", 3, Plugin("x.py", "0"))
    with pytest.raises(UserError, match=r"plugin x\.py: its metric 'late' is not a builtins\.str"):
        registry.declare("metrics", ["fd"], str)


def test_what_is_built_in_later_is_refused_too() -> None:
    registry.add("importers", "late", print, Plugin("x.py", "0"))
    with pytest.raises(UserError, match=r"plugin x\.py: its importer 'late' is built into"):
        registry.declare("importers", ["late"], None)
    registry._groups["importers"].built_in.discard("late")
    registry.remove(registry.known("importers")["late"].plugin)


def test_names_of_files_are_words_and_differ(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_files([tmp_path / "gone.py"])
    for name in ("my-ideas.py", "ideas.txt", "class.py"):
        with pytest.raises(UserError, match="name the file with letters"):
            load_files([write_plugin(tmp_path, name=name)])
    (tmp_path / "other").mkdir()
    load_files([write_plugin(tmp_path)])
    with pytest.raises(UserError, match=r"my_ideas\.py has the same name"):
        load_files([write_plugin(tmp_path / "other", "LAUNCHERS = {'a': print}")])
    with pytest.raises(UserError, match=r"the technique 'mine' is also in the plugin my_ideas\.py"):
        load_files([write_plugin(tmp_path, name="others.py")])
    assert [file.name for file in given_files()] == ["my_ideas.py"]


def test_the_environment_names_files_with_their_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_plugin(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "my_ideas.py")
    assert tiny_plan("losses=[{kind: mine}]").losses, "a table loads what the environment names"
    (plugin,) = loaded().values()
    assert os.environ[VARIABLE] == f"{file}#{plugin.sha256}"
    forget(plugin)
    monkeypatch.setenv(VARIABLE, f"{file}#{plugin.sha256}")
    load_environment()
    forget(plugin)
    file.write_text(LOSS + "# changed\n")
    monkeypatch.setenv(VARIABLE, f"{file}#{plugin.sha256}")
    with pytest.raises(UserError, match=r"my_ideas\.py was changed after the command .* had loaded it"):
        load_environment()


def test_a_process_that_unpickles_settings_of_a_file_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the workers of a study, which know the files by the environment (`test_record` starts some)."""
    (plugin,) = load_files([write_plugin(tmp_path)])
    plan, named = tiny_plan(techniques=["mine"]), os.environ[VARIABLE]
    carried = pickle.dumps(plan)
    forget(plugin)
    monkeypatch.setenv(VARIABLE, named)
    monkeypatch.delitem(sys.modules, "tintype.plugins.files", raising=False)
    assert pickle.loads(carried).hash == plan.hash


def test_launched_workers_get_the_plugins(tmp_path: Path) -> None:
    assert "--plugin" not in Crew(tmp_path, 1).command
    file = write_plugin(tmp_path)
    load_files([file])
    assert f" -m tintype --plugin {file} work {tmp_path}" in Crew(tmp_path, 1).command


def test_the_option_stands_before_or_after_the_command() -> None:
    words = ["train", "--plugin", "a.py", "--out", "x", "--plugin=b.py", "--", "--plugin"]
    assert _take_plugins(words) == ([Path("a.py"), Path("b.py")], ["train", "--out", "x", "--", "--plugin"])
    with pytest.raises(UserError, match="--plugin needs the path of a Python file"):
        _take_plugins(["train", "--plugin"])


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the example package: its sources and a folder with its metadata on Python's path."""
    source = EXAMPLES / "plugin_package"
    (tmp_path / "tintype_focus").mkdir()
    for file in (source / "tintype_focus").glob("*.py"):
        (tmp_path / "tintype_focus" / file.name).write_text(file.read_text())
    about = tmp_path / "tintype_focus-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tintype-focus\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text(_entry_points(source / "pyproject.toml"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(load, "_searched", set())
    monkeypatch.setattr(load, "_packages", {})
    yield tmp_path
    for plugin in load._packages.values():
        registry.remove(plugin)
    for name in [name for name in sys.modules if name.startswith("tintype_focus")]:
        del sys.modules[name]


def _entry_points(pyproject: Path) -> str:
    import tomllib

    groups = tomllib.loads(pyproject.read_text())["project"]["entry-points"]
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups.items()
    )


def test_a_package_opens_the_tables_by_its_entry_points(installed: Path) -> None:
    assert "tintype_focus" not in sys.modules
    tiny_plan(techniques=["ema"])
    assert "tintype_focus" not in sys.modules, "what is built in needs no package"
    plan = tiny_plan(techniques=["focus"])
    assert plan.losses[0].kind == "focus"
    first = loaded()["tintype-focus"]
    assert first.version == "0.1.0" and not first.is_file
    for plugin in load._packages.values():
        registry.remove(plugin)
    load._searched.clear()
    load._packages.clear()
    (installed / "tintype_focus" / "more.py").write_text("x = 1\n")
    assert added("losses")["focus"].plugin.sha256 != first.sha256, "every source of the package counts"


def test_a_package_that_cannot_be_loaded_is_named(installed: Path) -> None:
    (installed / "tintype_focus" / "__init__.py").write_text("raise RuntimeError('too old')")
    with pytest.raises(
        UserError, match=r"the package tintype-focus has the .* could not be loaded .*too old.*uninstall"
    ):
        TECHNIQUES.get("nothing-of-this-name")


@pytest.mark.parametrize("first", ["good", "bad"])
def test_a_broken_package_is_named_each_time_and_its_group_is_whole_once_it_is_gone(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group must not be without the good part of another package, silently, from the second call on."""
    entries = {
        "good": EntryPoint("good", "math:floor", "tintype.launchers"),
        "bad": EntryPoint("bad", "no_such_module:part", "tintype.launchers"),
    }
    order = sorted(entries, key=lambda name: name != first)
    monkeypatch.setattr(load, "_searched", set())
    monkeypatch.setattr(load, "_packages", {})
    monkeypatch.setattr(load, "entry_points", lambda group: [entries[name] for name in order])
    before = dict(registry.known("launchers"))
    try:
        for _ in range(2):
            with pytest.raises(UserError, match="the package no_such_module has the launcher 'bad'"):
                added("launchers")
            assert registry.known("launchers") == before
        monkeypatch.setattr(load, "entry_points", lambda group: [entries["good"]])
        assert "good" in added("launchers")
    finally:
        registry.restore("launchers", before)


@pytest.mark.parametrize("after", [False, True])
def test_a_command_loads_the_files_that_it_names(after: bool, tmp_path: Path) -> None:
    option, command = (["--plugin", str(write_plugin(tmp_path))], ["techniques", "--json"])
    result = CliRunner().invoke(app, [*command, *option] if after else [*option, *command])
    assert result.exit_code == 0, result.output
    assert "mine" in [row["name"] for row in json.loads(result.stdout)]


def test_completion_runs_no_file(tmp_path: Path) -> None:
    file = write_plugin(tmp_path, "raise SystemExit('it ran')")
    group: Any = get_command(app)
    context = group.make_context("tintype", ["--plugin", str(file), "techniques"], resilient_parsing=True)
    group.resolve_command(context, ["techniques", "--plugin", str(file)])
    assert not loaded()
