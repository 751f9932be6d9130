"""Functions that load plugins, which are Python files with your own techniques and parts, and write and check them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tintype.library.kinds import AnyPath
from tintype.library.runs import ignore

if TYPE_CHECKING:
    from tintype.contract.run import Checked, Result


def load_plugins(*plugins: AnyPath) -> dict[str, str]:
    """Load plugin files, as `--plugin` does. Plans, techniques and studies can then use their parts by name.

    Loading runs the code in the files, so load only files that you trust. Processes that are started later load the
    same files. A file that is already loaded is not loaded again, even if it has changed.

    Args:
        plugins: paths of Python files.

    Returns:
        The SHA-256 of each file by file name, as runs and studies record it.

    Raises:
        UserError: a file cannot be read or run, adds nothing, or has a name that is already in use.
    """
    from tintype.plugins.load import load_files

    return {plugin.name: plugin.sha256 for plugin in load_files([Path(file) for file in plugins])}


def new_technique(name: str, *, out: AnyPath | None = None) -> Path:
    """Write a commented Python file with a working technique, its loss and its test, to edit, load and check.

    Args:
        name: name of the technique: lower-case words joined by -, such as my-idea.
        out: file to write; by default the technique's name with .py.

    Returns:
        The path of the file.

    Raises:
        UserError: the name is not valid or already in use, or the file exists.
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
    """Check the techniques, samplers and guidances in a plugin file against tintype's rules; exit code 1 if one fails.

    Args:
        file: Python file with techniques or other parts, such as `tintype new technique` writes.
        settings: override a setting of the tiny plan on which the parts are checked: key.path=value (repeatable).
        techniques: check only this technique of the file: name or name:key=value (repeatable).
        on_progress: called with the name of the current check, the number of finished checks and of all checks.
        on_result: called with the result of each check as soon as it is known.

    Raises:
        UserError: the file cannot be run, or has no such technique.
    """
    from tintype.contract.run import check_file

    return check_file(Path(file), techniques, settings, on_progress or ignore, on_result or ignore)
