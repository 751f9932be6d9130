"""Commands on plans and techniques, measurements, and lists of what comes with tintype."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tintype.cli.derive import command
from tintype.cli.shared import app, group, print_json

plan_app = group("plan", "Show, compare and describe plans.")
new_app = group("new", "Write a file to begin with.")

command(app, "recipes", "lists:recipes", "plans:RecipeTable")
command(app, "studies", "lists:studies", "plans:StudyTable")
command(app, "techniques", "lists:techniques", "plans:TechniqueTable")
command(plan_app, "show", "plans:show_plan", "plans:PlanText")
command(plan_app, "diff", "plans:diff_plans", "plans:PlanChanges")
command(plan_app, "cost", "plans:plan_cost", "costs:Estimate")


@app.command("schema")
def show_schema(
    command: Annotated[str, Argument(help="Name of a command, as 'ablate' or 'plan show'")],
) -> None:
    """Print the JSON schema of what a command writes with --json."""
    from tintype.cli.schemas import schema_of
    from tintype.cli.shared import command_names

    print_json(schema_of(command, command_names()))


command(plan_app, "schema", "plans:plan_schema", "plans:Schema")
command(new_app, "technique", "plugins:new_technique", "plugins:NextSteps")
command(app, "check", "plugins:check", "plugins:Checks")
command(app, "bench", "measure:bench", "measure:Speed")
command(app, "audit", "measure:audit", "measure:Findings")
