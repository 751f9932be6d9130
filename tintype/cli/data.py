"""Commands on stores of images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tintype.cli import options
from tintype.cli.derive import command
from tintype.cli.shared import console, group
from tintype.errors import UserError
from tintype.terminal.lines import say

data_app = group("data", "Import your own images into a store, and inspect it.")


command(data_app, "import", "data:import_images", "data:Import")
command(data_app, "presets", "data:data_presets", "presets:Presets")


command(data_app, "export", "data:export_store", "data:Export")


@data_app.command("recaption")
def data_recaption(
    store: Annotated[Path | None, Argument(help="Folder of a store")] = None,
    column: Annotated[str | None, Option(help="Name of the new caption column")] = None,
    model: Annotated[
        str | None, Option(help="Name of the model on the server; without --server a folder or a repository of the hub")
    ] = None,
    server: Annotated[str | None, Option(help="URL of an OpenAI-compatible server: vLLM, llama.cpp, Ollama, …")] = None,
    revision: Annotated[str | None, Option(help="Commit of the repository")] = None,
    prompt: Annotated[str | None, Option(help="Built-in prompt: long or short [long]")] = None,
    prompt_file: Annotated[Path | None, Option(help="File with your own prompt")] = None,
    show_prompt: Annotated[bool, Option("--show-prompt", help="Print the prompt and exit")] = False,
    max_tokens: Annotated[int | None, Option(min=1, help="Largest length of an answer [long 512, short 96]")] = None,
    temperature: Annotated[
        float, Option(min=0, max=2, help="Sampling temperature; 0 takes the most likely words")
    ] = 0.0,
    seed: Annotated[int, Option(min=0, help="Seed of the draws at a temperature above 0")] = 0,
    tries: Annotated[int, Option(min=1, help="Tries per image that gets an empty answer or a refusal")] = 3,
    split: Annotated[options.Split, Option(help="Caption only this split; the others get an empty caption")] = None,
    only_empty: Annotated[
        str | None, Option(help="Caption only images for which this column is empty; copy it elsewhere")
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Try on N images; adds no captions yet")] = None,
    batch: Annotated[int, Option(min=1, help="Images per batch, without --server")] = 8,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:N, without --server")] = "auto",
    concurrency: Annotated[int, Option(min=1, max=1024, help="Parallel requests to the server")] = 8,
    timeout_s: Annotated[float, Option(min=0.01, help="Timeout of one request")] = 120.0,
    server_tries: Annotated[int, Option(min=1, help="Tries per request to a server that fails or is busy")] = 6,
    backoff_s: Annotated[float, Option(min=0, help="First wait after a failure; doubles each time")] = 1.0,
    key_variable: Annotated[str | None, Option(help="Environment variable with the API key [TINTYPE_API_KEY]")] = None,
    price_per_million_input: Annotated[float | None, Option(min=0, help="Price, to report the cost")] = None,
    price_per_million_output: Annotated[float | None, Option(min=0, help="Price, to report the cost")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace captions that were added before")] = False,
    anew: Annotated[bool, Option("--anew", help="Discard the answers of a stopped command")] = False,
) -> None:
    """Add captions that a vision-language model writes. Running it again resumes."""
    from tintype.data.recaption.prompts import MAX_TOKENS, find_prompt

    name, words = find_prompt(prompt, prompt_file)
    if show_prompt:
        sys.stdout.write(words + "\n")
        return
    if store is None or column is None or model is None:
        lacking = {"STORE": store, "--column NAME": column, "--model MODEL": model}
        raise UserError(f"{', '.join(key for key, value in lacking.items() if value is None)} is missing")
    from tintype.data.recaption.asking import Asking, Captioner
    from tintype.data.recaption.work import Task
    from tintype.terminal.data import recaption_with_progress

    asking = Asking(words, max_tokens or MAX_TOKENS.get(name, MAX_TOKENS["long"]), temperature, seed)
    captioner: Captioner
    if server is not None:
        from tintype.data.recaption.server import Patience, Server, read_key, read_place

        if revision is not None:
            raise UserError("--revision is for a model that runs here", "leave it out with --server")
        patience = Patience(timeout_s, server_tries, backoff_s)
        key, place = read_key(key_variable), read_place(server)
        if key is not None and not place.secure and not place.is_near:
            say(console, f"note: the key goes to {place.url} unencrypted; use https", style="yellow")
        captioner = Server(place, model, asking, concurrency, patience, key)
    else:
        from tintype.data.recaption.local import Local
        from tintype.pretrained.hub import Checkpoint
        from tintype.runtime.machine import choose_device

        if key_variable is not None:
            raise UserError("--key-variable is for a server", "give --server too")
        captioner = Local(Checkpoint(model, revision), asking, choose_device(device), batch)
    prices = price_per_million_input, price_per_million_output
    task = Task(column, asking, tries, split, only_empty, limit, *prices, overwrite, anew)
    recaption_with_progress(store, task, captioner, console)


command(data_app, "shapes", "data:choose_shapes", "data:ShapeSetting")


command(data_app, "show", "data:show_store", "data:StoreFacts")
command(data_app, "upgrade", "data:upgrade_store", "data:Upgrade")
command(data_app, "inspect", "data:inspect_store", "data:InspectedStore")
