"""Commands that measure: speed and precision."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tintype.cli import complete, options
from tintype.cli.derive import command
from tintype.cli.shared import app, console, plan_of, print_json
from tintype.errors import UserError
from tintype.terminal.lines import progress_console
from tintype.terminal.progress import Progress

if TYPE_CHECKING:
    from tintype.bench.record import AnyResult


@app.command()
def bench(
    of: Annotated[
        str | None,
        Argument(
            metavar="[STUDY]",
            help="With --study: name of a study, or path of a study file; by default mini, scored as optimizers-mini",
            autocompletion=complete.study_names,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        Option(
            help="Plan to measure: name of a recipe, or path of a plan file; by default pocket",
            autocompletion=complete.recipe_names,
        ),
    ] = None,
    steps: Annotated[int | None, Option(min=2, help="Training steps to time; by default 40")] = None,
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
    study: Annotated[bool, Option("--study", help="Measure how many runs of a study are done in an hour")] = False,
    runs: Annotated[int | None, Option(min=1, help="With --study: runs to time; by default 3 per job")] = None,
    jobs: Annotated[
        str | None,
        Option(help="With --study: runs at a time, a number or auto; by default auto on a GPU, 1 on a CPU"),
    ] = None,
    arms: Annotated[bool, Option("--arms", help="With --study: all arms of the study, not its baseline alone")] = False,
    metrics: Annotated[bool, Option("--metrics", help="Time the metrics on 10,000 images")] = False,
    data: Annotated[
        bool,
        Option(
            "--data", help="Measure how fast the images of a store are decoded, and how long training waits for them"
        ),
    ] = False,
    import_: Annotated[Path | None, Option("--import", help="Measure the import of these images")] = None,
    against: Annotated[
        Path | None, Option(help="Compare with the figures in this file of --out; exit code 1 if one is slower")
    ] = None,
    tolerance: Annotated[
        float, Option(min=0, max=1, help="With --against: how much slower a figure may be, as a share")
    ] = 0.05,
    out: Annotated[Path | None, Option(help="File to write the measurement to, as JSON")] = None,
    json_: options.Json = False,
) -> None:
    """Measure the speed of training, sampling and rendering; with options of techniques, studies, metrics or data."""
    from tintype.bench.data import measure_data, measure_import
    from tintype.bench.metrics import measure_metrics
    from tintype.bench.record import changes, figures_of, read_record, refuse_other_work
    from tintype.bench.run import compare, measure
    from tintype.bench.study import RUNS_PER_JOB, plan_of_study, study_to_measure, work_of_study
    from tintype.runtime.files import write_json
    from tintype.runtime.machine import choose_device, cpu_threads, environment
    from tintype.study.supervisor import most_of, parse_jobs
    from tintype.terminal.measure import NOTHING_MEASURED, show, show_changes, study_with_progress

    of_training = bool(technique) or tokens is not None or batch is not None
    given = {"--import": import_ is not None, "--data": data, "--metrics": metrics, "--study": study}
    kinds = [name for name, is_given in given.items() if is_given]
    if len(kinds) + of_training > 1:
        others = "--technique, --tokens and --batch" if of_training else "the other"
        raise UserError(f"{' and '.join(kinds)}: each is measured by itself", f"leave out {others}")
    if against is not None and kinds not in ([], ["--study"]):
        raise UserError("--against compares training, sampling, rendering and studies", f"leave out {kinds[0]}")
    if not study and (of, runs, jobs, arms) != (None, None, None, False):
        raise UserError("STUDY, --runs, --jobs and --arms are for the runs of a study", "add --study")
    if study and steps is not None:
        raise UserError("--steps: the runs of a study have the steps of their plan", "use --set train.steps=N")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"--out: {out.parent} is no folder", "make it first")
    counts, batches = _whole_numbers("--tokens", tokens, "256,1024"), _whole_numbers("--batch", batch, "32,256")
    at_a_time, steps = parse_jobs(jobs), steps or 40
    if study:
        to_run = study_to_measure(of, recipe, set_, runs or RUNS_PER_JOB * most_of(at_a_time), arms)
        plan, work = plan_of_study(to_run), work_of_study(to_run, at_a_time)
    else:
        plan = plan_of(recipe or "pocket", set_, [])
        work = {"bench": "training" if of_training else "plan", "plan": plan.hash}
    recorded = None
    if against is not None:
        recorded = read_record(against)
        refuse_other_work(against, recorded, environment(choose_device(plan.run.device))["device"], work)

    result: AnyResult
    if study:
        result = study_with_progress(to_run, at_a_time)
    elif import_ is not None:
        with Progress("importing", kept="nothing was kept; run the same command again") as bars:
            result = measure_import(import_, lambda now: bars.show(None, now.done, now.total))
    else:
        with (
            Progress("measuring", unit="parts", kept=NOTHING_MEASURED) as bars,
            cpu_threads(plan.run.device, plan.run.threads),
        ):

            def on_part(part: str, done: int, total: int) -> None:
                bars.show(None, done, total, part)

            if data:
                result = measure_data(plan, steps, on_part)
            elif metrics:
                result = measure_metrics(choose_device(plan.run.device), on_part)
            elif of_training:
                result = compare(plan, technique, counts, batches, steps, on_part)
            else:
                result = measure(plan, steps, on_part)
    content = result if isinstance(result, dict) else asdict(result)
    if figures := figures_of(result):
        content = {**content, "command": join(["tintype", *sys.argv[1:]]), "work": work, "figures": figures}
    if out is not None:
        write_json(out, content)
    print_json(content) if json_ else show(result, console)
    if recorded is not None:
        slower = show_changes(changes(recorded, figures), tolerance, progress_console if json_ else console)
        if slower:
            sys.exit(1)


def _whole_numbers(option: str, value: str | None, example: str) -> list[int]:
    """Parse an option like --tokens 256,1024; return none where it was not given."""
    numbers = value.split(",") if value is not None else []
    for number in numbers:
        if not number.strip().isdecimal() or not int(number):
            raise UserError(
                f"{option} {value}: '{number}' is no whole number above 0", f"write it as {option} {example}"
            )
    return [int(number) for number in numbers]


command(app, "audit", "measure:audit", "measure:Findings")
