"""Commands on pictures of one's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tintype.cli.shared import (
    Json,
    app,
    console,
    print_json,
)
from tintype.errors import UserError

if TYPE_CHECKING:
    pass

data_app = typer.Typer(no_args_is_help=True, help="Pictures of one's own: bring them into a store, and look at it.")
app.add_typer(data_app, name="data")


@data_app.command("import")
def data_import(
    source: Annotated[
        Path, typer.Argument(help="A set of pictures: .parquet, .tar, MDS, a saved data set, or a folder")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the new store")],
    caption: Annotated[
        list[str], typer.Option("--caption", help="NAME=COLUMN: a kind of caption and where it is (repeatable)")
    ] = [],  # noqa: B006
    split_column: Annotated[
        str | None, typer.Option(help="The column that says train or eval; by default the picture's hash decides")
    ] = None,
    split: Annotated[
        list[str], typer.Option("--split", help="VALUE=train or VALUE=eval: what a value of it means (repeatable)")
    ] = [],  # noqa: B006
    eval_share: Annotated[
        float | None, typer.Option(min=0, max=1, help="The share of held-out pictures, without a split column [0.1]")
    ] = None,
    short_px: Annotated[int | None, typer.Option(min=1, help="Shrink pictures to this short side, as JPEG")] = None,
    min_px: Annotated[int | None, typer.Option(min=1, help="Set pictures with a smaller short side aside")] = None,
    quality: Annotated[int, typer.Option(min=1, max=100, help="Of the JPEG of pictures that are changed")] = 95,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many records")] = None,
) -> None:
    """Bring pictures and captions into a store. Running it again goes on where it stopped, or says that it is done."""
    from tintype.data.store.encode import Sizing
    from tintype.data.store.importing import ImportOptions, read_pairs, read_splits
    from tintype.terminal import import_with_progress
    from tintype.world import alone

    alone("tintype data import")
    if split_column is not None and eval_share is not None:
        raise UserError("--split-column and --eval-share both say what is held out; give one of them")
    if split_column is None and split:
        raise UserError("--split says what the values of a column mean; give --split-column too")
    options = ImportOptions(
        captions=read_pairs("--caption", caption, "long=caption_long"),
        split_column=split_column,
        splits=read_splits(split),
        eval_share=0.1 if eval_share is None else eval_share,
        limit=limit,
        sizing=Sizing(short_px, min_px, quality),
    )
    code = import_with_progress(source, out, options, console)
    if code:
        sys.exit(code)


@data_app.command("export")
def data_export(
    store: Annotated[Path, typer.Argument(help="Folder of a store")],
    to: Annotated[str, typer.Option("--to", help="webdataset or parquet")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the new files")],
    split: Annotated[str | None, typer.Option("--split", help="Only train or eval; by default both")] = None,
) -> None:
    """Write a store's pictures and captions as WebDataset tars or Parquet files."""
    from tintype.data.store.export import read_form, read_split
    from tintype.terminal import export_with_progress
    from tintype.world import alone

    alone("tintype data export")
    code = export_with_progress(store, read_form(to), out, read_split(split), console)
    if code:
        sys.exit(code)


@data_app.command("show")
def data_show(
    store: Annotated[Path, typer.Argument(help="Folder of a store")],
    check: Annotated[bool, typer.Option("--check", help="Read everything, and compare it with the identity")] = False,
    json_: Json = False,
) -> None:
    """Say what a store holds; with --check whether it is as it was written."""
    from tintype.data.store.layout import open_store

    opened = open_store(store)
    if check:
        opened.check()
    if json_:
        print_json(opened.about.model_dump())
        return
    about = opened.about
    for name, value in {
        "identity": about.identity + (" (checked)" if check else ""),
        "records": ", ".join(f"{count:,} {split}" for split, count in about.counts.items()),
        "captions": ", ".join(about.captions),
        "set aside": f"{about.quarantined:,}",
        "size": f"{sum(shard.bytes for shard in about.shards) / 1e6:,.1f} MB in {len(about.shards)} shards",
        "imported from": about.made_from.get("source", "?"),
    }.items():
        console.print(f"{name}: {value}", soft_wrap=True, highlight=False, markup=False)
