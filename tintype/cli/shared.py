"""The command-line application, its console, and functions for options that several commands share."""

from __future__ import annotations

import functools
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperGroup

from tintype.errors import UserError
from tintype.terminal import answers
from tintype.terminal.lines import EncodedConsole, say_chosen

if TYPE_CHECKING:
    from tintype.plan import Plan
    from tintype.settings import Settings

S = TypeVar("S", bound="Settings")
LAUNCHED = "TORCHELASTIC_RUN_ID"
"""Environment variable that `torchrun` sets in its processes.

`world.launched` is not used, since it would import torch for every command.
"""
_WRITTEN = ("out", "save_reference")
"""Parameters of commands that name a file or folder to write."""
_SHARED_BY_RANKS = ("train", "sample", "evaluate", "ema", "audit", "tokenizer cache")
"""Commands that several ranks can run together. All other commands run in one process."""
_UsageError: Any = typer.BadParameter.__mro__[2]
"""Base class of all errors of command-line syntax. Versions of typer define it in different modules."""


class Commands(TyperGroup):
    """A group of commands. The group's help lists each command with its full first sentence.

    Under `torchrun`, the group refuses commands that several ranks cannot run together.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command. With `--json`, errors in the command line are written as JSON too."""
        given = sys.argv[1:] if args is None else list(args)
        as_document = standalone_mode and "--json" in given
        run = functools.partial(super().main, args, prog_name, complete_var, windows_expand_args=windows_expand_args)
        if not as_document:
            return run(standalone_mode=standalone_mode, **extra)
        try:
            code = run(standalone_mode=False, **extra)
        except _UsageError as error:
            error.show()
            answers.write_error(error.exit_code, error.format_message())
            sys.exit(error.exit_code)
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        path = f"{ctx.info_name} {name}" if ctx.parent else name
        if LAUNCHED in os.environ and not isinstance(command, TyperGroup) and path not in _SHARED_BY_RANKS:
            from tintype.runtime.dist import alone

            alone(f"tintype {path}")
        if ctx.parent is None:
            files, rest = _take_plugins(rest)
            if not ctx.resilient_parsing:  # shell completion must not run the user's code
                load_plugins([*map(Path, ctx.params.get("plugin") or ()), *files])
        return name, command, rest

    def format_commands(self, ctx: object, formatter: Any) -> None:
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        rows = [(name, command.get_short_help_str(sys.maxsize)) for name, command in shown.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class App(typer.Typer):
    """A command-line application, or a group of its commands."""

    path = ""
    """Name of the group, followed by a space; empty for the application."""


@contextmanager
def as_document(asked: bool) -> Iterator[None]:
    """With `--json`, write one JSON document to stdout, and nothing else."""
    with answers.one_document(lambda: console.quiet) if asked else nullcontext():
        yield


def refuse_unwritable(options: Mapping[str, object]) -> None:
    """Raise if an option names a path that cannot be written to."""
    for name in _WRITTEN:
        if isinstance(path := options.get(name), Path):
            _refuse_unwritable(f"--{name.replace('_', '-')}", path)


def _refuse_unwritable(option: str, path: Path) -> None:
    """Raise if a path cannot be written to, before hours of work begin. The path's parent folders may be missing."""
    there = next(one for one in (path, *path.absolute().parents) if os.path.exists(one))  # noqa: PTH110 (never raises)
    if there != path and not there.is_dir():
        raise UserError(f"{option} {path}: {there} is a file, not a folder", f"choose another {option}")
    if not os.access(there, os.W_OK | os.X_OK if there.is_dir() else os.W_OK):
        raise UserError(f"{option} {path}: this user has no permission to write to {there}", f"choose another {option}")


app = App(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's markup would remove the brackets of encoders=[clip]
    help="Train text-to-image models from scratch and measure which training decisions are worth it.",
)

console = EncodedConsole(emoji=False)  # `a:b:` is not an emoji


def group(name: str, help: str) -> App:
    """Add and return a new group of commands, `tintype NAME …`."""
    made = App(cls=Commands, no_args_is_help=True, help=help)
    made.path = f"{name} "
    app.add_typer(made, name=name)
    return made


def plan_of(recipe: str, assignments: list[str], technique_specs: list[str]) -> Plan:
    from tintype.plan import read_plan
    from tintype.techniques.apply import apply_techniques

    return apply_techniques(read_plan(recipe, assignments), technique_specs, assignments)


def run_of(folder: Path, arm: str | None, seed: int | None) -> Path:
    """Return the folder of a run.

    If the given folder is a study, return the folder of an arm's run, otherwise the given folder.
    """
    from tintype.library.runs import load_run

    run = load_run(folder, arm, seed)
    say_chosen(run)
    return run.path


def load_plugins(files: list[Path]) -> None:
    """Load the plugin files that `--plugin` or the environment variable names."""
    if files or os.environ.get("TINTYPE_PLUGINS"):  # `plugins.load.VARIABLE`: most commands need no import of it
        from tintype.plugins.load import load_environment, load_files

        load_files(files)
        load_environment()


def _take_plugins(words: list[str]) -> tuple[list[Path], list[str]]:
    """Split the words after a command into the files of `--plugin` and the other words."""
    files: list[Path] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others += [word, *rest]
        elif word == "--plugin":
            if (file := next(rest, None)) is None:
                raise UserError("--plugin needs the path of a Python file")
            files.append(Path(file))
        elif word.startswith("--plugin="):
            files.append(Path(word.removeprefix("--plugin=")))
        else:
            others.append(word)
    return files, others


def named_command(words: Sequence[str]) -> str:
    """Return the command and its arguments, up to the first option. Logs use this text as the command's name."""
    _, others = _take_plugins(list(words))
    return textwrap.shorten(shlex.join(["tintype", *takewhile(lambda word: not word.startswith("-"), others)]), 100)


def command_names() -> list[str]:
    """Return the full names of all commands, such as `plan show`. Names of groups are not included."""
    return list(_names(typer.main.get_command(app)))


def _names(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path)
    for name, one in (inner or {}).items():
        yield from _names(one, (*path, name))
