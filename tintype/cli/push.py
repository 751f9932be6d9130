"""The command that uploads an exported model to the hub."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tintype.cli.shared import app, console
from tintype.errors import UserError
from tintype.terminal.interrupts import Interrupted, begin_work
from tintype.terminal.lines import progress_console
from tintype.terminal.progress import Heartbeat, duration

if TYPE_CHECKING:
    from tintype.export.push import Destination, Upload


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="Folder with a model and its card, as `tintype export` writes it")],
    repo: Annotated[str, typer.Option(help="OWNER/NAME on the hub; created if it does not exist")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; the list of files is shown all the same")] = False,
) -> None:
    """Upload a model with its card to the hub, after showing the files. Running it again resumes."""
    push_folder(folder, repo, private, yes)


def refuse_unasked(yes: bool) -> None:
    if not yes and not sys.stdin.isatty():
        raise UserError("stdin is no terminal, so nobody can confirm the upload; pass --yes to confirm it beforehand")


def push_folder(folder: Path, repo: str, private: bool, yes: bool) -> None:
    from tintype.export.push import push as send
    from tintype.runtime.dist import alone

    alone("tintype push")
    refuse_unasked(yes)

    def consent(upload: Upload, destination: Destination) -> bool:
        _show(upload, destination)
        return yes or typer.confirm("Upload it?", default=False)

    begin_work()
    # On a terminal the hub draws bars of its own.
    began_s = time.monotonic()
    try:
        with Heartbeat(progress_console, lambda: f"sending {folder}: after {duration(time.monotonic() - began_s)}"):
            pushed = send(folder, repo, consent, private=private)
    except Interrupted as stopped:
        stopped.kept = f"`tintype push {quote(str(folder))} --repo {quote(repo)}` resumes"
        raise
    if pushed is None:
        console.print("nothing was sent", highlight=False)
        sys.exit(1)
    words = f"sent as commit {pushed.commit[:12]}" if pushed.changed else "the repository had these files already"
    console.print(f"{words}: {pushed.url}", soft_wrap=True, highlight=False, markup=False)


def _show(upload: Upload, destination: Destination) -> None:
    from tintype.export.push import file_rows, total_size

    seen = "private" if destination.private else "public"
    state = f"an existing {seen} repository" if destination.exists else f"a new {seen} repository"
    where = f"to {destination.url}, {state}, as {destination.account}:"
    console.print(where, soft_wrap=True, highlight=False, markup=False)
    table = Table("file", "size")
    for name, size in file_rows(upload):
        table.add_row(escape(name), size)
    table.add_row(f"{len(upload.files)} files", total_size(upload), style="bold")
    console.print(table)
    if upload.left_out:
        hidden = ", ".join(upload.left_out[:5]) + (", …" if len(upload.left_out) > 5 else "")
        console.print(f"left out: {hidden}", soft_wrap=True, highlight=False, markup=False)
