"""Commands that measure: speed and precision."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from tintype.cli import complete, options
from tintype.cli.shared import app, console, plan_of, print_json, run_of
from tintype.errors import UserError
from tintype.terminal.progress import Progress


@app.command()
def bench(
    recipe: Annotated[
        str,
        Option(help="Plan to measure: name of a recipe, or path of a plan file", autocompletion=complete.recipe_names),
    ] = "pocket",
    steps: Annotated[int, Option(min=2, help="Training steps to time")] = 40,
    set_: options.Set = [],  # noqa: B006
    technique: Annotated[
        list[str],
        Option(
            "--technique",
            help="Measure training without and with this technique (repeatable)",
            autocompletion=complete.technique_names,
        ),
    ] = [],  # noqa: B006
    tokens: Annotated[str | None, Option(help="Measure training at these numbers of image tokens: 256,1024")] = None,
    batch: Annotated[str | None, Option(help="Measure training at these batch sizes: 32,256")] = None,
    metrics: Annotated[bool, Option("--metrics", help="Time the metrics on 10,000 images")] = False,
    data: Annotated[
        bool,
        Option(
            "--data", help="Measure how fast the images of a store are decoded, and how long training waits for them"
        ),
    ] = False,
    import_: Annotated[Path | None, Option("--import", help="Measure the import of these images")] = None,
    json_: options.Json = False,
) -> None:
    """Measure the speed of training, sampling and rendering; with options that of techniques, metrics or decoding."""
    from tintype.bench.data import measure_data, measure_import
    from tintype.bench.metrics import measure_metrics
    from tintype.bench.run import compare, measure
    from tintype.terminal.measure import show_comparison, show_data_speeds, show_import_speed, show_speeds
    from tintype.train.parts import choose_device, cpu_threads

    plan = plan_of(recipe, set_, [])
    of_training = technique or tokens is not None or batch is not None
    if import_ is not None:
        if data or metrics or of_training:
            raise UserError("--import measures an import and nothing else; leave the other measurements out")
        with Progress("importing", kept="nothing was kept; run the same command again") as bars:
            imported = measure_import(import_, lambda now: bars.show(None, now.done, now.total))
        print_json(asdict(imported)) if json_ else show_import_speed(imported, console)
        return
    if data and (metrics or of_training):
        raise UserError("--data measures decoding; leave out --metrics, --technique, --tokens and --batch")
    if metrics and of_training:
        raise UserError("--metrics times the metrics and no training; leave out --technique, --tokens and --batch")
    counts, batches = _whole_numbers("--tokens", tokens, "256,1024"), _whole_numbers("--batch", batch, "32,256")
    kept = "nothing was measured; run the same command again"
    with Progress("measuring", unit="parts", kept=kept) as bars, cpu_threads(plan.run):

        def on_part(part: str, done: int, total: int) -> None:
            bars.show(None, done, total, part)

        if data:
            speeds = measure_data(plan, steps, on_part)
            result, show = asdict(speeds), partial(show_data_speeds, speeds)
        elif of_training:
            compared = compare(plan, technique, counts, batches, steps, on_part)
            result, show = asdict(compared), partial(show_comparison, compared)
        else:
            device = choose_device(plan.run.device)
            result = measure_metrics(device, on_part) if metrics else asdict(measure(plan, steps, on_part))
            show = partial(show_speeds, result)
    print_json(result) if json_ else show(console)


def _whole_numbers(option: str, value: str | None, example: str) -> list[int]:
    """Parse an option like --tokens 256,1024; return none where it was not given."""
    numbers = value.split(",") if value is not None else []
    for number in numbers:
        if not number.strip().isdecimal() or not int(number):
            raise UserError(f"{option} {value}: '{number}' is no whole number above 0; write it as {option} {example}")
    return [int(number) for number in numbers]


@app.command()
def audit(
    target: options.AnyPlan,
    arm: options.Arm = None,
    arm_seed: options.ArmSeed = None,
    steps: Annotated[int, Option(min=1, help="Training steps to observe")] = 4,
    set_: options.Set = [],  # noqa: B006
    technique: options.Techniques = [],  # noqa: B006
    device: options.Device = None,
    json_: options.Json = False,
) -> None:
    """Run a few steps to find where precision is lost silently. Nothing is written; exit code 1 if it is lost."""
    from tintype.audit.run import as_json, audit_plan, audit_run
    from tintype.terminal.measure import show_audit

    of_run = Path(target).is_dir()
    if not of_run and (arm is not None or arm_seed is not None):
        raise UserError(f"--arm and --arm-seed choose a run of a study; {target} is no folder")
    if of_run and (set_ or technique):
        raise UserError(f"{target} is a run, which has its plan; --set and --technique are for recipes and plan files")
    run = run_of(Path(target), arm, arm_seed) if of_run else None
    with Progress("loading", kept="an audit writes nothing; run the same command again", unit="steps") as bars:

        def on_step(step: int) -> None:
            bars.show("auditing", step, steps)

        if run is not None:
            found = audit_run(run, steps, device, on_step)
        else:
            chosen = [*set_, *([f"run.device={device}"] if device is not None else [])]
            found = audit_plan(plan_of(target, chosen, technique), steps, on_step)
        bars.show("auditing", found.seen.steps, steps)
    if json_:
        print_json(as_json(found))
    else:
        show_audit(found, f"precision of {run or target}", console)
    if found.exit_code:
        sys.exit(found.exit_code)
