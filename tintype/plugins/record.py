"""The record of the plugins with which a run or study was made. Later uses check that the same plugins are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from tintype.errors import DamagedFileError, UserError
from tintype.plugins.load import VARIABLE, added, load_packages, loaded
from tintype.plugins.registry import Plugin, is_built_in
from tintype.runtime.files import read_checked
from tintype.wording import option

FILE = "plugins.json"
"""Name of the record's file in the folder of a run or study."""
Record = dict[str, dict[str, str]]
"""Maps the name of each plugin to its hash and, for a package, its version."""


def record_of(parts: Iterable[tuple[str, str]]) -> Record:
    """Return the plugin record for these (group, name) parts: the files, and the packages that provide them."""
    others = [(group, name) for group, name in parts if not is_built_in(group, name)]
    used = [one.plugin for group, name in others if (one := added(group).get(name)) is not None]
    files = [plugin for plugin in loaded().values() if plugin.is_file]
    return {plugin.name: _about(plugin) for plugin in dict.fromkeys([*files, *used])}


def check_plugins(folder: Path, recorded: Mapping[str, Any]) -> None:
    """Raise unless each recorded plugin is loaded, with the recorded hash."""
    for name, about in recorded.items():
        if (plugin := _loaded(name, about)) is None:
            raise _missing(folder, name, about)
        if plugin.sha256 != about["sha256"]:
            of = f"{name} {about['version']}" if about.get("version") else name
            where = plugin.place or f"{name} {plugin.version}"
            raise UserError(
                f"{folder} was made with the plugin {of} (sha256 {about['sha256']}), "
                f"but {where} has sha256 {plugin.sha256}",
                f"use the earlier file, or start again with another {option('out')}",
            )


@contextmanager
def naming_missing_plugin(folder: Path) -> Iterator[None]:
    """Explain an error that occurs while a run or study is read, if one of its plugins is not loaded."""
    try:
        yield
    except DamagedFileError:
        raise
    except UserError as error:
        recorded = read_checked(folder / FILE, "put back the one that was there")
        lost = [name for name, about in recorded.items() if _loaded(name, about) is None]
        if not lost:
            raise
        problem, fix = _missing(folder, lost[0], recorded[lost[0]]).parts
        raise UserError(problem, f"{fix}\n{error.marked}") from None


def _about(plugin: Plugin) -> dict[str, str]:
    version = {"version": plugin.version} if plugin.version else {}
    return {"sha256": plugin.sha256, **version}


def _loaded(name: str, about: Mapping[str, str]) -> Plugin | None:
    """Return a loaded plugin, or None. An installed package is loaded first."""
    if name not in loaded() and about.get("version"):
        load_packages()
    return loaded().get(name)


def _missing(folder: Path, name: str, about: Mapping[str, str]) -> UserError:
    if version := about.get("version"):
        way = f"install it, for example `pip install {quote(f'{name}=={version}')}`"
    else:
        way = f"name the file before the command, `tintype --plugin {quote(name)} …`, or in {VARIABLE}"
    return UserError(
        f"{folder} was made with the plugin {name} (sha256 {about['sha256']}), but this plugin is not loaded", way
    )
