"""Plugins in Python: load files with parts of your own."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from tintype.plugins.load import load_files


def load_plugins(*plugins: str | PathLike[str]) -> dict[str, str]:
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
    return {plugin.name: plugin.sha256 for plugin in load_files([Path(file) for file in plugins])}
