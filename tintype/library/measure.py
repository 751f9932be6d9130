"""Functions that measure speed and precision. Heavy modules are imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from tintype.errors import UserError
from tintype.library.kinds import AnyPath, AnySource, Count, Seed, Share
from tintype.library.plans import plan_of
from tintype.library.runs import Run, deliver, ignore, load_run
from tintype.wording import option, setting

if TYPE_CHECKING:
    from tintype.audit.run import Audit
    from tintype.bench.record import AnyResult, Measurement
    from tintype.bench.study import StudySpeeds
    from tintype.plan import Plan
    from tintype.runtime.files import Json
    from tintype.study.lab import StudyProgress
    from tintype.study.study import Study
    from tintype.study.supervisor import Jobs


def bench(
    of: str | None = None,
    *settings: str,
    recipe: str | None = None,
    steps: Annotated[int, Ge(2)] | None = None,
    techniques: Sequence[str] = (),
    tokens: str | None = None,
    batch: str | None = None,
    study: bool = False,
    runs: Count | None = None,
    jobs: str | None = None,
    arms: bool = False,
    metrics: bool = False,
    data: bool = False,
    import_: AnyPath | None = None,
    against: AnyPath | None = None,
    tolerance: Share = 0.05,
    out: AnyPath | None = None,
    argv: Sequence[str] = (),
    on_begin: Callable[[], None] | None = None,
    on_progress: Callable[[str, float, float], None] | None = None,
    on_study: StudyProgress | None = None,
) -> Measurement:
    """Measure the speed of training, sampling and rendering. Options measure techniques, studies, metrics or data.

    Args:
        of: with --study: name of a study, or path of a study file; by default mini, scored as optimizers-mini.
        settings: override a setting: key.path=value (repeatable).
        recipe: plan to measure: name of a recipe, or path of a plan file; by default pocket.
        steps: training steps to time; by default 40.
        techniques: measure training without and with this technique (repeatable).
        tokens: measure training at these numbers of image tokens: 256,1024.
        batch: measure training at these batch sizes: 32,256.
        study: measure how many runs of a study finish in an hour.
        runs: with --study: number of runs to time; by default 3 per job.
        jobs: with --study: number of runs at a time, or auto; by default auto on a GPU, 1 on a CPU.
        arms: with --study: run all arms of the study instead of only its baseline.
        metrics: time the metrics on 10,000 images.
        data: measure how fast the images of a store are decoded, and how long training waits for them.
        import_: folder or file of images: measure how fast they are imported.
        against: compare the speeds with those in this file, written by --out; exit code 1 if one is slower.
        tolerance: with --against: allowed slowdown against the recorded speeds, as a fraction.
        out: file to write the measurement to, as JSON.
        argv: the command line, to record in the file.
        on_begin: called after the arguments are checked and before the measurement begins.
        on_progress: called with the name of the measured part, the finished amount and the total amount.
        on_study: called with the messages that the runs of a study report.

    Raises:
        UserError: options exclude each other, the recorded speeds are of different work, or a run failed.
    """
    from tintype.bench.record import Measurement, read_record, refuse_other_work
    from tintype.bench.study import RUNS_PER_JOB, plan_of_study, study_to_measure, work_of_study
    from tintype.plan import read_plan
    from tintype.runtime.files import write_json
    from tintype.runtime.machine import choose_device, environment
    from tintype.study.supervisor import most_of, parse_jobs

    of_training = bool(techniques) or tokens is not None or batch is not None
    given = {"import": import_ is not None, "data": data, "metrics": metrics, "study": study}
    kinds = [name for name, is_given in given.items() if is_given]
    if len(kinds) + of_training > 1:
        others = f"{option('technique')}, {option('tokens')} and {option('batch')}" if of_training else "the other"
        named = " and ".join(option(kind) for kind in kinds)
        raise UserError(f"{named} cannot be measured together", f"leave out {others}")
    if against is not None and kinds not in ([], ["study"]):
        raise UserError(
            f"{option('against')} applies only to benchmarks of training, sampling, rendering and studies",
            f"leave out {option(kinds[0])}",
        )
    if not study and (of, runs, jobs, arms) != (None, None, None, False):
        raise UserError(
            f"a study, {option('runs')}, {option('jobs')} and {option('arms')} apply only to a benchmark of a "
            f"study's runs",
            f"add {option('study')}",
        )
    if study and steps is not None:
        raise UserError(
            f"{option('steps')}: the plan of a study's runs already sets their steps",
            f"use {setting('train.steps', 'N')}",
        )
    if out is not None and not Path(out).parent.is_dir():
        raise UserError(f"{option('out')}: {Path(out).parent} is not a folder", "create the folder first")
    counts, batches = _whole_numbers("tokens", tokens, "256,1024"), _whole_numbers("batch", batch, "32,256")
    at_a_time = parse_jobs(jobs)
    work: dict[str, Json]
    if study:
        to_run = study_to_measure(of, recipe, settings, runs or RUNS_PER_JOB * most_of(at_a_time), arms)
        plan, work = plan_of_study(to_run), work_of_study(to_run, at_a_time)
    else:
        plan = read_plan(recipe or "pocket", settings)
        work = {"bench": "training" if of_training else "plan", "plan": plan.hash}
    recorded = None
    if against is not None:
        recorded = read_record(Path(against))
        refuse_other_work(Path(against), recorded, environment(choose_device(plan.run.device))["device"], work)

    (on_begin or ignore)()
    report = on_progress or ignore
    result: AnyResult
    if study:
        result = _study_speeds(to_run, at_a_time, on_study)
    elif import_ is not None:
        from tintype.bench.data import measure_import

        result = measure_import(Path(import_), lambda now: report("", now.done, now.total))
    else:
        result = _plan_speeds(plan, steps or 40, techniques, (counts, batches), kinds, report)
    found = Measurement(result, work, join(["tintype", *argv]) if argv else "", recorded, tolerance)
    if out is not None:
        write_json(Path(out), found.content)
    return found


def _study_speeds(study: Study, jobs: Jobs, progress: StudyProgress | None) -> StudySpeeds:
    """Measure the speed of a study's runs. A signal ends the measurement without a result."""
    from tintype.bench.study import measure_study
    from tintype.runtime.interrupt import watch_signals
    from tintype.study.lab import SILENT
    from tintype.study.study import check_study

    shown = progress or SILENT
    with shown.phase("checking the data", "nothing was measured; run the same command again"):
        check_study(study)
    total = sum(len(arm.plans) for arm in study.arms)
    with watch_signals() as interrupt, shown.runs(total, interrupt) as on_message:
        speeds = measure_study(study, jobs, interrupt, on_message)
    if speeds is None:
        deliver(interrupt.signal)
        raise KeyboardInterrupt
    return speeds


def _plan_speeds(
    plan: Plan,
    steps: int,
    techniques: Sequence[str],
    sizes: tuple[list[int], list[int]],
    kinds: Sequence[str],
    on_part: Callable[[str, float, float], None],
) -> AnyResult:
    """Measure the speed of a plan in one process.

    The function measures the data, the metrics, or training with techniques or by size. By default, the function
    measures training, sampling and rendering.
    """
    from tintype.bench.data import measure_data
    from tintype.bench.metrics import measure_metrics
    from tintype.bench.run import compare, measure
    from tintype.runtime.machine import choose_device, cpu_threads

    with cpu_threads(plan.run.device, plan.run.threads):
        if "data" in kinds:
            return measure_data(plan, steps, on_part)
        if "metrics" in kinds:
            return measure_metrics(choose_device(plan.run.device), on_part)
        if techniques or any(sizes):
            return compare(plan, techniques, *sizes, steps, on_part)
        return measure(plan, steps, on_part)


def _whole_numbers(name: str, value: str | None, example: str) -> list[int]:
    """Return the numbers of an option such as --tokens 256,1024; empty if the option was not given."""
    numbers = value.split(",") if value is not None else []
    for number in numbers:
        if not number.strip().isdecimal() or not int(number):
            raise UserError(
                f"{option(name, value)}: '{number}' is not a whole number above 0",
                f"write it as {option(name, example)}",
            )
    return [int(number) for number in numbers]


def audit(
    plan: AnySource,
    *,
    arm: str | None = None,
    seed: Seed | None = None,
    steps: Count = 4,
    device: str | None = None,
    on_run: Callable[[Run], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Audit:
    """Run a few training steps to find silent loss of precision. Nothing is written; exit code 1 if precision is lost.

    Args:
        plan: a plan, name of a recipe, plan file, run or its folder, or folder of a study together with an arm. A run
            is audited from its newest checkpoint.
        arm: arm whose run is used, if a study's folder is given.
        seed: seed of the arm's run that is used; by default the first seed of the arm.
        steps: number of training steps to observe.
        device: auto, cpu, cuda or cuda:N; by default the device in the run's plan.
        on_run: called with the audited run, unless a plan is audited.
        on_progress: called with the number of finished steps.

    Raises:
        UserError: there is no such plan or run, or it cannot be trained on this machine.
    """
    from tintype.audit.run import audit_plan, audit_run

    on_step = on_progress or ignore
    if isinstance(plan, str | PathLike) and Path(plan).is_dir():
        plan = load_run(plan, arm, seed)
    elif arm is not None or seed is not None:
        raise UserError(
            f"{option('arm')} and {option('arm-seed')} choose a run of a study, but {plan} is not a folder",
            "leave them out",
        )
    if isinstance(plan, Run):
        (on_run or ignore)(plan)
        found = audit_run(plan.path, steps, device, on_step)
    else:
        found = audit_plan(plan_of(plan), steps, device, on_step)
    on_step(found.seen.steps)
    return found
