"""Commands on tokenizers, and on the packaged scene encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from tintype.cli import options
from tintype.cli.shared import console, group, plan_of, print_json, run_of
from tintype.terminal.lines import say

encoder_app = group("encoder", "Train the scene encoder that comes with tintype.")
tokenizer_app = group("tokenizer", "Train tokenizers, save tuned ones, compare any of them, and cache their latents.")


@encoder_app.command("train")
def encoder_train(
    out: options.Out,
    seed: Annotated[int, Option(min=0, help="Training seed")] = 0,
    steps: Annotated[int, Option(min=1, help="Training steps")] = 8000,
    batch: Annotated[int, Option(min=1, help="Images per step")] = 512,
    device: options.OwnDevice = "cpu",
) -> None:
    """Train the scene encoder anew and measure it. Running it again resumes."""
    from tintype.evaluation.train_scene_encoder import SceneEncoderTraining
    from tintype.runtime.machine import choose_device
    from tintype.terminal.tokenizers import train_encoder_with_progress

    settings = SceneEncoderTraining(seed=seed, steps=steps, batch=batch)
    print_json(train_encoder_with_progress(settings, out, choose_device(device), console))


@tokenizer_app.command("train")
def tokenizer_train(
    out: options.Out,
    kind: Annotated[
        Literal["small-vae", "rae"], Option(help="small-vae, or rae: a decoder of a frozen encoder's tokens")
    ] = "small-vae",
    data: Annotated[
        str | None, Option(help="scenes (default), or a folder, .tar, .parquet file or store of images")
    ] = None,
    set_: Annotated[
        list[str], Option("--set", help="Override a setting: steps=2000, vae.channels=8, perceptual.kind=lpips")
    ] = [],  # noqa: B006
    device: options.OwnDevice = "auto",
) -> None:
    """Train a tokenizer on any images. Running it again resumes, or says that it is done."""
    from tintype.config.strict import parse_assignments
    from tintype.runtime.machine import choose_device
    from tintype.terminal.tokenizers import train_tokenizer_with_progress
    from tintype.tokenizer_lab.train_rae import RaeTraining
    from tintype.tokenizer_lab.train_small_vae import Training
    from tintype.tokenizer_lab.training import TokenizerTraining

    given = [] if data is None else [f"data={json.dumps(data)}"]
    form: type[TokenizerTraining] = RaeTraining if kind == "rae" else Training
    settings = parse_assignments(form, "training", [*set_, *given])
    train_tokenizer_with_progress(settings, out, choose_device(device), console)


@tokenizer_app.command("cache")
def tokenizer_cache(
    recipe: options.Recipe,
    set_: options.Set = [],  # noqa: B006
    technique: options.Techniques = [],  # noqa: B006
    verify: Annotated[
        bool, Option("--verify", help="Hash all images again and encode those that have changed")
    ] = False,
) -> None:
    """Encode all training images of a plan, for runs with run.latents=disk. Running it again resumes."""
    from tintype.terminal.tokenizers import cache_with_progress

    cache_with_progress(plan_of(recipe, set_, technique), verify, console)


@tokenizer_app.command("save")
def tokenizer_save(
    run: Annotated[
        Path, Argument(help="Folder of a run that tuned its tokenizer (technique repa-e), or of a study with --arm")
    ],
    out: options.Out,
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
    device: options.Device = None,
    json_: options.Json = False,
) -> None:
    """Save the autoencoder that a run has tuned as a frozen tokenizer, for other plans."""
    from dataclasses import asdict

    from tintype.terminal.progress import Progress
    from tintype.tokenizer_lab.save_tuned import save_tuned

    with Progress(f"writing {out}"):
        saved = save_tuned(run_of(run, arm, arm_seed), out, device)
    if json_:
        print_json(asdict(saved))
        return
    say(console, f"{out}: the autoencoder of step {saved.step}")
    shown = {"shift": saved.statistics.mean, "scale": [1 / std for std in saved.statistics.std]}
    for name, numbers in shown.items():
        listed = ", ".join(f"{number:.4g}" for number in numbers)
        say(console, f"{name} of its latents: [{listed}]")
    say(console, saved.words)


@tokenizer_app.command("report")
def tokenizer_report(
    tokenizers: Annotated[
        list[str], Argument(help="Kinds (pixels, small-vae:folder=DIR) or folders of trained tokenizers")
    ],
    out: options.Out,
    data: Annotated[str, Option(help="scenes, or a folder, .tar, .parquet file or store of images")] = "scenes",
    set_: Annotated[
        list[str], Option("--set", help='Override a setting: size_px=256, count=512, "encoders=[inception]"')
    ] = [],  # noqa: B006
    device: options.OwnDevice = "auto",
    json_: options.Json = False,
) -> None:
    """Compare tokenizers on any images in one HTML file: quality, compression, speed and latents."""
    from tintype.config.strict import parse_assignments
    from tintype.runtime.machine import choose_device
    from tintype.terminal.progress import Progress
    from tintype.terminal.tokenizers import show_tokenizers
    from tintype.tokenizer_lab.report import ReportSettings, report_tokenizers

    settings = parse_assignments(ReportSettings, "report", [*set_, f"data={json.dumps(data)}"])
    with Progress("loading the tokenizers", kept="no report was written; run the same command again") as bars:
        result = report_tokenizers(tokenizers, settings, out, choose_device(device), bars.show)
    if json_:
        print_json(result)
        return
    show_tokenizers(result, console)
    say(console, str(out / "report.html"))
