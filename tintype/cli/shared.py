"""What all commands share: the application, the consoles, and options of one meaning."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from tintype.terminal.encoding import EncodedConsole

if TYPE_CHECKING:
    from tintype.settings import Settings

S = TypeVar("S", bound="Settings")


class Commands(TyperGroup):
    """A group of commands whose help lists each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        rows = [(name, command.get_short_help_str(sys.maxsize)) for name, command in shown.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its markup would eat the brackets of encoders=[clip]
    help="Trains text-to-image models from scratch and says which training decisions are worth it.",
)

console = EncodedConsole(emoji=False)  # `a:b:` is no picture of a letter
progress_console = EncodedConsole(stderr=True, emoji=False)

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


def settings_of(model: type[S], name: str, assignments: list[str]) -> S:
    from tintype.strict import Document, parse

    document = Document(name, {})
    for assignment in assignments:
        document.override(assignment)
    return parse(model, document)


def plan_of(recipe: str, assignments: list[str], technique_specs: list[str]) -> Any:
    from tintype.plan import apply_techniques, read_plan

    return apply_techniques(read_plan(recipe, assignments), technique_specs)


def any_plan(name: str) -> Any:
    from tintype.plan import plan_from_folder

    return plan_from_folder(Path(name)) if Path(name).is_dir() else plan_of(name, [], [])


def print_json(value: Any) -> None:
    if console.quiet:  # another rank prints it
        return
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")
