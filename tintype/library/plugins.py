"""Plugins in Python: load files with parts of your own, write one, and check it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tintype.library.kinds import AnyPath
from tintype.library.runs import ignore

if TYPE_CHECKING:
    from tintype.contract.run import Checked, Result


def load_plugins(*plugins: AnyPath) -> dict[str, str]:
    """Load plugin files, as `--plugin` does: their parts have names in plans, techniques and studies from then on.

    Calling this is your word to run the files. Processes that are started later load the same files. A file that was
    loaded already stays as it was then.

    Args:
        plugins: paths of Python files.

    Returns:
        The SHA-256 of each file by its name, as runs and studies record it.

    Raises:
        UserError: a file cannot be read or run, adds nothing, or has a name that is taken.
    """
    from tintype.plugins.load import load_files

    return {plugin.name: plugin.sha256 for plugin in load_files([Path(file) for file in plugins])}


def new_technique(name: str, *, out: AnyPath | None = None) -> Path:
    """Write a commented Python file with a working technique, its loss and its test, for `--plugin` and `check`.

    Args:
        name: name of the technique: lower-case words joined by -, as my-idea.
        out: file to write; by default the name with .py.

    Returns:
        The path of the file.

    Raises:
        UserError: the name is not valid or taken, or the file is there already.
    """
    from tintype.contract.template import write_technique

    return write_technique(name, None if out is None else Path(out))


def check(
    file: AnyPath,
    *settings: str,
    techniques: Sequence[str] = (),
    on_progress: Callable[[str, int, int], None] | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> Checked:
    """Hold the techniques, samplers and guidances of your file to their contract; exit with 1 where one breaks it.

    Args:
        file: Python file with techniques or other parts, as `tintype new technique` writes one.
        settings: override the tiny plan that they are tried on: key.path=value (repeatable).
        techniques: only this technique of the file: name or name:key=value (repeatable).
        on_progress: called with what is checked, how many checks are done, and how many there are.
        on_result: called with each result as it comes.

    Raises:
        UserError: the file cannot be run, or has no such technique.
    """
    from tintype.contract.run import check_file

    return check_file(Path(file), techniques, settings, on_progress or ignore, on_result or ignore)
