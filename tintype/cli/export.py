"""Commands that export, import and publish a model."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from tintype.cli import options
from tintype.cli.shared import app, console, run_of
from tintype.errors import UserError
from tintype.terminal.answers import answer
from tintype.terminal.interrupts import Interrupted, begin_work
from tintype.terminal.lines import progress_console, say
from tintype.terminal.progress import Heartbeat, Progress, duration

if TYPE_CHECKING:
    from tintype.export.push import Destination, Upload

_NOTHING_WRITTEN = "nothing was written; run the same command again"
_WEIGHTS = "by default the average if there is one"


@app.command("export")
def export(
    run: options.RunFolder,
    to: Annotated[
        Literal["diffusers", "tintype", "safetensors"],
        Option(
            help="diffusers (folder of a pipeline), tintype (folder that tintype opens, for any run) or safetensors "
            "(the denoiser in one file)"
        ),
    ],
    out: options.Out,
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
    weights: Annotated[options.Weights, Option(help=_WEIGHTS)] = None,
    ema_length: options.EmaLength = None,
    dtype: Annotated[Literal["fp32", "bf16"], Option(help="Type of all weights")] = "fp32",
    check: Annotated[
        bool, Option("--check", help="Sample with tintype and with diffusers, and print the largest difference")
    ] = False,
    license_: options.License = None,
    name: options.Name = None,
    base_model: options.BaseModel = None,
    with_captions: options.WithCaptions = False,
    push: Annotated[str | None, Option(help="OWNER/NAME on the hub: ask, then upload it there")] = None,
    private: Annotated[bool, Option("--private", help="With --push: make a new repository private")] = False,
    yes: Annotated[
        bool, Option("--yes", help="With --push: do not ask; the list of files is shown all the same")
    ] = False,
) -> None:
    """Export a run: as a PRX pipeline of diffusers, as a folder for tintype, or its denoiser as one file."""
    from tintype.export.model_card import CardOptions
    from tintype.export.model_folder import export_model
    from tintype.export.pipeline_folder import export_pipeline
    from tintype.export.trained import ExportOptions, export_file, load_trained

    if check and to != "diffusers":
        raise UserError("--check compares with a pipeline of diffusers", "leave it out, or take --to diffusers")
    for_folder = {"--license": license_, "--name": name, "--base-model": base_model, "--with-captions": with_captions}
    for_folder |= {"--push": push}
    if to == "safetensors" and (given := [option for option, value in for_folder.items() if value]):
        raise UserError(
            f"{given[0]} is for a folder with a card; a single file has none",
            "`tintype card` writes one for the folder that you put it in, and `tintype push` sends that",
        )
    if push is None and (private or yes):
        raise UserError(f"{'--private' if private else '--yes'} is for --push", "give --push OWNER/NAME too")
    card = CardOptions(license=license_, name=name, repo=push, base_model=base_model, with_captions=with_captions)
    run = run_of(run, arm, arm_seed)
    if push is not None:
        _check_push(push, private, yes)
    write = {"diffusers": export_pipeline, "tintype": export_model, "safetensors": export_file}[to]
    with Progress(f"writing {out}", kept=_NOTHING_WRITTEN):
        exported = write(run, out, ExportOptions(weights, dtype, ema_length, card))
    about = exported.about
    answer(folder=str(out), about=dict(about))
    say(console, f"{out}: {about['weights']} weights of step {about['step']} in {about['dtype']}")
    for note in (*about.get("notes", ()), *exported.warnings):
        say(console, f"note: {note}")
    if check:
        from tintype.export.parity import measure

        with Progress("sampling with both", kept=f"{out} is whole; its check was not finished"):
            figures = measure(load_trained(run, weights, ema_length).parts, out, about)
        for figure in figures:
            differ = f"latents differ by {figure.latents:.2g} at most, images in [0, 1] by {figure.images:.2g}"
            say(console, f"guidance {figure.guidance:g}: {differ}")
    if push is not None:
        try:
            _push_folder(out, push, private, yes)
        except UserError as error:
            again = f"`tintype push {quote(str(out))} --repo {quote(push)}`"
            raise UserError(error.marked, f"\nThe export in {out} is whole: {again} sends it") from None


def _check_push(repo: str, private: bool, yes: bool) -> None:
    """Check before gigabytes are written that the user can be asked, is logged in, and may write to the repository."""
    from tintype.export.push import log_in

    _refuse_unasked(yes)
    with Progress(f"checking {repo}", kept=_NOTHING_WRITTEN):
        log_in(repo, private=private)


@app.command("import")
def import_(
    source: Annotated[Path, Argument(help="Folder of diffusers (pipeline or transformer), or a .safetensors file")],
    out: options.Out,
    set_: options.Set = [],  # noqa: B006
    weights: Annotated[options.Weights, Option(help=_WEIGHTS + ", for a file that has both")] = None,
) -> None:
    """Import a PRX model, of diffusers or of PRX's training, as a run that can be sampled, scored and trained."""
    from tintype.export.import_run import import_model

    with Progress(f"reading {source}", kept=_NOTHING_WRITTEN):
        imported = import_model(source, out, set_, weights)
    answer(folder=str(out), plan=imported.plan.hash)
    say(console, f"{out}: a run of plan {imported.plan.hash} at step 0")
    for note in imported.notes:
        say(console, f"note: {note}")
    say(console, f"`tintype train {quote(str(out / 'plan.yaml'))} --out {quote(str(out))}` continues its training")


@app.command()
def card(
    run: options.RunFolder,
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
    out: Annotated[
        Path | None,
        Option(help="File to write, with samples in card-samples beside it; by default the card is printed"),
    ] = None,
    license_: options.License = None,
    name: options.Name = None,
    baseline: Annotated[
        str | None,
        Option(help="Recipe, plan file or run to list the changes against; by default the baseline of the study"),
    ] = None,
    library: Annotated[
        Literal["tintype", "diffusers"], Option(help="Library that loads the model: the run, or an export")
    ] = "tintype",
    repo: Annotated[str | None, Option(help="OWNER/NAME on the hub, for the usage example")] = None,
    dataset: Annotated[list[str], Option(help="Data set on the hub that the model was trained on (repeatable)")] = [],  # noqa: B006
    base_model: options.BaseModel = None,
    with_captions: options.WithCaptions = False,
    ema_length: options.EmaLength = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing card")] = False,
) -> None:
    """Write the model card of a run, as the hub shows it."""
    from tintype.export.model_card import CardOptions, make_card, write_card

    if out is not None and out.is_dir():
        raise UserError(f"--out {out} is a folder", f"name the file: {out / 'README.md'}")
    chosen = CardOptions(
        license=license_,
        library=library,
        name=name,
        repo=repo,
        datasets=tuple(dataset),
        base_model=base_model,
        baseline=baseline,
        ema_length=ema_length,
        with_captions=with_captions,
    )
    made = make_card(run_of(run, arm, arm_seed), chosen)
    if out is None:
        sys.stdout.write(made.text)
    else:
        begin_work()
        written = write_card(made, out, overwrite)
        say(console, f"card: {out}, with {len(written) - 1} samples")
    for warning in made.warnings:
        say(progress_console, f"note: {warning}", "yellow")


@app.command()
def push(
    folder: Annotated[Path, Argument(help="Folder with a model and its card, as `tintype export` writes it")],
    repo: Annotated[str, Option(help="OWNER/NAME on the hub; created if it does not exist")],
    private: Annotated[bool, Option("--private", help="Make a new repository private")] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask; the list of files is shown all the same")] = False,
) -> None:
    """Upload a model with its card to the hub, after showing the files. Running it again resumes."""
    _push_folder(folder, repo, private, yes)


def _refuse_unasked(yes: bool) -> None:
    if not yes and not sys.stdin.isatty():
        raise UserError("stdin is no terminal, so nobody can confirm the upload", "pass --yes to confirm it beforehand")


def _push_folder(folder: Path, repo: str, private: bool, yes: bool) -> None:
    from tintype.export.push import push as send

    _refuse_unasked(yes)

    def consent(upload: Upload, destination: Destination) -> bool:
        _show(upload, destination)
        return yes or typer.confirm("Upload it?", default=False, err=True)

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
    answer(url=pushed.url, commit=pushed.commit)
    say(console, f"{words}: {pushed.url}")


def _show(upload: Upload, destination: Destination) -> None:
    seen = "private" if destination.private else "public"
    state = f"an existing {seen} repository" if destination.exists else f"a new {seen} repository"
    say(console, f"to {destination.url}, {state}, as {destination.account}:")
    table = Table("file", "size")
    sizes = upload.sizes
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        table.add_row(escape(name), decimal(sizes[name]))
    table.add_row(f"{len(sizes)} files", decimal(sum(sizes.values())), style="bold")
    console.print(table)
    if upload.left_out:
        hidden = ", ".join(upload.left_out[:5]) + (", …" if len(upload.left_out) > 5 else "")
        say(console, f"left out: {hidden}")
