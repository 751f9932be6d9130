"""Commands on studies: run one, report it, plan how many seeds it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tintype.cli import complete, options
from tintype.cli.derive import command
from tintype.cli.shared import app, console, print_json
from tintype.terminal.lines import progress_console, say_note

Jobs = Annotated[
    str | None,
    Option(
        "--jobs",
        help="Runs at a time: a number, or auto for as many as fit and raise the throughput; by default auto on a GPU, "
        "1 on a CPU",
    ),
]


@app.command()
def ablate(
    study: Annotated[
        str,
        Argument(
            help="Name of a study, path of a study file, or folder of a study to run again",
            autocompletion=complete.study_names,
        ),
    ],
    out: options.Out,
    jobs: Jobs = None,
    set_: Annotated[
        list[str], Option("--set", help='Override the study: "seeds=[0,1]" or "set=[optimizer.lr=2e-4]"')
    ] = [],  # noqa: B006
    arm: Annotated[list[str], Option("--arm", help="Only this arm (repeatable)")] = [],  # noqa: B006
    budget: Annotated[
        str | None, Option(help="Time for planned looks, as 45m: a look begins only where it is expected to fit")
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the arms, the number of runs and their cost, and stop")
    ] = False,
    like: Annotated[
        Path | None,
        Option(
            help="A past study: memory and steps of the same plans are taken from it; if its baseline is the same, the "
            "seed spread, and for --dry-run the seconds of a run"
        ),
    ] = None,
    gpu: Annotated[
        str, Option(help="Kind of GPU that the cost of a run is estimated for: h200, h100, b200, …")
    ] = "h200",
    prepare: Annotated[
        bool, Option("--prepare", help="Check the study and make its folder for `tintype work`, and stop")
    ] = False,
) -> None:
    """Run a study: every arm with every seed, then the comparison and the report."""
    from functools import partial

    from tintype.bench.expect import expected_seconds
    from tintype.library.studies import load_study
    from tintype.study.advice import margins_out_of_reach
    from tintype.study.costs import cost_of, parse_duration
    from tintype.study.folder import check_folder
    from tintype.study.supervisor import most_of, parse_jobs
    from tintype.terminal.costs import show_study_cost
    from tintype.terminal.progress import Progress
    from tintype.terminal.studies import (
        prepare_with_progress,
        run_with_progress,
        show_arms,
        show_bank,
        show_cost,
    )

    resolved, wanted = load_study(study, *set_, arms=arm), parse_jobs(jobs)
    budget_s = None if budget is None else parse_duration(budget)
    show_arms(resolved, console)
    show_bank(resolved, out, console)
    past = [out, *([like] if like else []), *map(Path, resolved.settings.analysis.bank)]
    for note in margins_out_of_reach(resolved, past):
        say_note(console, note)
    counted = show_study_cost(resolved, console, gpu)
    if dry_run:
        check_folder(resolved, out)
        with Progress("estimating the time", kept="nothing was measured; run the same command again"):
            cost = cost_of(resolved, out, like, most_of(wanted), partial(expected_seconds, resolved, counted))
        show_cost(cost, console)
        return
    if prepare:
        prepare_with_progress(resolved, out, console, ["tintype", *sys.argv[1:]])
        return
    code = run_with_progress(resolved, out, wanted, console, ["tintype", *sys.argv[1:]], budget_s, like)
    if code:
        sys.exit(code)


@app.command()
def work(
    folder: options.StudyFolder,
    run: Annotated[
        str | None, Option("--run", help="Only this run, by its hash or the beginning of it; also one that failed")
    ] = None,
    wait: Annotated[
        bool, Option(help="Wait for the runs of other workers, which may die, and for the next look")
    ] = True,
    expiry: Annotated[
        str, Option(help="A worker that cannot write for so long loses its run to another; as 120s")
    ] = "120s",
    jobs: Jobs = None,
) -> None:
    """Run what is left of a study, beside any number of other workers; end when nothing is left."""
    from tintype.study.costs import parse_duration
    from tintype.study.supervisor import parse_jobs
    from tintype.terminal.studies import work_with_progress

    work_with_progress(folder, console, run, wait, parse_duration(expiry), parse_jobs(jobs))


@app.command()
def launch(
    folder: Annotated[Path, Argument(help="Folder of a study, which all machines share", callback=options.folder_of)],
    on: Annotated[str, Option("--on", help="Where to start workers: slurm, ray, or ssh:HOST,HOST")],
    workers: Annotated[int, Option(min=1, help="Workers; with ssh, on each machine")] = 1,
    gpus_per_worker: Annotated[int, Option(min=0, help="GPUs of each worker")] = 1,
    jobs: Annotated[
        str | None,
        Option("--jobs", help="Runs of each worker at a time: a number, or auto; by default auto on a GPU, 1 on a CPU"),
    ] = None,
    time: Annotated[
        str | None, Option(help="Time limit of a worker with slurm, as 4h: it then saves and is queued again")
    ] = None,
    partition: Annotated[str, Option(help="Partition of slurm")] = "",
    address: Annotated[
        str, Option(help="Address of a Ray cluster; by default the one that Ray finds, or this machine")
    ] = "",
) -> None:
    """Start workers of a study on other machines, by Slurm, Ray or ssh."""
    from tintype.study.costs import parse_duration
    from tintype.study.launch.choose import choose_launcher
    from tintype.study.launch.launcher import Crew
    from tintype.terminal.studies import launch_workers

    time_s = None if time is None else parse_duration(time)
    crew = Crew(folder.resolve(), workers, gpus_per_worker, time_s, partition, jobs or "")
    launch_workers(crew, choose_launcher(on, address), console)


command(app, "status", "studies:status", "status:Runs")


@app.command()
def report(
    folder: options.StudyFolder,
    without_data: Annotated[
        bool, Option("--without-data", help="Leave out images and captions of the data, and local paths")
    ] = False,
) -> None:
    """Compare the runs of a study again, and write its report."""
    from tintype.terminal.studies import report_with_progress

    report_with_progress(folder, console, without_data)


@app.command()
def replicate(
    folder: options.StudyFolder,
    seeds: Annotated[int, Option(min=2, help="Fresh seeds for each arm with a verdict, and for the baseline")] = 10,
    jobs: Jobs = None,
    from_: Annotated[
        Path | None,
        Option(
            "--from",
            help="Run nothing: take the fresh runs of this finished study of the same plans (--seeds does not count)",
        ),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the verdicts, the number of fresh runs and their time, and stop")
    ] = False,
) -> None:
    """Hold each verdict of a study against fresh seeds: it holds, is open, or is contradicted."""
    from tintype.study.supervisor import parse_jobs
    from tintype.terminal.studies import replicate_from_with_progress, replicate_with_progress, show_replication

    if from_ is not None:
        replicate_from_with_progress(folder, from_, dry_run, console, ["tintype", *sys.argv[1:]])
        return
    wanted = parse_jobs(jobs)
    if dry_run:
        show_replication(folder, seeds, wanted, console)
        return
    code = replicate_with_progress(folder, seeds, wanted, console, ["tintype", *sys.argv[1:]])
    if code:
        sys.exit(code)


@app.command()
def propose(
    folder: Annotated[Path, Argument(help="Folder of a study that was run", callback=options.folder_of)],
    arm: Annotated[
        str | None,
        Option(
            help="What to try: NAME=PARTS, the parts techniques or key.path=value, joined by ' + '. Without it, list "
            "all proposals"
        ),
    ] = None,
    jobs: Jobs = None,
    budget: Annotated[
        str | None, Option(help="Time for this command, as 45m: a look begins only where it is expected to fit")
    ] = None,
    looks: Annotated[
        str | None, Option(help="Seeds at each look, as 4,8,16; with the first proposal to a study only")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what it would take and spend, and stop")] = False,
    json_: options.Json = False,
) -> None:
    """Propose one more arm to a study: run the seeds that it needs, and answer keep, drop or more seeds needed."""
    from tintype.study.propose import proposals
    from tintype.study.supervisor import parse_jobs
    from tintype.terminal.proposals import Options, propose_with_progress, show_proposal, show_proposals

    if arm is None:
        every = proposals(folder)
        print_json([one.model_dump(mode="json") for one in every]) if json_ else show_proposals(every, console)
        return
    given = Options(arm, budget, looks, dry_run)
    lines = progress_console if json_ else console
    found = propose_with_progress(folder, given, parse_jobs(jobs), lines, ["tintype", *sys.argv[1:]])
    print_json(found.model_dump(mode="json")) if json_ else show_proposal(found, console)
    if found.failed:
        sys.exit(1)


command(app, "power", "studies:power", "power:Seeds")
command(app, "pool", "studies:pool", "pooling:Tables")
