"""Commands as functions: each is a public function of the library, and its options are the function's arguments.

With `--json` it writes what the function returns, of the type that its schema is made of.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tintype
from tests.commands import COMMANDS as LISTED
from tests.tiny import TINY
from tintype.cli import app
from tintype.cli.derive import COMMANDS, evaluated
from tintype.cli.schemas import document_type
from tintype.cli.shared import command_names
from tintype.library import kinds

OF_THE_COMMAND_LINE = {"schema": "it describes what commands write, which functions return with a type"}
PLAN, RUN, SETTINGS = {"recipe", "set_", "technique"}, {"run", "arm", "arm_seed"}, {"set_"}
OPTIONS_OF: Mapping[Any, set[str]] = {kinds.AnyPlan: PLAN, kinds.AnyRun: RUN}
"""Options that stand for one argument: a plan is a recipe with changes, and a run may be that of an arm."""
COMMAND_LINE_ONLY = {"json_": "the function returns what it writes"}
NOT_GIVEN = {
    "interrupt": "a signal stops a command",
    "consent": "a command asks the user, or `--yes` says it",
    "argv": "the command line itself",
}
"""Arguments without an option. Callbacks, which show progress, have none either."""
STUDY = str(Path(__file__).parents[2] / "studies" / "2026-11-15_captions-and-target-mini")
FAST: dict[str, tuple[list[str], Callable[[], object]]] = {
    "recipes": ([], lambda: tintype.recipes()),
    "techniques": ([], lambda: tintype.techniques()),
    "plan show": (
        ["plan.yaml", "--set", "seed=1"],
        lambda: tintype.show_plan(tintype.load_plan("plan.yaml", "seed=1")),
    ),
    "plan diff": (["plan.yaml", "pocket", "--all"], lambda: tintype.diff_plans("plan.yaml", "pocket", all_=True)),
    "plan cost": (["plan.yaml", "--gpu", "h100"], lambda: tintype.plan_cost("plan.yaml", gpu="h100")),
    "plan schema": ([], lambda: tintype.plan_schema()),
    "audit": (["plan.yaml", "--steps", "1"], lambda: tintype.audit("plan.yaml", steps=1)),
    "status": ([STUDY], lambda: tintype.status(STUDY)),
    "power": ([STUDY, "--seeds", "4"], lambda: tintype.power([STUDY], seeds=4)),
    "sync": ([".", "--list"], lambda: tintype.sync(".", list_=True)),
}
"""Arguments of commands that take milliseconds, and the same call in Python."""


def test_every_command_is_a_function() -> None:
    assert set(command_names()) == set(COMMANDS) | set(OF_THE_COMMAND_LINE), "a command is made by `derive.command`"


@pytest.mark.parametrize("command", COMMANDS)
def test_its_function_is_public_and_takes_its_options(command: str) -> None:
    function = COMMANDS[command].function
    public: Any = getattr(tintype, function.__name__)
    assert function.__name__ in tintype.__all__ and inspect.unwrap(public) is function
    parameters = inspect.signature(function, eval_str=False).parameters
    options = {str(one.name) for one in LISTED[command].params} - {"help"}
    expected = set(COMMAND_LINE_ONLY)
    for name, one in parameters.items():
        if not name.startswith("on_") and name not in NOT_GIVEN:
            expected |= _options_of(function, one)
    assert options == expected


def _options_of(function: Any, one: inspect.Parameter) -> set[str]:
    if one.name == "settings":
        return SETTINGS
    if one.name == "seed" and "arm" in inspect.signature(function).parameters:
        return {"arm_seed"}
    kind = evaluated(str(one.annotation).removesuffix(" | None"), function)
    many = one.kind is inspect.Parameter.VAR_POSITIONAL
    if kind == kinds.AnySource and one.name == "plan":
        return PLAN
    return {one.name} if many else next((names for of, names in OPTIONS_OF.items() if of == kind), {one.name})


@pytest.mark.parametrize("command", FAST)
def test_json_is_what_the_function_returns(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text(TINY)
    arguments, call = FAST[command]
    shown = CliRunner().invoke(app, [*command.split(), *arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    derived = COMMANDS[command]
    result = derived.view(None, {}, True).document(call())  # type: ignore[arg-type]
    written = document_type(command).dump_python(result, mode="json")
    assert json.loads(shown.stdout) == json.loads(json.dumps(written))
    assert document_type(command).validate_json(shown.stdout) is not None
