"""Commands on plans and techniques: what there is, and what differs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from tintype.cli.shared import (
    Commands,
    Json,
    Set,
    Techniques,
    any_plan,
    app,
    console,
    plan_of,
    print_json,
)

if TYPE_CHECKING:
    from tintype.settings import Settings

plan_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Show, compare and describe plans.")
app.add_typer(plan_app, name="plan")


@app.command()
def techniques(json_: Json = False) -> None:
    """List the techniques."""
    from tintype.techniques import TECHNIQUES

    rows = [
        {
            "name": t.name,
            "seam": t.seam,
            "summary": t.summary,
            "paper": t.paper,
            "options": t.options.model_json_schema(),
        }
        for t in TECHNIQUES.values()
    ]
    if json_:
        print_json(rows)
        return
    table = Table(Column("technique", no_wrap=True), Column("seam", no_wrap=True), "what it does, options, paper")
    for t in TECHNIQUES.values():
        lines = [t.summary, _options(t.options), t.paper or ""]
        table.add_row(t.name, t.seam, escape("\n".join(filter(None, lines))))
    console.print(table)


def _options(options: type[Settings]) -> str:
    """Each option with its default, where it has one."""
    from tintype.settings import Settings, plain

    shown = []
    for key, field in options.model_fields.items():
        key = field.alias or key
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            default = plain(default).get("kind", "")
        default = str(default).lower() if isinstance(default, bool) else default
        shown.append(key if default is None or field.is_required() else f"{key}={default}")
    return ", ".join(shown)


@plan_app.command("show")
def plan_show(
    recipe: str,
    set_: Set = [],  # noqa: B006
    technique: Techniques = [],  # noqa: B006
) -> None:
    """Print a plan with every default resolved."""
    plan = plan_of(recipe, set_, technique)
    sys.stdout.write(f"# hash: {plan.hash}\n{plan.to_yaml()}")


@plan_app.command("diff")
def plan_diff(
    first: str,
    second: str,
    all_: Annotated[
        bool, typer.Option("--all", help="Every setting, also the defaults of parts that only one plan has")
    ] = False,
) -> None:
    """Compare two plans: recipes, plan files or run folders."""
    from tintype.plan import diff, short_diff

    changes = (diff if all_ else short_diff)(any_plan(first), any_plan(second))
    for key, (before, after) in changes.items():
        sys.stdout.write(f"{key}: {before} -> {after}\n")
    if not changes:
        sys.stdout.write("the same, but for the seed and housekeeping at most\n")


@plan_app.command("schema")
def plan_schema() -> None:
    """Print the JSON schema of plans, for editors that complete."""
    from tintype.plan import Plan

    print_json(Plan.model_json_schema())
