"""Commands for techniques of your own: write a file for one, and check it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tintype.cli import options
from tintype.cli.shared import app, console, group, print_json
from tintype.terminal.lines import say
from tintype.terminal.progress import Progress

new_app = group("new", "Write a file to begin with.")


@new_app.command("technique")
def new_technique(
    name: Annotated[str, Argument(help="Name of the technique: lower-case words joined by -, as my-idea")],
    out: Annotated[Path | None, Option("--out", help="File to write; by default the name with .py")] = None,
) -> None:
    """Write a commented Python file with a working technique, its loss and its test, for `--plugin` and `check`."""
    from tintype.contract.template import write_technique
    from tintype.terminal.plugins import next_steps

    for line in next_steps(write_technique(name, out), name):
        say(console, line)


@app.command()
def check(
    file: Annotated[
        Path, Argument(help="Python file with techniques or other parts, as `tintype new technique` writes one")
    ],
    chosen: Annotated[
        list[str], Option("--technique", help="Only this technique of the file: name or name:key=value (repeatable)")
    ] = [],  # noqa: B006
    set_: Annotated[
        list[str], Option("--set", help="Override the tiny plan that they are tried on: key.path=value (repeatable)")
    ] = [],  # noqa: B006
    json_: options.Json = False,
) -> None:
    """Hold the techniques, samplers and guidances of your file to their contract; exit with 1 where one breaks it."""
    from tintype.contract.run import check_file
    from tintype.terminal.plugins import show_checked, show_result

    with Progress(f"loading {file}", unit="checks", kept="a check writes nothing; run the same command again") as bars:
        lines = bars.console_for_lines(console)
        checked = check_file(
            file,
            chosen,
            set_,
            lambda doing, done, total: bars.show("checking", done, total, doing),
            lambda result: None if json_ else show_result(result, lines),
        )
    if json_:
        plugin = {"name": checked.plugin.name, "sha256": checked.plugin.sha256}
        results = [asdict(result) for result in checked.results]
        print_json({"plugin": plugin, "parts": checked.parts, "passed": checked.passed, "results": results})
    else:
        show_checked(checked, console)
    if not checked.passed:
        sys.exit(1)
