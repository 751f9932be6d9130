"""Functions that import, check, show and export stores of images.

Heavy modules are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le

from tintype.errors import UserError
from tintype.library.kinds import AnyPath, Count, OnCount, Pairs, Seed, Share, Split
from tintype.library.runs import ignore, watched
from tintype.runtime.notes import note
from tintype.wording import option

if TYPE_CHECKING:
    from tintype.data.presets import DataPreset
    from tintype.data.recaption.asking import Captioner
    from tintype.data.recaption.work import Progress as CaptionProgress
    from tintype.data.recaption.work import Recaptioned
    from tintype.data.store.export import Exported
    from tintype.data.store.importing import Imported, Progress
    from tintype.data.store.inspect import Inspection
    from tintype.data.store.layout import StoreShown
    from tintype.runtime.interrupt import Interrupt


def import_images(
    source: AnyPath,
    out: AnyPath,
    *,
    preset: str | None = None,
    caption: Pairs = (),
    attribute: Pairs = (),
    split_column: str | None = None,
    split: Pairs = (),
    eval_share: Share | None = None,
    short_px: Count | None = None,
    min_px: Count | None = None,
    quality: Annotated[int, Ge(1), Le(100)] = 95,
    limit: Count | None = None,
    most_bad: str | float | None = None,
    most_bytes: Count = 64 << 20,
    most_pixels: Annotated[int, Ge(1), Le(178_956_970)] = 1 << 26,
    most_pixels_at_once: Count = 100_000_000,
    follow_links: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    interrupt: Interrupt | None = None,
) -> Imported:
    """Import images, captions and attributes into a store. A repeated call resumes, or reports that the work is done.

    In Python, `caption`, `attribute` and `split` take mappings such as {"long": "caption_long"}. These arguments also
    take strings, as in the command's options.

    Args:
        source: images to import: a folder, .parquet, .tar, MDS, a saved data set, or scenes:count=1000.
        out: folder of the new store.
        preset: name of a public data set from `tintype data presets`; other options override the preset's values.
        caption: NAME=COLUMN: import this column as captions of this name (repeatable).
        attribute: NAME=COLUMN or NAME=COLUMN:KIND: import this column as an attribute for data.where; KIND is text,
            int, float or bool (repeatable).
        split_column: column that assigns each record to train or eval; by default a hash of the image assigns it.
        split: VALUE=train or VALUE=eval: the split that this value of split_column stands for (repeatable).
        eval_share: fraction of images to hold out for evaluation if there is no split_column [0.1].
        short_px: shrink images to this length of the short side, in pixels, and store them as JPEG.
        min_px: set aside images whose short side has fewer pixels than this.
        quality: JPEG quality of images that are shrunk or converted.
        limit: import only the first N records.
        most_bad: largest fraction of bad records; the import fails if there are more [5%].
        most_bytes: size limit of an image file in bytes; larger files count as bad records.
        most_pixels: size limit of an image in pixels; larger images count as bad records.
        most_pixels_at_once: number of pixels that may be decoded at the same time; each takes 12 bytes of memory.
        follow_links: follow symbolic links that lead out of the source folder.
        on_progress: called with the number of finished records (`done`), of all records (`total`) and of records set
            aside (`quarantined`).
        interrupt: object that stops the import when its `signal` is set; for callers that handle signals.

    Raises:
        UserError: the source, a column or an option is not valid, too many records are bad, or `out` has other files.
    """
    from tintype.data.image_file import Limits
    from tintype.data.presets import read_preset
    from tintype.data.store import importing
    from tintype.data.store.attributes import read_attributes
    from tintype.data.store.encode import Sizing

    if split_column is not None and eval_share is not None:
        both = f"{option('split-column')} and {option('eval-share')}"
        raise UserError(f"{both} both decide which images are held out", "give one of them")
    base = importing.ImportOptions() if preset is None else read_preset(preset).options(preset)
    if split_column is not None or eval_share is not None:  # then neither has the preset's value
        base = replace(base, split_column=split_column, splits={}, eval_share=0.1 if eval_share is None else eval_share)
    if base.split_column is None and split:
        raise UserError(
            f"{option('split')} assigns the values of a column to splits", f"give {option('split-column')} too"
        )
    captions = importing.read_pairs("caption", caption, "long=caption_long")
    attributes = read_attributes(importing.read_pairs("attribute", attribute, "score=aesthetic:float"))
    chosen = replace(
        base,
        captions=captions or base.captions,
        attributes=attributes or base.attributes,
        splits={**base.splits, **importing.read_splits(split)},
        limit=limit,
        sizing=Sizing(short_px, min_px, quality),
        limits=Limits(most_bytes, most_pixels),
        most_pixels_at_once=most_pixels_at_once,
        most_bad=base.most_bad if most_bad is None else importing.read_share("most-bad", str(most_bad)),
        follow_links=follow_links,
    )
    with watched(interrupt) as signalled:
        return importing.import_images(Path(source), Path(out), chosen, signalled, on_progress or ignore)


def data_presets(preset: str | None = None) -> list[DataPreset]:
    """List the public data sets that `tintype data import --preset` can import, with licence, size and source.

    Args:
        preset: show all details of this preset only.

    Raises:
        UserError: there is no preset of this name.
    """
    from tintype.data.presets import DataPreset, preset_names, read_preset

    names = preset_names() if preset is None else [preset]
    return [DataPreset(name=name, **dict(read_preset(name))) for name in names]


@dataclass(frozen=True)
class Shapes:
    """Image shapes of about equal area, to train on images that are not square."""

    buckets: list[tuple[int, int]]
    """Height and width of each shape, in pixels."""
    setting: str
    """The assignment of data.buckets that makes a plan train on these shapes."""


def choose_shapes(
    *,
    size: Annotated[int, Ge(16), Le(4096)] = 256,
    unit: Count = 16,
    ratio: Annotated[float, Ge(1)] = 2.0,
) -> Shapes:
    """Choose image shapes of about equal area for the setting data.buckets, to train on images that are not square.

    Args:
        size: data.size_px of the plan.
        unit: tokenizer stride × model.patch of the plan, in pixels; all sides are multiples of it.
        ratio: largest ratio of the longer to the shorter side.

    Raises:
        UserError: the size is not a multiple of the unit.
    """
    from tintype.data.buckets import shapes

    if size % unit:
        raise UserError(f"{option('size', size)} is not a multiple of {option('unit', unit)}")
    made = shapes(size, unit, ratio)
    found = ",".join(f"[{height},{width}]" for height, width in made)
    return Shapes(made, f"data.buckets=[{found}]")


def show_store(
    store: AnyPath,
    *,
    check: bool = False,
    where: str | None = None,
    skip: AnyPath | None = None,
    on_progress: OnCount | None = None,
) -> StoreShown:
    """Show a store's content. Use --check to verify the store, and --where or --skip to count the selected records.

    Args:
        store: folder of a store.
        check: read all files of the store and compare them with their checksums.
        where: count only records that match this condition, as in data.where: "width >= 256".
        skip: file with the hashes of records to leave out, as in data.skip.
        on_progress: called with the number of checked records and the number of all records.

    Raises:
        UserError: there is no store, the store is damaged, or the selection is not valid.
    """
    from tintype.data.store.layout import SPLITS, StoreShown, open_store
    from tintype.data.store.selection import select

    opened, report = open_store(Path(store)), on_progress or ignore
    selection = select(opened, where, None if skip is None else Path(skip), name=option("where"))
    left = {str(split): len(selection.rows(opened, split)) for split in SPLITS}
    if check:
        opened.check(lambda done: report(done, len(opened)))
    return StoreShown(
        **dict(opened.about),
        missing=opened.missing(),
        checked=check,
        left=None if where is None and skip is None else left,
        left_out={"where": selection.by_where, "skip": selection.by_skip},
        note=selection.note,
    )


def inspect_store(
    store: AnyPath,
    out: AnyPath | None = None,
    *,
    where: str | None = None,
    skip: AnyPath | None = None,
    write_skip: AnyPath | None = None,
    distance: Annotated[int, Ge(0), Le(11)] = 4,
    samples: Annotated[int, Ge(1), Le(500)] = 24,
    seed: Seed = 0,
    on_progress: OnCount | None = None,
    interrupt: Interrupt | None = None,
) -> Inspection:
    """Write an HTML page about a store: counts, image sizes, captions, duplicates, samples and problems.

    Args:
        store: folder of a store.
        out: HTML file to write. By default the command writes STORE-inspect.html in the current folder, unless --json
            is given.
        where: inspect only records that match this condition, as in data.where: "width >= 256".
        skip: file with the hashes of records to leave out, as in data.skip.
        write_skip: file to write with the hashes of duplicates, for data.skip.
        distance: count two images as duplicates if their 64-bit perceptual hashes differ in at most this many bits.
        samples: number of records to show.
        seed: seed of the random choice of records to show.
        on_progress: called with the number of inspected images and the number of all images.
        interrupt: object that stops the inspection when its `signal` is set; for callers that handle signals.

    Raises:
        UserError: there is no store, the selection is not valid, or a file cannot be written.
    """
    from tintype.data.store import inspect
    from tintype.data.store.inspect_html import write_page
    from tintype.data.store.layout import open_store
    from tintype.data.store.selection import select

    page, skipped, listed = (None if path is None else Path(path) for path in (out, skip, write_skip))
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{option('out', page)}: the output is an HTML page", "give a file name that ends in .html")
    if listed is not None:
        given = option("write-skip", listed)
        if where is not None or skip is not None:
            left_out = f"leave {option('where')} and {option('skip')} out"
            raise UserError(f"{option('write-skip')} searches the whole store, not a selection of records", left_out)
        if listed.exists():
            raise UserError(f"{given}: this file exists already", "choose another name, or remove the file")
        if listed.suffix.lower() == ".parquet":
            raise UserError(f"{given}: the output is a text file", "give the file another name, for example skip.txt")
    opened = open_store(Path(store))
    selection = select(opened, where, skipped, name=option("where"))
    asked = inspect.Asked(distance, samples, seed)
    with watched(interrupt) as signalled:
        found = inspect.inspect_store(
            opened, selection, asked, lambda: signalled.signal is not None, on_progress or ignore
        )
    if listed is not None:
        inspect.write_skip_list(listed, opened, found.groups)
    if page is not None:
        write_page(page, found)
    return found


def export_store(
    store: AnyPath,
    out: AnyPath,
    *,
    to: Literal["webdataset", "parquet"],
    split: Split | None = None,
    on_progress: OnCount | None = None,
    interrupt: Interrupt | None = None,
) -> Exported:
    """Export the images, captions and attributes of a store as WebDataset tars or Parquet files.

    Args:
        store: folder of a store.
        out: folder to write to.
        to: format of the files.
        split: export only this split; by default export both.
        on_progress: called with the number of exported records and the number of all records.
        interrupt: object that stops the export when its `signal` is set; for callers that handle signals.

    Raises:
        UserError: there is no store, the store is damaged, or the folder to write to is not empty.
    """
    from tintype.data.store import export
    from tintype.data.store.layout import open_store

    with watched(interrupt) as signalled:
        return export.export_store(open_store(Path(store)), to, Path(out), split, signalled, on_progress or ignore)


@dataclass(frozen=True)
class CaptionPrompt:
    """A prompt that asks a model for captions."""

    name: str
    text: str


def recaption_store(
    store: AnyPath | None = None,
    *,
    column: str | None = None,
    model: str | None = None,
    server: str | None = None,
    revision: str | None = None,
    prompt: str | None = None,
    prompt_file: AnyPath | None = None,
    show_prompt: bool = False,
    max_tokens: Count | None = None,
    temperature: Annotated[float, Ge(0), Le(2)] = 0.0,
    seed: Seed = 0,
    tries: Count = 3,
    split: Split | None = None,
    only_empty: str | None = None,
    limit: Count | None = None,
    batch: Count = 8,
    device: str = "auto",
    concurrency: Annotated[int, Ge(1), Le(1024)] = 8,
    timeout_s: Annotated[float, Ge(0.01)] = 120.0,
    server_tries: Count = 6,
    backoff_s: Annotated[float, Ge(0)] = 1.0,
    key_variable: str | None = None,
    price_per_million_input: Annotated[float, Ge(0)] | None = None,
    price_per_million_output: Annotated[float, Ge(0)] | None = None,
    overwrite: bool = False,
    anew: bool = False,
    on_progress: Callable[[CaptionProgress], None] | None = None,
    interrupt: Interrupt | None = None,
) -> Recaptioned | CaptionPrompt:
    """Caption the images of a store with a vision-language model. A repeated call resumes.

    Args:
        store: folder of a store.
        column: name of the new caption column.
        model: name of the model on the server; without a server, a folder or a repository on the hub.
        server: URL of an OpenAI-compatible server: vLLM, llama.cpp, Ollama, ….
        revision: commit of the model's repository on the hub.
        prompt: built-in prompt: long or short [long].
        prompt_file: file with your own prompt.
        show_prompt: print the prompt and exit; in Python, return the prompt and caption nothing.
        max_tokens: largest length of an answer, in tokens [long 512, short 96].
        temperature: sampling temperature; 0 always takes the most likely token.
        seed: seed of the sampling at a temperature above 0.
        tries: number of tries for an image if the answer is empty or a refusal.
        split: caption only this split; images of the other split get an empty caption.
        only_empty: caption only images whose caption in this column is empty; copy the other captions from it.
        limit: try the model on N images, without adding captions to the store.
        batch: images per batch, without a server.
        device: auto, cpu, cuda or cuda:N, without a server.
        concurrency: number of parallel requests to the server.
        timeout_s: timeout of one request, in seconds.
        server_tries: number of tries of a request if the server fails or is busy.
        backoff_s: wait after the first failure, in seconds; the wait doubles with each further failure.
        key_variable: environment variable with the API key [TINTYPE_API_KEY].
        price_per_million_input: price of a million input tokens, to report the cost.
        price_per_million_output: price of a million output tokens, to report the cost.
        overwrite: replace captions that an earlier command added to this column.
        anew: discard the answers that a stopped command has saved.
        on_progress: called with the number of finished images (`done`), of all (`total`), and with `counts` and `cost`.
        interrupt: object that stops the captioning when its `signal` is set; for callers that handle signals. The
            result then has no `about`, and the same call resumes.

    Raises:
        UserError: an option is missing or not valid, there is no store, or the model does not answer.
    """
    from tintype.data.recaption import work
    from tintype.data.recaption.asking import Asking
    from tintype.data.recaption.prompts import MAX_TOKENS, find_prompt

    name, words = find_prompt(prompt, None if prompt_file is None else Path(prompt_file))
    if show_prompt:
        return CaptionPrompt(name, words)
    if store is None or column is None or model is None:
        needed = {"STORE": store, option("column", "NAME"): column, option("model", "MODEL"): model}
        raise UserError(f"{', '.join(key for key, value in needed.items() if value is None)} is missing")
    asking = Asking(words, max_tokens or MAX_TOKENS.get(name, MAX_TOKENS["long"]), temperature, seed)
    captioner: Captioner
    if server is not None:
        from tintype.data.recaption.server import Patience, Server, read_key, read_place

        if revision is not None:
            raise UserError(
                f"{option('revision')} applies only to a model that runs on this machine",
                f"leave it out if you use {option('server')}",
            )
        patience = Patience(timeout_s, server_tries, backoff_s)
        key, place = read_key(key_variable), read_place(server)
        if key is not None and not place.secure and not place.is_near:
            note(f"the API key is sent to {place.url} without encryption; use https")
        captioner = Server(place, model, asking, concurrency, patience, key)
    else:
        from tintype.data.recaption.local import Local
        from tintype.pretrained.hub import Checkpoint
        from tintype.runtime.machine import choose_device

        if key_variable is not None:
            raise UserError(f"{option('key-variable')} applies only to a server", f"give {option('server')} too")
        captioner = Local(Checkpoint(model, revision), asking, choose_device(device), batch)
    prices = price_per_million_input, price_per_million_output
    task = work.Task(column, asking, tries, split, only_empty, limit, *prices, overwrite, anew)
    with watched(interrupt) as signalled:
        return work.recaption(Path(store), task, captioner, signalled, on_progress or ignore)
