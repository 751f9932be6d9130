"""The command line. The exit code is 2 after a user error, 3 if a run diverged, and 130 or 143 after a signal.

For a user error, one message is printed and no traceback.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer
from safetensors import SafetensorError

import tintype
from tintype.cli import commands  # noqa: F401 (the import adds the commands)
from tintype.cli.options import Plugins
from tintype.cli.shared import LAUNCHED, app, console, named_command
from tintype.errors import UserError
from tintype.runtime.signals import end_with, handle_signals
from tintype.runtime.streams import prepare_streams
from tintype.terminal.answers import DIVERGED, exit_code
from tintype.terminal.interrupts import NOTHING_HARMED, Interrupted, begin_command, came, interrupt_command, leave
from tintype.terminal.lines import EncodedConsole, progress_console, say, show_notes
from tintype.terminal.progress import Heartbeat, duration

__all__ = ["DIVERGED", "app", "main"]


def main() -> None:
    prepare_streams()
    show_notes()
    begin_command()
    handle_signals(interrupt_command)
    try:
        _run_command()
    except SystemExit as ended:
        end_with(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise


def _run_command() -> None:
    """Run the command, which ends by raising SystemExit."""
    try:
        if LAUNCHED in os.environ:
            _run_as_rank()
        else:
            _run(_say_error)
    except UserError as error:
        _say_error(str(error))
        sys.exit(exit_code(error))
    except Interrupted as stopped:
        leave(stopped.number, stopped.kept or NOTHING_HARMED)
    except Exception:
        if (number := came()) is None:
            raise
        leave(number, NOTHING_HARMED)  # a library turned `Interrupted` into another error


def _run_as_rank() -> None:
    """Run the command as one of several ranks. Only the first rank prints.

    Torch is imported early, since the rank must join the process group.
    """
    from tintype.runtime import dist as world

    with world.joined() as ranks:
        console.quiet = progress_console.quiet = not ranks.leads
        _run(lambda text: ranks.say_once(text, _say_error))


def _run(say_error: Callable[[str], None]) -> None:
    began_s = time.monotonic()

    def line() -> str:
        return f"{named_command(sys.argv[1:])}: after {duration(time.monotonic() - began_s)}"

    try:
        with Heartbeat(progress_console, line):
            app()
    except UserError as error:
        say_error(str(error))
        sys.exit(exit_code(error))
    except BrokenPipeError:
        sys.exit(141)
    except (OSError, SafetensorError) as error:  # a full disk or a missing permission: no complete file is lost
        name = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        say_error(f"{reason}{name}. Fix this, then run the same command again to resume")
        sys.exit(2)


def _say_error(text: str) -> None:
    say(EncodedConsole(stderr=True), f"error: {text}", "red")


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"tintype {tintype.__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version")
    ] = False,
    plugin: Plugins = [],  # noqa: B006
) -> None:
    pass  # `Commands` loads all plugins, including those whose option comes after the command
