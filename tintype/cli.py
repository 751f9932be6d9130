"""The command line. A user's mistake is one message and exit code 2; an interrupted command exits with 130 or 143."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Column, Table
from safetensors import SafetensorError

import tintype
from tintype.errors import UserError

if TYPE_CHECKING:
    from tintype.settings import Settings

S = TypeVar("S", bound="Settings")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Trains text-to-image models from scratch and says which training decisions are worth it.",
)
plan_app = typer.Typer(no_args_is_help=True, help="Show, compare and describe plans.")
encoder_app = typer.Typer(no_args_is_help=True, help="The packaged scene encoder.")
tokenizer_app = typer.Typer(
    no_args_is_help=True, help="Train tokenizers, save tuned ones, compare any of them, and cache their latents."
)
data_app = typer.Typer(no_args_is_help=True, help="Pictures of one's own: bring them into a store, and look at it.")
app.add_typer(data_app, name="data")
app.add_typer(plan_app, name="plan")
app.add_typer(encoder_app, name="encoder")
app.add_typer(tokenizer_app, name="tokenizer")

console = Console()
progress_console = Console(stderr=True)
LAUNCHED = "TORCHELASTIC_RUN_ID"
"""What torchrun sets; `world.launched` would import torch for every command."""
"""In the environment of processes that `torchrun` started."""

Out = Annotated[Path, typer.Option("--out", help="Folder to write to")]
Set = Annotated[list[str], typer.Option("--set", help="Override a setting: key.path=value (repeatable)")]
Techniques = Annotated[
    list[str], typer.Option("--technique", help="Apply a technique: name or name:key=value (repeatable)")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; by default as the run's plan says")]
EmaLength = Annotated[
    float | None,
    typer.Option(help="Use the weight average of this length, made of the snapshots of a run with power-ema"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]


def main() -> None:
    try:
        if LAUNCHED in os.environ:
            _run_as_rank()
        else:
            _run(_say_error)
    except UserError as error:
        _say_error(str(error))
        sys.exit(2)


def _run_as_rank() -> None:
    """Of several processes the first talks. Torch is imported before a command needs it: they meet to speak as one."""
    from tintype import world

    with world.joined() as ranks:
        console.quiet = progress_console.quiet = not ranks.leads
        _run(lambda text: ranks.say_once(text, _say_error))


def _run(say_error: Callable[[str], None]) -> None:
    try:
        app()
    except UserError as error:
        say_error(str(error))
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)
    except (OSError, SafetensorError) as error:  # a full disk, a missing permission: nothing that was whole is lost
        name = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        say_error(f"{reason}{name}. Mend this, then run the same command again to go on")
        sys.exit(2)


def _say_error(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"error: {text}", style="red", markup=False, highlight=False)


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"tintype {tintype.__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it")] = False,
) -> None:
    pass


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or the path of a plan")],
    out: Out,
    set_: Set = [],  # noqa: B006
    technique: Techniques = [],  # noqa: B006
) -> None:
    """Train one plan. Running it again goes on where it stopped, or says that it is done."""
    from tintype.terminal import train_with_progress

    code = train_with_progress(_plan(recipe, set_, technique), out, console)
    if code:
        sys.exit(code)


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(help="Folder of a run")],
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts")] = None,
    out: Out = Path("samples"),
    prompt_file: Annotated[Path | None, typer.Option(help="A text file with one prompt on each line")] = None,
    count: Annotated[int, typer.Option(min=1, help="Images for each prompt")] = 1,
    steps: Annotated[int, typer.Option(min=1)] = 50,
    guidance: Annotated[float, typer.Option(min=0, help="Scale of the guidance; 1 switches it off")] = 3.5,
    guidance_kind: Annotated[str, typer.Option(help="classifier-free, self or path-drop")] = "classifier-free",
    guidance_interval: Annotated[
        tuple[float, float], typer.Option(help="The times t between which guidance is used; t = 1 is noise")
    ] = (0.0, 1.0),
    unbias: Annotated[bool, typer.Option(help="Undo the bias of the run's own contrastive loss")] = False,
    method: Annotated[str, typer.Option(help="euler or heun")] = "euler",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    size: Annotated[int | None, typer.Option(min=1, help="Width and height in pixels; by default as trained")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images made at a time")] = 16,
    ema_length: EmaLength = None,
    device: Device = None,
) -> None:
    """Generate images from prompts: PNGs with their settings inside, and a contact sheet."""
    from tintype.generate import SamplerSettings
    from tintype.sample import sample_run
    from tintype.strict import Document, parse

    from_t, to_t = guidance_interval
    guided = {"kind": guidance_kind, "scale": guidance, "from_t": from_t, "to_t": to_t, "unbias": unbias}
    values = {"method": method, "steps": steps, "guidance": guided, "batch": batch}
    settings = parse(SamplerSettings, Document("sample", values))
    written = sample_run(
        run,
        list(prompts or []),
        prompt_file,
        out,
        settings,
        count=count,
        seed=seed,
        size_px=size,
        device=device,
        ema_length=ema_length,
    )
    console.print(f"images: {len(written) - 1}, all on {written[-1]}", soft_wrap=True, highlight=False)


@app.command()
def evaluate(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run")] = None,
    images: Annotated[Path | None, typer.Option(help="Score these pictures instead of a run")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="What --images are compared with: pictures, or a file of --save-reference")
    ] = None,
    save_reference: Annotated[
        Path | None, typer.Option(help="Keep the reference's features as FILE.safetensors")
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="Override the protocol: count=256, sampler.steps=20, encoders=[clip]")
    ] = [],  # noqa: B006
    ema_length: EmaLength = None,
    device: Device = None,
    json_: Json = False,
) -> None:
    """Score a run, or any set of pictures against another: a folder, a .tar or a .parquet file each."""
    if (run is None) == (images is None) or (images is None) != (reference is None):
        raise UserError("give the folder of a run, or --images A --reference B")
    if run is not None and save_reference is not None:
        raise UserError("--save-reference goes with --images and --reference; a run keeps its reference by itself")
    if run is None and ema_length is not None:
        raise UserError("--ema-length chooses among the weights of a run; --images have none")
    if images is not None and reference is not None:
        _evaluate_images(images, reference, save_reference, set_, device, json_)
    elif run is not None:
        _evaluate_run(run, set_, ema_length, device, json_)


def _evaluate_run(run: Path, assignments: list[str], ema_length: float | None, device: str | None, json_: bool) -> None:
    from tintype.evaluation.protocol import Protocol, definitions
    from tintype.evaluation.run import evaluate as score
    from tintype.plan import plan_from_folder
    from tintype.terminal import sampling_progress, show_evaluation
    from tintype.train.reconstruct import reconstruction

    protocol = _settings(Protocol, "evaluation", assignments)
    average = reconstruction(run, ema_length) if ema_length is not None else None
    with sampling_progress(progress_console) as on_step:
        result = score(run, protocol, on_step, device, average)
    if json_:
        _print_json(result)
        return
    title = f"{run} at step {result['step']} ({result['weights']} weights)"
    show_evaluation(title, result, definitions(protocol, plan_from_folder(run).data.of_scenes), console)


def _evaluate_images(
    images: Path, reference: Path, saved: Path | None, assignments: list[str], device: str | None, json_: bool
) -> None:
    from tintype.evaluation.images import ImageProtocol, evaluate_images, image_definitions
    from tintype.terminal import image_progress, show_evaluation
    from tintype.train.parts import choose_device
    from tintype.world import alone

    alone("tintype evaluate --images")
    protocol = _settings(ImageProtocol, "evaluation", assignments)
    with image_progress(Console(stderr=True)) as on_images:
        result = evaluate_images(images, reference, protocol, choose_device(device or "auto"), saved, on_images)
    if json_:
        _print_json(result)
        return
    counts = f"{result['images']['count']:,} against {result['reference']['count']:,} pictures"
    show_evaluation(f"{images} against {reference}: {counts}", result, image_definitions(protocol), console)


@app.command()
def ema(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was trained with power-ema")],
    lengths: Annotated[
        str, typer.Option(help="Lengths of the weight average, as shares of the training")
    ] = "0.03,0.05,0.075,0.1,0.15,0.2,0.25",
    metric: Annotated[str | None, typer.Option(help="What the curve shows; by default the protocol's first")] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="Override the protocol: count=256, sampler.steps=20, encoders=[clip]")
    ] = [],  # noqa: B006
    device: Device = None,
    json_: Json = False,
) -> None:
    """Score a run with weight averages of several lengths. Running it again goes on where it stopped."""
    from tintype.evaluation.ema_curve import check_metric, read_lengths
    from tintype.evaluation.protocol import Protocol
    from tintype.plan import plan_from_folder
    from tintype.terminal import ema_with_progress, show_ema_curve

    protocol = _settings(Protocol, "evaluation", set_)
    wanted = check_metric(protocol, metric, plan_from_folder(run).data.of_scenes)
    curve, code = ema_with_progress(run, read_lengths(lengths), protocol, wanted, progress_console, device)
    if json_:
        _print_json(curve.as_json())
    else:
        show_ema_curve(curve, console)
    if code:
        sys.exit(code)


@app.command()
def ablate(
    study: Annotated[str, typer.Argument(help="A study's name or the path of a study file")],
    out: Out,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time")] = 1,
    set_: Annotated[
        list[str], typer.Option("--set", help="Override the study: seeds=[0,1] or set=[optimizer.lr=2e-4]")
    ] = [],  # noqa: B006
    arm: Annotated[list[str], typer.Option("--arm", help="Only this arm (repeatable)")] = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the arms and stop")] = False,
) -> None:
    """Run a study: every arm with every seed, then the comparison and the report."""
    from tintype.study.lab import run_study
    from tintype.study.study import choose_arms, load_study
    from tintype.terminal import show_arms
    from tintype.world import alone

    alone("tintype ablate")
    resolved = load_study(study, set_)
    if arm:
        resolved = choose_arms(resolved, arm)
    show_arms(resolved, console)
    if not dry_run:
        code = run_study(resolved, out, jobs, console)
        if code:
            sys.exit(code)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a study")],
    without_data: Annotated[
        bool, typer.Option("--without-data", help="Leave out pictures and captions of data that must not be passed on")
    ] = False,
) -> None:
    """Write a study's report again from the files of its runs."""
    from tintype.study.lab import report_study
    from tintype.world import alone

    alone("tintype report")
    report_study(folder, console, without_data)


@app.command()
def power(
    studies: Annotated[list[Path] | None, typer.Argument(help="Folders or results.json of past studies")] = None,
    effect: Annotated[str, typer.Option(help="The change worth finding: 5% of the baseline's value, or 0.02")] = "5%",
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of each arm in the new study")] = 3,
    metric: Annotated[str | None, typer.Option(help="Only this metric")] = None,
    arms: Annotated[int, typer.Option(min=1, help="Arms of the new study, its control included")] = 3,
    control: Annotated[bool, typer.Option(help="Whether one of the arms is the control")] = True,
    resolutions: Annotated[int, typer.Option(min=1, help="Resolutions of the new study")] = 1,
    without: Annotated[list[str], typer.Option(help="Leave this arm out of the measured spread (repeatable)")] = [],  # noqa: B006
    json_: Json = False,
) -> None:
    """How many seeds a study needs, from the spread that past studies measured."""
    from pydantic import TypeAdapter

    from tintype.study.power import PowerPlan, plan_power
    from tintype.study.power_table import show_power

    plan = plan_power(studies or [Path("studies")], effect, seeds, metric, arms, without, resolutions, control)
    if json_:
        _print_json(TypeAdapter(PowerPlan).dump_python(plan, mode="json"))
        return
    show_power(plan, console)


@app.command(hidden=True)
def calibrate(
    out: Out,
    studies: Annotated[int, typer.Option(min=2, help="Simulated studies of each kind")] = 1000,
) -> None:
    """Simulate studies in which the truth is known, and measure how often the statistics are wrong."""
    from tintype.study.calibration import calibrate as simulate
    from tintype.study.calibration import write_calibration
    from tintype.world import alone

    alone("tintype calibrate")
    with console.status("simulating") as status:
        found = simulate(studies, lambda name: status.update(f"simulating: {name}"))
    for path in write_calibration(out, found):
        console.print(str(path), soft_wrap=True, highlight=False)


@app.command()
def techniques(json_: Json = False) -> None:
    """List the techniques."""
    from tintype.techniques import TECHNIQUES

    rows = [
        {
            "name": t.name,
            "seam": t.seam,
            "summary": t.summary,
            "paper": t.paper,
            "options": t.options.model_json_schema(),
        }
        for t in TECHNIQUES.values()
    ]
    if json_:
        _print_json(rows)
        return
    table = Table(Column("technique", no_wrap=True), Column("seam", no_wrap=True), "what it does, options, paper")
    for t in TECHNIQUES.values():
        lines = [t.summary, _options(t.options), t.paper or ""]
        table.add_row(t.name, t.seam, "\n".join(filter(None, lines)))
    console.print(table)


def _options(options: type[Settings]) -> str:
    """Each option with its default, where it has one."""
    from tintype.settings import Settings, plain

    shown = []
    for key, field in options.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            default = plain(default).get("kind", "")
        default = str(default).lower() if isinstance(default, bool) else default
        shown.append(key if default is None or field.is_required() else f"{key}={default}")
    return ", ".join(shown)


@plan_app.command("show")
def plan_show(
    recipe: str,
    set_: Set = [],  # noqa: B006
    technique: Techniques = [],  # noqa: B006
) -> None:
    """Print a plan with every default resolved."""
    plan = _plan(recipe, set_, technique)
    sys.stdout.write(f"# hash: {plan.hash}\n{plan.to_yaml()}")


@plan_app.command("diff")
def plan_diff(first: str, second: str) -> None:
    """Compare two plans: recipes, plan files or run folders."""
    from tintype.plan import diff

    changes = diff(_any_plan(first), _any_plan(second))
    for key, (before, after) in changes.items():
        sys.stdout.write(f"{key}: {before} -> {after}\n")
    if not changes:
        sys.stdout.write("the same, but for the seed and housekeeping at most\n")


@plan_app.command("schema")
def plan_schema() -> None:
    """Print the JSON schema of plans, for editors that complete."""
    from tintype.plan import Plan

    _print_json(Plan.model_json_schema())


@encoder_app.command("train")
def encoder_train(
    out: Out,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    steps: Annotated[int, typer.Option(min=1)] = 8000,
    batch: Annotated[int, typer.Option(min=1)] = 512,
    device: Annotated[str, typer.Option()] = "cpu",
) -> None:
    """Train the scene encoder anew and measure it."""
    from tintype.terminal import step_progress
    from tintype.train.parts import choose_device
    from tintype.vision.train_scene_encoder import train as train_encoder
    from tintype.world import alone

    alone("tintype encoder train")
    choose_device(device)
    with step_progress(Console(stderr=True), steps) as on_step:
        record = train_encoder(out, seed, steps, batch, device, on_step)
    _print_json(record)


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
        _print_json(opened.about.model_dump())
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


@tokenizer_app.command("train")
def tokenizer_train(
    out: Out,
    data: Annotated[
        str | None, typer.Option(help="scenes (by default), or a folder, .tar, .parquet file or store of pictures")
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="Override a setting: steps=2000, vae.channels=8, perceptual.kind=lpips")
    ] = [],  # noqa: B006
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
) -> None:
    """Train a small-vae on any pictures. Running it again goes on where it stopped, or says that it is done."""
    from tintype.terminal import train_vae_with_progress
    from tintype.tokenizers.train_small_vae import Training
    from tintype.train.parts import choose_device
    from tintype.world import alone

    alone("tintype tokenizer train")
    given = [] if data is None else [f"data={json.dumps(data)}"]
    settings = _settings(Training, "training", [*set_, *given])
    code = train_vae_with_progress(settings, out, choose_device(device), console)
    if code:
        sys.exit(code)


@tokenizer_app.command("cache")
def tokenizer_cache(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or the path of a plan")],
    set_: Set = [],  # noqa: B006
    technique: Techniques = [],  # noqa: B006
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash all images again and encode those that have changed")
    ] = False,
) -> None:
    """Encode all training images of a plan once, for all runs with run.latents=disk. Running it again goes on."""
    from tintype.terminal import cache_with_progress

    code = cache_with_progress(_plan(recipe, set_, technique), verify, console, progress_console)
    if code:
        sys.exit(code)


@tokenizer_app.command("save")
def tokenizer_save(
    run: Annotated[Path, typer.Argument(help="Folder of a run that tuned its tokenizer (technique repa-e)")],
    out: Out,
    device: Device = None,
    json_: Json = False,
) -> None:
    """Write the autoencoder that a run has tuned as a frozen tokenizer, with its statistics, for any other plan."""
    from dataclasses import asdict

    from tintype.tokenizers.save_tuned import save_tuned
    from tintype.world import alone

    alone("tintype tokenizer save")
    saved = save_tuned(run, out, device)
    if json_:
        _print_json(asdict(saved))
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
        typer.Argument(help="Each a kind (pixels, or small-vae:folder=DIR) or a folder of a trained small-vae"),
    ],
    out: Out,
    data: Annotated[str, typer.Option(help="scenes, or a folder, .tar, .parquet file or store of pictures")] = "scenes",
    set_: Annotated[
        list[str], typer.Option("--set", help="Override a setting: size_px=256, count=512, encoders=[inception]")
    ] = [],  # noqa: B006
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    json_: Json = False,
) -> None:
    """Compare tokenizers on any pictures: quality, compression, speed, latents and pictures, in one HTML file."""
    from tintype.terminal import image_progress, show_tokenizers
    from tintype.tokenizers.report import ReportSettings, report_tokenizers
    from tintype.train.parts import choose_device
    from tintype.world import alone

    alone("tintype tokenizer report")
    settings = _settings(ReportSettings, "report", [*set_, f"data={json.dumps(data)}"])
    with image_progress(progress_console) as on_images:
        result = report_tokenizers(tokenizers, settings, out, choose_device(device), on_images)
    if json_:
        _print_json(result)
        return
    show_tokenizers(result, console)
    console.print(str(out / "report.html"), soft_wrap=True, highlight=False)


@app.command()
def bench(
    recipe: Annotated[str, typer.Option(help="The plan to measure")] = "pocket",
    steps: Annotated[int, typer.Option(min=2, help="Training steps to time")] = 40,
    set_: Set = [],  # noqa: B006
    technique: Annotated[
        list[str], typer.Option("--technique", help="Measure training alone, without and with this (repeatable)")
    ] = [],  # noqa: B006
    tokens: Annotated[
        str | None, typer.Option(help="Measure training alone, at these numbers of image tokens: 256,1024")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Measure training alone, with so many images a step: 32,256")
    ] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="Time the metrics on 10,000 pictures instead")] = False,
    json_: Json = False,
) -> None:
    """Measure training, sampling and rendering speed, with the time split by part; or what techniques do to the speed
    of training; or the speed of the metrics."""
    from tintype.bench import measure
    from tintype.metrics.speed import time_feature_metrics
    from tintype.train.parts import choose_device
    from tintype.world import alone

    alone("tintype bench")
    plan = _plan(recipe, set_, [])
    if technique or tokens is not None or batch is not None:
        if metrics:
            raise UserError("--metrics times the metrics and no training; leave out --technique, --tokens and --batch")
        counts, batches = _whole_numbers("--tokens", tokens, "256,1024"), _whole_numbers("--batch", batch, "32,256")
        _bench_training(plan, technique, counts, batches, steps, json_)
        return
    if metrics:
        sizes, device = (768, 1024, 2048), choose_device(plan.run.device)
        result = {f"seconds, 10,000 × {size}": time_feature_metrics(10_000, size, device) for size in sizes}
    else:
        result = measure(plan, steps)
    if json_:
        _print_json(result)
        return
    for name, value in result.items():
        inner = value if isinstance(value, dict) else {"": value}
        rounded = {key: f"{v:.3g}" if isinstance(v, float) else v for key, v in inner.items()}
        shown = ", ".join(f"{key} {v}".strip() for key, v in rounded.items())
        console.print(f"{name}: {shown}", highlight=False, soft_wrap=True)


def _whole_numbers(option: str, value: str | None, example: str) -> list[int]:
    """Those of an option like --tokens 256,1024; none where it was not given."""
    numbers = value.split(",") if value is not None else []
    for number in numbers:
        if not number.strip().isdecimal() or not int(number):
            raise UserError(f"{option} {value}: '{number}' is no whole number above 0; write it as {option} {example}")
    return [int(number) for number in numbers]


def _bench_training(
    plan: Any, techniques: list[str], tokens: list[int], batches: list[int], steps: int, json_: bool
) -> None:
    from tintype.bench import compare, show

    with Console(stderr=True).status("measuring") as status:
        result = compare(plan, techniques, tokens, batches, steps, lambda row: status.update(f"measuring: {row}"))
    if json_:
        _print_json(result)
        return
    show(result, console)


@app.command()
def audit(
    target: Annotated[str, typer.Argument(help="A recipe's name, the path of a plan, or the folder of a run")],
    steps: Annotated[int, typer.Option(min=1, help="Real steps to watch")] = 4,
    set_: Set = [],  # noqa: B006
    technique: Techniques = [],  # noqa: B006
    device: Device = None,
    json_: Json = False,
) -> None:
    """Find what silently loses precision: runs a few steps, changes nothing; exit code 1 where something does."""
    from tintype.audit.report import as_json, show_audit
    from tintype.audit.run import audit_plan, audit_run

    of_run = Path(target).is_dir()
    if of_run and (set_ or technique):
        raise UserError(f"{target} is a run, which has its plan; --set and --technique are for recipes and plan files")
    with progress_console.status("building") as status:

        def on_step(step: int) -> None:
            status.update(f"step {step + 1} of {steps}")

        if of_run:
            found = audit_run(Path(target), steps, device, on_step)
        else:
            chosen = [*set_, *([f"run.device={device}"] if device is not None else [])]
            found = audit_plan(_plan(target, chosen, technique), steps, on_step)
    if json_:
        _print_json(as_json(found))
    else:
        show_audit(found, f"precision of {target}", console)
    if found.exit_code:
        sys.exit(found.exit_code)


def _settings(model: type[S], name: str, assignments: list[str]) -> S:
    from tintype.strict import Document, parse

    document = Document(name, {})
    for assignment in assignments:
        document.override(assignment)
    return parse(model, document)


def _plan(recipe: str, assignments: list[str], technique_specs: list[str]) -> Any:
    from tintype import recipes
    from tintype.plan import apply_techniques, plan_from_document

    return apply_techniques(plan_from_document(recipes.find("plans", recipe), assignments), technique_specs)


def _any_plan(name: str) -> Any:
    from tintype.plan import plan_from_folder

    return plan_from_folder(Path(name)) if Path(name).is_dir() else _plan(name, [], [])


def _print_json(value: Any) -> None:
    if console.quiet:  # another rank prints it
        return
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")
