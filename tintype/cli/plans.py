"""Commands that list, show and compare plans and techniques."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from rich.table import Column, Table
from typer import Argument, Option

from tintype.cli import complete, options
from tintype.cli.shared import any_plan, app, console, group, is_study, plan_of, print_json
from tintype.errors import UserError
from tintype.terminal.answers import answer

if TYPE_CHECKING:
    from tintype.plan import Plan
    from tintype.settings import Settings

plan_app = group("plan", "Show, compare and describe plans.")


@app.command("recipes")
def list_recipes(json_: options.Json = False) -> None:
    """List the recipes: plans that come with tintype, for `train` and for studies."""
    from tintype.terminal.recipes import recipe_rows, show_recipes

    print_json(recipe_rows()) if json_ else show_recipes(console)


@app.command("studies")
def list_studies(json_: options.Json = False) -> None:
    """List the studies that come with tintype, for `ablate`."""
    from tintype.terminal.recipes import show_studies, study_rows

    print_json(study_rows()) if json_ else show_studies(console)


@app.command()
def techniques(json_: options.Json = False) -> None:
    """List the techniques with their options and papers."""
    from tintype.techniques import TECHNIQUES

    keys = ("name", "seam", "summary", "paper")
    if json_:
        print_json(
            [
                {**{key: getattr(t, key) for key in keys}, "options": t.options.model_json_schema()}
                for t in TECHNIQUES.values()
            ]
        )
        return
    table = Table(Column("technique", no_wrap=True), Column("seam", no_wrap=True), "what it does, options, paper")
    for t in TECHNIQUES.values():
        lines = [t.summary, _options(t.options), t.paper or "", plugin_of(t.name)]
        table.add_row(t.name, t.seam, escape("\n".join(filter(None, lines))))
    console.print(table)


def plugin_of(name: str) -> str:
    """Return which plugin a technique is from, in words; empty for tintype's own."""
    from tintype.plugins.load import added

    one = added("techniques").get(name)
    return f"from the plugin {one.plugin.name}" if one else ""


def _options(options: type[Settings]) -> str:
    """List the options, each with its default if it has one."""
    from tintype.settings import Settings, plain

    shown = []
    for key, field in options.model_fields.items():
        if key == "kind":  # a part itself: its kind is the technique's
            continue
        key = field.alias or key
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            default = plain(default).get("kind", "")
        default = str(default).lower() if isinstance(default, bool) else default
        shown.append(key if default is None or field.is_required() else f"{key}={default}")
    return ", ".join(shown)


@plan_app.command("show")
def plan_show(
    recipe: options.AnyPlan,
    set_: options.Set = [],  # noqa: B006
    technique: options.Techniques = [],  # noqa: B006
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
) -> None:
    """Print a plan with every default resolved."""
    from tintype.settings import plain

    of_folder = Path(recipe).is_dir()
    if of_folder and (set_ or technique):
        raise UserError(
            f"{recipe} has its plan; --set and --technique are for recipes and plan files", "leave them out"
        )
    _refuse_arm_without_study([recipe], arm, arm_seed)
    plan = any_plan(recipe, arm, arm_seed) if of_folder else plan_of(recipe, set_, technique)
    answer(hash=plan.hash, plan=plain(plan))
    sys.stdout.write(f"# hash: {plan.hash}\n{plan.to_yaml()}")


@plan_app.command("diff")
def plan_diff(
    first: options.AnyPlan,
    second: Annotated[
        str | None,
        Argument(
            help="The second plan; without it, --arm of a study is compared with its baseline",
            autocompletion=complete.recipe_names,
        ),
    ] = None,
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
    all_: Annotated[
        bool, Option("--all", help="Show every setting, also defaults of parts that only one of the plans has")
    ] = False,
) -> None:
    """Compare two plans: recipes, plan files, runs, or arms of studies."""
    from tintype.plan import diff, short_diff, unhashed_diff

    _refuse_arm_without_study([first, second or ""], arm, arm_seed)
    if second is None and arm is None and is_study(Path(first)):
        raise UserError(
            f"{first} has several arms", f"choose the one to compare with the baseline:\n{_arms(Path(first))}"
        )
    if second is None and not is_study(Path(first)):
        raise UserError(
            f"there is nothing to compare {first} with", "give a second plan, or the folder of a study with --arm"
        )
    before = any_plan(first, arm, arm_seed) if second is not None else _baseline(first, arm)
    after = any_plan(second or first, arm, arm_seed)
    changes = (diff if all_ else short_diff)(before, after) | unhashed_diff(before, after)
    answer(changes={key: list(change) for key, change in changes.items()})
    for key, (old, new) in changes.items():
        sys.stdout.write(f"{key}: {old} -> {new}\n")
    if not changes:
        sys.stdout.write("no difference\n")


def _arms(study: Path) -> str:
    from tintype.study.folder import stored_study
    from tintype.study.lab import list_arms

    return list_arms([arm for arm in stored_study(study).arms if arm.role == "arm"])


def _baseline(study: str, arm: str | None) -> Plan:
    """Return the plan of a study's baseline, at the resolution of an arm."""
    _, at, resolution = (arm or "").rpartition(" @ ")
    return any_plan(study, f"baseline{at}{resolution}" if at else "baseline")


def _refuse_arm_without_study(names: Sequence[str], arm: str | None, seed: int | None) -> None:
    if (arm is not None or seed is not None) and not any(is_study(Path(name)) for name in names):
        raise UserError(f"--arm and --arm-seed choose a run of a study; {names[0]} is none", "leave them out")


@plan_app.command("cost")
def plan_cost(
    recipe: options.AnyPlan,
    gpus: Annotated[int, Option(min=1, help="GPUs that share each micro-batch")] = 1,
    gpu: Annotated[
        str | None,
        Option(help="Kind of GPU to estimate for: h200, h100, b200, …; by default this machine's is measured, if any"),
    ] = None,
    set_: options.Set = [],  # noqa: B006
    technique: options.Techniques = [],  # noqa: B006
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
    json_: options.Json = False,
) -> None:
    """Count what a run of a plan costs: parameters, operations, memory, GPU-hours. Nothing is trained or written."""
    from tintype.cost.memory import peak_of
    from tintype.cost.plan import USUAL_GPU, cost_of_plan, estimated_speed, measured_speed
    from tintype.evaluation.presets import default_protocol
    from tintype.runtime.machine import choose_device
    from tintype.terminal.costs import as_json, show_plan_cost
    from tintype.terminal.progress import Progress

    of_folder = Path(recipe).is_dir()
    if of_folder and (set_ or technique):
        raise UserError(
            f"{recipe} has its plan; --set and --technique are for recipes and plan files", "leave them out"
        )
    _refuse_arm_without_study([recipe], arm, arm_seed)
    plan = any_plan(recipe, arm, arm_seed) if of_folder else plan_of(recipe, set_, technique)
    device = choose_device(plan.run.device)
    named: str | None = gpu or USUAL_GPU
    cost = cost_of_plan(plan, estimated_speed(gpu or USUAL_GPU), gpus)
    if gpu is None and device.type == "cuda":
        with Progress("measuring", kept="nothing was measured; run the same command again"):
            images = cost.micro_batch(cost.phases[0])  # it measures the first step
            cost, named = replace(cost, speed=measured_speed(plan, device, images)), None
    peak = peak_of(plan, default_protocol(plan), gpus=gpus)
    print_json(as_json(cost, peak)) if json_ else show_plan_cost(cost, peak, console, named)


@app.command("schema")
def show_schema(
    command: Annotated[str, Argument(help="Name of a command, as 'ablate' or 'plan show'")],
) -> None:
    """Print the JSON schema of what a command writes with --json."""
    from tintype.cli.schemas import schema_of
    from tintype.cli.shared import command_names

    print_json(schema_of(command, command_names()))


@plan_app.command("schema")
def plan_schema() -> None:
    """Print the JSON schema of plans, for completion in editors."""
    from tintype.plan import Plan

    print_json(Plan.model_json_schema())
