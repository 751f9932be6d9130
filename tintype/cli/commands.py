"""All commands, in the order of `--help`.

Each command calls a function of the library and shows the result with a view.
"""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tintype.cli import options
from tintype.cli.derive import command
from tintype.cli.shared import app, as_document, command_names, group
from tintype.terminal import answers

command(app, "train", "runs:train", "runs:Training")
command(app, "sample", "runs:sample", "runs:Sampling")
command(app, "evaluate", "runs:evaluate", "runs:Scores")
command(app, "ema", "runs:ema", "runs:Lengths")
command(app, "compare", "studies:compare", "compare:SideBySideTables")
command(app, "ablate", "studies:run_study", "studies:Ablation")
command(app, "work", "studies:work", "studies:Workers")
command(app, "launch", "studies:launch", "studies:Launch")
command(app, "status", "studies:status", "status:Runs")
command(app, "report", "studies:report", "studies:Verdicts")
command(app, "replicate", "studies:replicate", "studies:Replication")
command(app, "propose", "studies:propose", "proposals:Answers")
command(app, "power", "studies:power", "power:Seeds")
command(app, "pool", "studies:pool", "pooling:Tables")
command(app, "judge", "judge:judge", "judge:Verdicts")
command(app, "serve", "serve:serve", "serving:Serving")
command(app, "recipes", "lists:recipes", "plans:RecipeTable")
command(app, "studies", "lists:studies", "plans:StudyTable")
command(app, "techniques", "lists:techniques", "plans:TechniqueTable")


@app.command("schema")
def show_schema(
    command: Annotated[str, Argument(help="Name of a command, such as 'ablate' or 'plan show'")],
    json_: options.Json = False,
) -> None:
    """Print the JSON schema of the document that a command writes with --json."""
    from tintype.cli.schemas import schema_of

    with as_document(json_):
        answers.put(schema_of(command, command_names()))


command(app, "check", "plugins:check", "plugins:Checks")
command(app, "bench", "measure:bench", "measure:Speed")
command(app, "audit", "measure:audit", "measure:Findings")
command(app, "export", "publish:export_run", "publish:Export")
command(app, "import", "publish:import_model", "publish:Import")
command(app, "card", "publish:write_card", "publish:CardText")
command(app, "push", "publish:push", "publish:Push")
command(app, "sync", "publish:sync", "publish:Mirror")

plans = group("plan", "Show, compare and describe plans.")
command(plans, "show", "plans:show_plan", "plans:PlanText")
command(plans, "diff", "plans:diff_plans", "plans:PlanChanges")
command(plans, "cost", "plans:plan_cost", "costs:Estimate")
command(plans, "schema", "plans:plan_schema", "plans:Schema")

files = group("new", "Write a file to begin with.")
command(files, "technique", "plugins:new_technique", "plugins:NextSteps")

stores = group("data", "Import your own images into a store, and inspect it.")
command(stores, "import", "data:import_images", "data:Import")
command(stores, "presets", "data:data_presets", "presets:Presets")
command(stores, "export", "data:export_store", "data:Export")
command(stores, "recaption", "data:recaption_store", "data:Recaptioning")
command(stores, "shapes", "data:choose_shapes", "data:ShapeSetting")
command(stores, "show", "data:show_store", "data:StoreFacts")
command(stores, "inspect", "data:inspect_store", "data:InspectedStore")

encoders = group("encoder", "Train the scene encoder that comes with tintype.")
command(encoders, "train", "tokenizers:train_encoder", "tokenizers:EncoderTraining")

tokenizers = group("tokenizer", "Train tokenizers, save tuned ones, compare any of them, and cache their latents.")
command(tokenizers, "train", "tokenizers:train_tokenizer", "tokenizers:Training")
command(tokenizers, "cache", "tokenizers:cache_latents", "tokenizers:Caching")
command(tokenizers, "save", "tokenizers:save_tokenizer", "tokenizers:Saving")
command(tokenizers, "report", "tokenizers:compare_tokenizers", "tokenizers:Comparison")
