"""The command that writes a model card."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tintype.cli.shared import Arm, ArmSeed, EmaLength, RunFolder, app, console, run_of
from tintype.errors import UserError
from tintype.terminal.interrupts import begin_work
from tintype.terminal.lines import progress_console, say

if TYPE_CHECKING:
    from tintype.export.model_card import Library


@app.command()
def card(
    run: RunFolder,
    arm: Arm = None,
    arm_seed: ArmSeed = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write, with the samples beside it; by default the card is printed")
    ] = None,
    license_: Annotated[
        str | None,
        typer.Option(
            "--license", help="Licence as the hub names it: apache-2.0. Without it the card says that it is unknown"
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; by default from its data and plan")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Recipe, plan file or run to list the changes against; by default the baseline of the study"),
    ] = None,
    library: Annotated[
        str, typer.Option(help="Library that loads the model: tintype (the run) or diffusers (an export)")
    ] = "tintype",
    repo: Annotated[str | None, typer.Option(help="OWNER/NAME on the hub, for the usage example")] = None,
    dataset: Annotated[
        list[str], typer.Option(help="Data set on the hub that the model was trained on (repeatable)")
    ] = [],  # noqa: B006
    base_model: Annotated[str | None, typer.Option(help="Model on the hub that the training started from")] = None,
    with_captions: Annotated[
        bool, typer.Option("--with-captions", help="Show captions of your own data beside the samples")
    ] = False,
    ema_length: EmaLength = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing card")] = False,
) -> None:
    """Write the model card of a run, as the hub shows it."""
    from tintype.export.model_card import CardOptions, make_card, write_card
    from tintype.runtime.dist import alone

    alone("tintype card")
    if out is not None and out.is_dir():
        raise UserError(f"--out {out} is a folder; name the file: {out / 'README.md'}")
    made = make_card(
        run_of(run, arm, arm_seed),
        CardOptions(
            license=license_,
            library=cast("Library", library),
            repo=repo,
            name=name,
            baseline=baseline,
            datasets=tuple(dataset),
            base_model=base_model,
            with_captions=with_captions,
            ema_length=ema_length,
        ),
    )
    if out is None:
        sys.stdout.write(made.text)
    else:
        begin_work()
        written = write_card(made, out, overwrite)
        say(console, f"card: {out}, with {len(written) - 1} samples")
    for warning in made.warnings:
        say(progress_console, f"note: {warning}", "yellow")
