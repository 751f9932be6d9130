"""The application, its console, and what several commands do with their options."""

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
"""In the environment of processes that `torchrun` started; `world.launched` would import torch for every command."""
_WRITTEN = ("out", "save_reference")
"""Parameters of commands that name what is written."""
_SHARED_BY_RANKS = ("train", "sample", "evaluate", "ema", "audit", "tokenizer cache")
"""Commands whose work ranks share; all others run as one process."""
_UsageError: Any = typer.BadParameter.__mro__[2]
"""Base of all errors of the command line itself; where it is defined differs between versions of typer."""


class Commands(TyperGroup):
    """A group of commands whose help lists each with its whole first sentence. Few of them run under `torchrun`."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command. With `--json`, mistakes in the command line are a document too."""
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
            if not ctx.resilient_parsing:  # a shell that completes words runs no code of the user
                load_plugins([*map(Path, ctx.params.get("plugin") or ()), *files])
        return name, command, rest

    def format_commands(self, ctx: object, formatter: Any) -> None:
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        rows = [(name, command.get_short_help_str(sys.maxsize)) for name, command in shown.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class App(typer.Typer):
    """An application, or a group of its commands."""

    path = ""
    """Name of the group with a space; empty for the application."""


@contextmanager
def as_document(asked: bool) -> Iterator[None]:
    """Write one document to stdout and nothing else, if that is asked for by `--json`."""
    with answers.one_document(lambda: console.quiet) if asked else nullcontext():
        yield


def refuse_unwritable(options: Mapping[str, object]) -> None:
    """Refuse options that name what nothing can be written to."""
    for name in _WRITTEN:
        if isinstance(path := options.get(name), Path):
            _refuse_unwritable(f"--{name.replace('_', '-')}", path)


def _refuse_unwritable(option: str, path: Path) -> None:
    """Refuse a path that nothing can be written to before hours of work. Its folders may be missing."""
    there = next(one for one in (path, *path.absolute().parents) if os.path.exists(one))  # noqa: PTH110 (never raises)
    if there != path and not there.is_dir():
        raise UserError(f"{option} {path}: {there} is a file, and holds no others", f"choose another {option}")
    if not os.access(there, os.W_OK | os.X_OK if there.is_dir() else os.W_OK):
        raise UserError(f"{option} {path}: {there} may not be written by this user", f"choose another {option}")


app = App(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its markup would eat the brackets of encoders=[clip]
    help="Train text-to-image models from scratch and measure which training decisions are worth it.",
)

console = EncodedConsole(emoji=False)  # `a:b:` is not an emoji


def group(name: str, help: str) -> App:
    """Return a new group of commands, `tintype NAME …`."""
    made = App(cls=Commands, no_args_is_help=True, help=help)
    made.path = f"{name} "
    app.add_typer(made, name=name)
    return made


def plan_of(recipe: str, assignments: list[str], technique_specs: list[str]) -> Plan:
    from tintype.plan import read_plan
    from tintype.techniques.apply import apply_techniques

    return apply_techniques(read_plan(recipe, assignments), technique_specs, assignments)


def run_of(folder: Path, arm: str | None, seed: int | None) -> Path:
    """Return the folder of a run: this one, or that of an arm of the study in it."""
    from tintype.library.runs import load_run

    run = load_run(folder, arm, seed)
    say_chosen(run)
    return run.path


def load_plugins(files: list[Path]) -> None:
    """Load the files of `--plugin`, and those that the environment names."""
    if files or os.environ.get("TINTYPE_PLUGINS"):  # `plugins.load.VARIABLE`: most commands need no import of it
        from tintype.plugins.load import load_environment, load_files

        load_files(files)
        load_environment()


def _take_plugins(words: list[str]) -> tuple[list[Path], list[str]]:
    """Return the files of `--plugin` among the words after a command, and the other words."""
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
    """Return the command and what it works on, up to its first option, by which a log names it."""
    _, others = _take_plugins(list(words))
    return textwrap.shorten(shlex.join(["tintype", *takewhile(lambda word: not word.startswith("-"), others)]), 100)


def command_names() -> list[str]:
    """Return the names of all commands, without groups, as `plan show`."""
    return list(_names(typer.main.get_command(app)))


def _names(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path)
    for name, one in (inner or {}).items():
        yield from _names(one, (*path, name))
