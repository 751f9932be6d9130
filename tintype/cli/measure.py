"""Commands that measure: speed and precision."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tintype.cli import complete
from tintype.cli.shared import (
    AnyPlan,
    Arm,
    ArmSeed,
    Device,
    Json,
    Set,
    Techniques,
    app,
    console,
    plan_of,
    print_json,
    run_of,
)
from tintype.errors import UserError
from tintype.terminal.progress import Progress

if TYPE_CHECKING:
    from tintype.plan import Plan


@app.command()
def bench(
    recipe: Annotated[
        str,
        typer.Option(
            help="Plan to measure: name of a recipe, or path of a plan file", autocompletion=complete.recipe_names
        ),
    ] = "pocket",
    steps: Annotated[int, typer.Option(min=2, help="Training steps to time")] = 40,
    set_: Set = [],  # noqa: B006
    technique: Annotated[
        list[str],
        typer.Option(
            "--technique",
            help="Measure training without and with this technique (repeatable)",
            autocompletion=complete.technique_names,
        ),
    ] = [],  # noqa: B006
    tokens: Annotated[
        str | None, typer.Option(help="Measure training at these numbers of image tokens: 256,1024")
    ] = None,
    batch: Annotated[str | None, typer.Option(help="Measure training at these batch sizes: 32,256")] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="Time the metrics on 10,000 images")] = False,
    data: Annotated[
        bool,
        typer.Option(
            "--data", help="Measure how fast the images of a store are decoded, and how long training waits for them"
        ),
    ] = False,
    import_: Annotated[Path | None, typer.Option("--import", help="Measure the import of these images")] = None,
    json_: Json = False,
) -> None:
    """Measure the speed of training, sampling and rendering; with options that of techniques, metrics or decoding."""
    from tintype.bench.run import measure
    from tintype.metrics.speed import time_feature_metrics
    from tintype.runtime.dist import alone
    from tintype.terminal.bench import show_speeds
    from tintype.train.parts import choose_device, cpu_threads

    alone("tintype bench")
    plan = plan_of(recipe, set_, [])
    if import_ is not None:
        if data or metrics or technique or tokens is not None or batch is not None:
            raise UserError("--import measures an import and nothing else; leave the other measurements out")
        _bench_import(import_, json_)
        return
    if data:
        if metrics or technique or tokens is not None or batch is not None:
            raise UserError("--data measures decoding; leave out --metrics, --technique, --tokens and --batch")
        _bench_data(plan, steps, json_)
        return
    if technique or tokens is not None or batch is not None:
        if metrics:
            raise UserError("--metrics times the metrics and no training; leave out --technique, --tokens and --batch")
        counts, batches = _whole_numbers("--tokens", tokens, "256,1024"), _whole_numbers("--batch", batch, "32,256")
        _bench_training(plan, technique, counts, batches, steps, json_)
        return
    with _measuring() as bars, cpu_threads(plan.run):
        if metrics:
            sizes, device = (768, 1024, 2048), choose_device(plan.run.device)
            result = {}
            for number, size in enumerate(sizes):

                def on_part(part: str, done: int, total: int, number: int = number) -> None:
                    bars.show(None, number * total + done, len(sizes) * total, part)

                result[f"seconds, 10,000 × {size}"] = time_feature_metrics(10_000, size, device, on_part)
        else:
            result = asdict(measure(plan, steps, lambda part, done, total: bars.show(None, done, total, part)))
    if json_:
        print_json(result)
    else:
        show_speeds(result, console)


def _measuring() -> Progress:
    return Progress("measuring", unit="parts", kept="nothing was measured; run the same command again")


def _whole_numbers(option: str, value: str | None, example: str) -> list[int]:
    """Parse an option like --tokens 256,1024; return none where it was not given."""
    numbers = value.split(",") if value is not None else []
    for number in numbers:
        if not number.strip().isdecimal() or not int(number):
            raise UserError(f"{option} {value}: '{number}' is no whole number above 0; write it as {option} {example}")
    return [int(number) for number in numbers]


def _bench_training(
    plan: Plan, techniques: list[str], tokens: list[int], batches: list[int], steps: int, json_: bool
) -> None:
    from tintype.bench.run import compare
    from tintype.terminal.bench import show_comparison
    from tintype.train.parts import cpu_threads

    with _measuring() as bars, cpu_threads(plan.run):
        result = compare(
            plan, techniques, tokens, batches, steps, lambda row, done, total: bars.show(None, done, total, row)
        )
    print_json(asdict(result)) if json_ else show_comparison(result, console)


def _bench_import(source: Path, json_: bool) -> None:
    from tintype.bench.data import measure_import
    from tintype.terminal.bench import show_import_speed

    with Progress("importing", kept="nothing was kept; run the same command again") as bars:
        result = measure_import(source, lambda now: bars.show(None, now.done, now.total))
    print_json(asdict(result)) if json_ else show_import_speed(result, console)


def _bench_data(plan: Plan, steps: int, json_: bool) -> None:
    from tintype.bench.data import measure_data
    from tintype.terminal.bench import show_data_speeds
    from tintype.train.parts import cpu_threads

    with _measuring() as bars, cpu_threads(plan.run):
        result = measure_data(plan, steps, lambda part, done, total: bars.show(None, done, total, part))
    print_json(asdict(result)) if json_ else show_data_speeds(result, console)


@app.command()
def audit(
    target: AnyPlan,
    arm: Arm = None,
    arm_seed: ArmSeed = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps to observe")] = 4,
    set_: Set = [],  # noqa: B006
    technique: Techniques = [],  # noqa: B006
    device: Device = None,
    json_: Json = False,
) -> None:
    """Run a few steps to find where precision is lost silently. Nothing is written; exit code 1 if it is lost."""
    from tintype.audit.report import as_json
    from tintype.audit.run import audit_plan, audit_run
    from tintype.terminal.audit import show_audit

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
