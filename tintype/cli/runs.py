"""Commands on runs: train, sample, evaluate, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tintype.cli import options
from tintype.cli.shared import app, console, plan_of, print_json, run_of, settings_of
from tintype.errors import UserError
from tintype.terminal.answers import answer
from tintype.terminal.lines import progress_console, say


@app.command()
def train(
    recipe: options.Recipe,
    out: options.Out,
    set_: options.Set = [],  # noqa: B006
    technique: options.Techniques = [],  # noqa: B006
) -> None:
    """Train one plan. Running it again resumes, or says that it is done."""
    from tintype.terminal.runs import train_with_progress

    train_with_progress(plan_of(recipe, set_, technique), out, console)


@app.command()
def sample(
    run: options.RunFolder,
    prompts: Annotated[list[str] | None, Argument(help="Prompts")] = None,
    out: options.Out = Path("samples"),
    prompt_file: Annotated[Path | None, Option(help="Text file with one prompt per line")] = None,
    count: Annotated[int, Option(min=1, help="Images per prompt")] = 1,
    steps: Annotated[int, Option(min=1, help="Sampling steps")] = 50,
    guidance: Annotated[float, Option(min=0, help="Guidance scale; 1 switches guidance off")] = 3.5,
    guidance_kind: Annotated[
        str | None,
        Option(
            help="What the guided velocity is led away from: classifier-free, self, path-drop, autoguidance, or a kind "
            "of a plugin; by default the plan's sampling.guidance"
        ),
    ] = None,
    guide_step: Annotated[
        float | None,
        Option(help="autoguidance: step of the run's earlier weights, or a share of the training", show_default=False),
    ] = None,
    guide_length: Annotated[
        float | None, Option(help="autoguidance: length of the earlier weight average (power-ema)", show_default=False)
    ] = None,
    guidance_interval: Annotated[
        tuple[float, float], Option(help="Interval of t in which guidance is used; t = 1 is noise")
    ] = (0.0, 1.0),
    unbias: Annotated[bool, Option(help="Undo the bias of the run's contrastive loss")] = False,
    method: Annotated[str, Option(help="Sampler: euler, heun, or one of a plugin")] = "euler",
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
    seed: Annotated[int, Option(min=0, help="Seed of the noise (--arm-seed is the seed of the run)")] = 0,
    size: Annotated[
        str | None,
        Option(metavar="PX|WIDTHxHEIGHT", help="Side of squares in pixels, or 832x1248; by default as in training"),
    ] = None,
    batch: Annotated[int, Option(min=1, help="Images per batch")] = 16,
    ema_length: options.EmaLength = None,
    device: options.Device = None,
) -> None:
    """Generate images from prompts: PNGs that contain their settings, and a contact sheet."""
    from tintype.config.strict import Document, KeyPath, parse
    from tintype.plan import plan_from_folder
    from tintype.sampling.generate import SamplerSettings
    from tintype.sampling.sample import read_size, sample_run
    from tintype.terminal.progress import Progress

    from_t, to_t = guidance_interval
    folder = run_of(run, arm, arm_seed)
    kind = guidance_kind or plan_from_folder(folder).sampling.guidance
    guided = {"kind": kind, "scale": guidance, "from_t": from_t, "to_t": to_t, "unbias": unbias}
    earlier: dict[str, float | None] = {"step": guide_step, "length": guide_length}
    if kind != "autoguidance" and any(one is not None for one in earlier.values()):
        raise UserError(
            "--guide-step and --guide-length go with --guidance-kind autoguidance", "add it, or leave them out"
        )
    if guide_step is not None and guide_step.is_integer():
        earlier["step"] = int(guide_step)
    guided |= {key: value for key, value in earlier.items() if value is not None}
    values = {"method": method, "steps": steps, "guidance": guided, "batch": batch}
    places: dict[KeyPath, str] = {
        ("guidance",): f"--guidance-kind {kind} --guidance-interval {from_t:g} {to_t:g}",
        ("method",): f"--method {method}",
    }
    settings = parse(SamplerSettings, Document("sample", values, places))
    with Progress("loading the run", kept=f"images of whole batches are in {out}; run the same command again") as bars:
        written = sample_run(
            folder,
            list(prompts or []),
            prompt_file,
            out,
            settings,
            count=count,
            seed=seed,
            size_px=None if size is None else read_size(size),
            device=device,
            ema_length=ema_length,
            on_images=lambda done, total: bars.show("sampling", done, total),
        )
    answer(images=[str(path) for path in written[:-1]], sheet=str(written[-1]))
    numbers = "" if written[0].name.startswith("0000") else f"; from {written[0].name}, after those that were there"
    say(console, f"images: {len(written) - 1}, all on {written[-1]}{numbers}")


@app.command()
def evaluate(
    run: Annotated[Path | None, Argument(help="Folder of a run, or of a study with --arm")] = None,
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
    images: Annotated[Path | None, Option(help="Score these images instead of a run")] = None,
    reference: Annotated[
        Path | None, Option(help="Images to compare --images with, or a file written by --save-reference")
    ] = None,
    save_reference: Annotated[
        Path | None, Option(help="Save the features of the reference as FILE.safetensors")
    ] = None,
    set_: options.SetProtocol = [],  # noqa: B006
    ema_length: options.EmaLength = None,
    follow_links: Annotated[
        bool, Option("--follow-links", help="Follow symbolic links out of the folder of --images")
    ] = False,
    device: options.Device = None,
    threads: options.Threads = None,
    json_: options.Json = False,
) -> None:
    """Score a run, or any set of images against another: a folder, a .tar or a .parquet file each."""
    if (run is None) == (images is None) or (images is None) != (reference is None):
        raise UserError("nothing to evaluate", "give the folder of a run, or --images A --reference B")
    if run is not None and save_reference is not None:
        raise UserError(
            "--save-reference goes with --images and --reference; a run keeps its reference by itself", "leave it out"
        )
    if run is None and (arm is not None or arm_seed is not None):
        raise UserError("--arm and --arm-seed choose a run of a study; --images have none", "leave them out")
    if run is None and ema_length is not None:
        raise UserError("--ema-length chooses among the weights of a run; --images have none", "leave it out")
    if run is not None and follow_links:
        raise UserError("--follow-links is for the folders of --images and --reference", "leave it out for a run")
    if run is None and threads is not None:
        raise UserError("--threads goes with a run", "for --images set OMP_NUM_THREADS")
    from tintype.evaluation.images import evaluate_images, image_definitions
    from tintype.evaluation.progress import Scoring
    from tintype.evaluation.protocol import ImageProtocol, definitions
    from tintype.evaluation.results import MetricValues
    from tintype.library.runs import evaluate as evaluate_run
    from tintype.library.runs import protocol_for
    from tintype.plan import plan_from_folder
    from tintype.runtime.dist import alone
    from tintype.runtime.machine import choose_device
    from tintype.terminal.progress import Progress
    from tintype.terminal.runs import show_evaluation

    def report(now: Scoring) -> None:
        bars.show(now.doing, now.done, now.total)

    result: MetricValues
    if images is not None and reference is not None:
        alone("tintype evaluate --images")
        of_images = settings_of(ImageProtocol, "evaluation", set_)
        kept = "features of the reference are cached once they are whole; run the same command again"
        with Progress(f"reading {images}", kept=kept) as bars:
            on = choose_device(device or "auto")
            found = evaluate_images(images, reference, of_images, on, save_reference, report, follow_links)
        counts = f"{found.images.count:,} against {found.reference.count:,} images"
        title, result, meanings = f"{images} against {reference}: {counts}", found, image_definitions(of_images)
    elif run is not None:
        run = run_of(run, arm, arm_seed)
        kept = f"whole shards of sampled images are in {run / 'evaluation'}; run the same command to resume"
        say(progress_console, f"protocol: {protocol_for(run, set_)[1]}")
        with Progress("loading the run", kept=kept) as bars:
            scored = evaluate_run(run, *set_, ema_length=ema_length, device=device, threads=threads, on_progress=report)
        size = "" if scored.size_px is None else f", images of {scored.size_px} px"
        title, result = f"{run} at step {scored.step} ({scored.weights} weights{size})", scored
        meanings = definitions(scored.protocol, plan_from_folder(run).data.of_scenes)
    print_json(result.dump()) if json_ else show_evaluation(title, result, meanings, console)


@app.command()
def ema(
    run: Annotated[Path, Argument(help="Folder of a run trained with power-ema, or of a study with --arm")],
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
    lengths: Annotated[
        str, Option(help="Lengths of the weight average, as fractions of the training")
    ] = "0.03,0.05,0.075,0.1,0.15,0.2,0.25",
    metric: Annotated[str | None, Option(help="Metric of the curve; by default the first of the protocol")] = None,
    set_: options.SetProtocol = [],  # noqa: B006
    device: options.Device = None,
    threads: options.Threads = None,
    json_: options.Json = False,
) -> None:
    """Score a run with weight averages of several lengths. Running it again resumes."""
    from tintype.evaluation.ema_curve import Curve, check_metric, read_lengths
    from tintype.evaluation.fit import fit_protocol, refuse
    from tintype.library.runs import protocol_for
    from tintype.plan import plan_from_folder
    from tintype.terminal.runs import score_lengths_with_progress, show_ema_curve

    run = run_of(run, arm, arm_seed)
    data = plan_from_folder(run).data
    protocol, words = protocol_for(run, set_)
    say(progress_console, f"protocol: {words}")
    fitted = fit_protocol(protocol, data)
    refuse(fitted.problems)
    wanted = check_metric(fitted.protocol, metric, data.of_scenes)
    curve = Curve(run, read_lengths(lengths), fitted.protocol, wanted, of_scenes=data.of_scenes)
    try:
        score_lengths_with_progress(curve, device, threads)
    finally:
        if curve.points:  # those of an interrupted command too
            print_json(curve.as_json()) if json_ else show_ema_curve(curve, console)


@app.command()
def compare(
    runs: Annotated[list[str], Argument(help="Folders of two or more runs; STUDY:ARM:SEED names a run of a study")],
    json_: options.Json = False,
) -> None:
    """Put runs of any studies or folders side by side: what differs in their plans, scores, losses, speed and time."""
    from tintype.library.studies import compare as compare_runs
    from tintype.study.side_by_side import as_json
    from tintype.terminal.compare import show_side_by_side

    compared = compare_runs(*runs)
    print_json(as_json(compared)) if json_ else show_side_by_side(compared, console)
