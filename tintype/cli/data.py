"""Commands on stores of images."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tintype.cli import complete, options
from tintype.cli.derive import command
from tintype.cli.shared import console, group
from tintype.errors import UserError
from tintype.terminal.lines import say

data_app = group("data", "Import your own images into a store, and inspect it.")


@data_app.command("import")
def data_import(
    source: Annotated[
        Path, Argument(help="Images: a folder, .parquet, .tar, MDS, a saved data set; or scenes:count=1000")
    ],
    out: Annotated[Path, Option("--out", help="Folder of the new store")],
    preset: Annotated[
        str | None,
        Option(
            "--preset",
            help="A public set by name, see `tintype data presets`; further options take precedence",
            autocompletion=complete.preset_names,
        ),
    ] = None,
    caption: Annotated[
        list[str], Option("--caption", help="NAME=COLUMN: name of a caption and its column (repeatable)")
    ] = [],  # noqa: B006
    attribute: Annotated[
        list[str],
        Option(
            "--attribute", help="NAME=COLUMN or NAME=COLUMN:KIND (text, int, float, bool), for data.where (repeatable)"
        ),
    ] = [],  # noqa: B006
    split_column: Annotated[
        str | None, Option(help="Column that says train or eval; by default the hash of the image decides")
    ] = None,
    split: Annotated[
        list[str],
        Option("--split", help="VALUE=train or VALUE=eval: meaning of a value of --split-column (repeatable)"),
    ] = [],  # noqa: B006
    eval_share: Annotated[
        float | None, Option(min=0, max=1, help="Fraction of held-out images, without --split-column [0.1]")
    ] = None,
    short_px: Annotated[int | None, Option(min=1, help="Shrink images to this short side, as JPEG")] = None,
    min_px: Annotated[int | None, Option(min=1, help="Set aside images with a smaller short side")] = None,
    quality: Annotated[int, Option(min=1, max=100, help="JPEG quality of images that are changed")] = 95,
    limit: Annotated[int | None, Option(min=1, help="Import only the first N records")] = None,
    most_bad: Annotated[
        str | None, Option(help="Largest fraction of bad records; with more the import is refused [5%]")
    ] = None,
    most_bytes: Annotated[int, Option(min=1, help="Largest image file; a larger one counts as bad")] = 64 << 20,
    most_pixels: Annotated[int, Option(min=1, max=178_956_970, help="Largest image; a larger one counts as bad")] = 1
    << 26,
    most_pixels_at_once: Annotated[
        int, Option(min=1, help="Largest number of pixels decoded at a time, 12 bytes of memory each")
    ] = 100_000_000,
    follow_links: Annotated[bool, Option("--follow-links", help="Follow symbolic links out of the folder")] = False,
) -> None:
    """Import images, captions and attributes into a store. Running it again resumes, or says that it is done."""
    from tintype.data.image_file import Limits
    from tintype.data.presets import read_preset
    from tintype.data.store.attributes import read_attributes
    from tintype.data.store.encode import Sizing
    from tintype.data.store.importing import ImportOptions, read_pairs, read_share, read_splits
    from tintype.terminal.data import import_with_progress

    if split_column is not None and eval_share is not None:
        raise UserError("--split-column and --eval-share both say what is held out", "give one of them")
    known, base = None, ImportOptions()
    if preset is not None:
        known = read_preset(preset)
        base = known.options(preset)
    if split_column is not None or eval_share is not None:  # neither is then as in the preset
        base = replace(base, split_column=split_column, splits={}, eval_share=0.1 if eval_share is None else eval_share)
    if base.split_column is None and split:
        raise UserError("--split says what the values of a column mean", "give --split-column too")
    chosen = replace(
        base,
        captions=read_pairs("caption", caption, "long=caption_long") or base.captions,
        attributes=read_attributes(read_pairs("attribute", attribute, "score=aesthetic:float")) or base.attributes,
        splits={**base.splits, **read_splits(split)},
        limit=limit,
        sizing=Sizing(short_px, min_px, quality),
        limits=Limits(most_bytes, most_pixels),
        most_pixels_at_once=most_pixels_at_once,
        most_bad=base.most_bad if most_bad is None else read_share("most-bad", most_bad),
        follow_links=follow_links,
    )
    import_with_progress(source, out, chosen, console, known)


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
