"""Commands that export a run and import a model."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal, cast

import typer

from tintype.cli.shared import Arm, ArmSeed, EmaLength, Out, RunFolder, Set, app, console, run_of
from tintype.errors import UserError
from tintype.terminal.progress import Progress

_NOTHING_WRITTEN = "nothing was written; run the same command again"
_WEIGHTS = "raw or average; by default the average if there is one"


@app.command("export")
def export(
    run: RunFolder,
    to: Annotated[
        str,
        typer.Option(
            help="diffusers (folder of a pipeline), tintype (folder that tintype opens, for any run) or safetensors "
            "(the denoiser in one file)"
        ),
    ],
    out: Out,
    arm: Arm = None,
    arm_seed: ArmSeed = None,
    weights: Annotated[str | None, typer.Option(help=_WEIGHTS)] = None,
    ema_length: EmaLength = None,
    dtype: Annotated[str, typer.Option(help="fp32 or bf16: type of all weights")] = "fp32",
    check: Annotated[
        bool, typer.Option("--check", help="Sample with tintype and with diffusers, and print the largest difference")
    ] = False,
    license_: Annotated[
        str | None, typer.Option("--license", help="Licence for the card, as the hub names it: apache-2.0")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model, for the card")] = None,
    base_model: Annotated[
        str | None, typer.Option(help="Model on the hub that the training started from, for the card")
    ] = None,
    with_captions: Annotated[
        bool, typer.Option("--with-captions", help="Show captions of your own data in the card")
    ] = False,
    push: Annotated[str | None, typer.Option(help="OWNER/NAME on the hub: ask, then upload it there")] = None,
    private: Annotated[bool, typer.Option("--private", help="With --push: make a new repository private")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --push: do not ask; the list of files is shown all the same")
    ] = False,
) -> None:
    """Export a run: as a PRX pipeline of diffusers, as a folder for tintype, or its denoiser as one file."""
    from tintype.export.model_card import CardOptions
    from tintype.export.model_folder import export_model
    from tintype.export.pipeline_folder import export_pipeline
    from tintype.export.single_file import export_file
    from tintype.runtime.dist import alone

    alone("tintype export")
    _one_of("--to", to, ("diffusers", "tintype", "safetensors"))
    _one_of("--dtype", dtype, ("fp32", "bf16"))
    if check and to != "diffusers":
        raise UserError("--check compares with a pipeline of diffusers; leave it out, or take --to diffusers")
    for_folder = {"--license": license_, "--name": name, "--base-model": base_model, "--with-captions": with_captions}
    for_folder |= {"--push": push}
    if to == "safetensors" and (given := [option for option, value in for_folder.items() if value]):
        raise UserError(
            f"{given[0]} is for a folder with a card; a single file has none: `tintype card` writes one for the folder "
            "that you put it in, and `tintype push` sends that"
        )
    if push is None and (private or yes):
        raise UserError(f"{'--private' if private else '--yes'} is for --push; give --push OWNER/NAME too")
    kind, chosen = cast(Literal["fp32", "bf16"], dtype), _weights(weights)
    card = CardOptions(license=license_, name=name, repo=push, base_model=base_model, with_captions=with_captions)
    run = run_of(run, arm, arm_seed)
    if push is not None:
        _check_push(push, private, yes)
    with Progress(f"writing {out}", kept=_NOTHING_WRITTEN):
        if to == "diffusers":
            exported = export_pipeline(run, out, chosen, kind, card, ema_length)
        elif to == "tintype":
            exported = export_model(run, out, chosen, kind, card, ema_length)
        else:
            exported = export_file(run, out, chosen, kind, ema_length)
    about = exported.about
    _say(f"{out}: {about['weights']} weights of step {about['step']} in {about['dtype']}")
    for note in (*exported.notes, *exported.warnings):
        _say(f"note: {note}")
    if check:
        from tintype.export.parity import measure
        from tintype.export.trained import load_trained

        with Progress("sampling with both", kept=f"{out} is whole; its check was not finished"):
            fresh = load_trained(run, chosen, ema_length)
            figures = measure(fresh.parts, out, about)
        for figure in figures:
            _say(
                f"guidance {figure.guidance:g}: latents differ by {figure.latents:.2g} at most, images in [0, 1] by "
                f"{figure.images:.2g}"
            )
    if push is not None:
        _push(out, push, private, yes)


def _check_push(repo: str, private: bool, yes: bool) -> None:
    """Check before gigabytes are written that the user can be asked, is logged in, and may write to the repository."""
    from tintype.cli.push import refuse_unasked
    from tintype.export.push import check_name, log_in

    check_name(repo)
    refuse_unasked(yes)
    with Progress(f"checking {repo}", kept=_NOTHING_WRITTEN):
        log_in(repo, private=private)


def _push(out: Path, repo: str, private: bool, yes: bool) -> None:
    from tintype.cli.push import push_folder

    try:
        push_folder(out, repo, private, yes)
    except UserError as error:
        raise UserError(
            f"{error}\nThe export in {out} is whole: `tintype push {quote(str(out))} --repo {quote(repo)}` sends it"
        ) from None


def _one_of(option: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise UserError(f"{option} {value}: valid are {', '.join(valid)}")


def _weights(value: str | None) -> Literal["raw", "average"] | None:
    if value is not None:
        _one_of("--weights", value, ("raw", "average"))
    return cast(Literal["raw", "average"] | None, value)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


@app.command("import")
def import_(
    source: Annotated[
        Path, typer.Argument(help="Folder of diffusers (pipeline or transformer), or a .safetensors file")
    ],
    out: Out,
    set_: Set = [],  # noqa: B006
    weights: Annotated[str | None, typer.Option(help=_WEIGHTS + ", for a file that has both")] = None,
) -> None:
    """Import a PRX model, of diffusers or of PRX's training, as a run that can be sampled, scored and trained."""
    from tintype.export.import_run import import_model
    from tintype.runtime.dist import alone

    alone("tintype import")
    with Progress(f"reading {source}", kept=_NOTHING_WRITTEN):
        imported = import_model(source, out, set_, _weights(weights))
    _say(f"{out}: a run of plan {imported.plan.hash} at step 0")
    for note in imported.notes:
        _say(f"note: {note}")
    _say(f"`tintype train {quote(str(out / 'plan.yaml'))} --out {quote(str(out))}` continues its training")
