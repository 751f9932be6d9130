"""The command that gives verdicts on the runs of any trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tintype.cli import options
from tintype.cli.shared import app, console, print_json


@app.command()
def judge(
    file: Annotated[
        Path, Argument(help="CSV, TSV or JSON lines with a row for each run: its arm, its seed, and its metrics")
    ],
    baseline: Annotated[
        str | None, Option(help="Arm that the others are compared with; by default the one called baseline")
    ] = None,
    metric: Annotated[
        list[str],
        Option(
            help="Column to judge by: NAME[:lower|higher][:share|distance|loss|raw], whichever is better, and what it "
            "is (repeatable); by default all columns of numbers"
        ),
    ] = [],  # noqa: B006
    primary: Annotated[
        list[str], Option(help="Metric of your question (repeatable); these get four fifths of the error")
    ] = [],  # noqa: B006
    margin: Annotated[
        str, Option(help="Differences up to this size are none worth having: 3% of the baseline's mean, or 0.02")
    ] = "3%",
    arm_column: Annotated[str, Option(help="Column that has the arm")] = "arm",
    seed_column: Annotated[str, Option(help="Column that has the seed")] = "seed",
    out: Annotated[
        Path | None, Option("--out", help="Folder for a report, with the verdicts as JSON and CSV beside it")
    ] = None,
    json_: options.Json = False,
) -> None:
    """Give verdicts on the runs of any trainer, from a table of arms, seeds and metrics."""
    from tintype.judge.page import PAGE, document
    from tintype.library.judge import judge as judge_file
    from tintype.terminal.judge import show_judgement

    found = judge_file(
        file,
        baseline=baseline,
        metric=metric,
        primary=primary,
        margin=margin,
        arm_column=arm_column,
        seed_column=seed_column,
        out=out,
    )
    page = None if out is None else out / PAGE
    if json_:
        print_json({**document(found), "report": None if page is None else str(page.resolve())})
    else:
        show_judgement(found, console, page)
