"""Commands on tokenizers, and on the packaged scene encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tintype.cli.shared import (
    Arm,
    ArmSeed,
    Commands,
    Device,
    Json,
    Out,
    Recipe,
    Set,
    Techniques,
    app,
    console,
    plan_of,
    print_json,
    run_of,
    settings_of,
)
from tintype.terminal.lines import say

encoder_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Train the scene encoder that comes with tintype.")
app.add_typer(encoder_app, name="encoder")
tokenizer_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Train tokenizers, save tuned ones, compare any of them, and cache their latents.",
)
app.add_typer(tokenizer_app, name="tokenizer")


@encoder_app.command("train")
def encoder_train(
    out: Out,
    seed: Annotated[int, typer.Option(min=0, help="Training seed")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps")] = 8000,
    batch: Annotated[int, typer.Option(min=1, help="Images per step")] = 512,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "cpu",
) -> None:
    """Train the scene encoder anew and measure it. Running it again resumes."""
    from tintype.evaluation.train_scene_encoder import SceneEncoderTraining
    from tintype.runtime.dist import alone
    from tintype.terminal.tokenizers import train_encoder_with_progress
    from tintype.train.parts import choose_device

    alone("tintype encoder train")
    settings = SceneEncoderTraining(seed=seed, steps=steps, batch=batch)
    print_json(train_encoder_with_progress(settings, out, choose_device(device), console))


@tokenizer_app.command("train")
def tokenizer_train(
    out: Out,
    data: Annotated[
        str | None, typer.Option(help="scenes (default), or a folder, .tar, .parquet file or store of images")
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="Override a setting: steps=2000, vae.channels=8, perceptual.kind=lpips")
    ] = [],  # noqa: B006
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
) -> None:
    """Train a small-vae on any images. Running it again resumes, or says that it is done."""
    from tintype.runtime.dist import alone
    from tintype.terminal.tokenizers import train_vae_with_progress
    from tintype.tokenizer_lab.train_small_vae import Training
    from tintype.train.parts import choose_device

    alone("tintype tokenizer train")
    given = [] if data is None else [f"data={json.dumps(data)}"]
    settings = settings_of(Training, "training", [*set_, *given])
    train_vae_with_progress(settings, out, choose_device(device), console)


@tokenizer_app.command("cache")
def tokenizer_cache(
    recipe: Recipe,
    set_: Set = [],  # noqa: B006
    technique: Techniques = [],  # noqa: B006
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash all images again and encode those that have changed")
    ] = False,
) -> None:
    """Encode all training images of a plan, for runs with run.latents=disk. Running it again resumes."""
    from tintype.terminal.tokenizers import cache_with_progress

    cache_with_progress(plan_of(recipe, set_, technique), verify, console)


@tokenizer_app.command("save")
def tokenizer_save(
    run: Annotated[
        Path,
        typer.Argument(help="Folder of a run that tuned its tokenizer (technique repa-e), or of a study with --arm"),
    ],
    out: Out,
    arm: Arm = None,
    arm_seed: ArmSeed = None,
    device: Device = None,
    json_: Json = False,
) -> None:
    """Save the autoencoder that a run has tuned as a frozen tokenizer, for other plans."""
    from dataclasses import asdict

    from tintype.runtime.dist import alone
    from tintype.terminal.progress import Progress
    from tintype.tokenizer_lab.save_tuned import save_tuned

    alone("tintype tokenizer save")
    with Progress(f"writing {out}"):
        saved = save_tuned(run_of(run, arm, arm_seed), out, device)
    if json_:
        print_json(asdict(saved))
        return
    console.print(f"{out}: the autoencoder of step {saved.step}", soft_wrap=True, highlight=False, markup=False)
    shown = {"shift": saved.statistics.mean, "scale": [1 / std for std in saved.statistics.std]}
    for name, numbers in shown.items():
        listed = ", ".join(f"{number:.4g}" for number in numbers)
        console.print(f"{name} of its latents: [{listed}]", soft_wrap=True, highlight=False, markup=False)
    console.print(saved.words, soft_wrap=True, highlight=False, markup=False)


@tokenizer_app.command("report")
def tokenizer_report(
    tokenizers: Annotated[
        list[str],
        typer.Argument(help="Kinds (pixels, small-vae:folder=DIR) or folders of trained small-vaes"),
    ],
    out: Out,
    data: Annotated[str, typer.Option(help="scenes, or a folder, .tar, .parquet file or store of images")] = "scenes",
    set_: Annotated[
        list[str], typer.Option("--set", help='Override a setting: size_px=256, count=512, "encoders=[inception]"')
    ] = [],  # noqa: B006
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    json_: Json = False,
) -> None:
    """Compare tokenizers on any images in one HTML file: quality, compression, speed and latents."""
    from tintype.runtime.dist import alone
    from tintype.terminal.progress import Progress
    from tintype.terminal.tokenizers import show_tokenizers
    from tintype.tokenizer_lab.report import ReportSettings, report_tokenizers
    from tintype.train.parts import choose_device

    alone("tintype tokenizer report")
    settings = settings_of(ReportSettings, "report", [*set_, f"data={json.dumps(data)}"])
    with Progress("loading the tokenizers", kept="no report was written; run the same command again") as bars:
        result = report_tokenizers(tokenizers, settings, out, choose_device(device), bars.show)
    if json_:
        print_json(result)
        return
    show_tokenizers(result, console)
    say(console, str(out / "report.html"))
