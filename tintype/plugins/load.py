"""Load plugins from files that the user names, and from entry points of installed packages.

A file is read once: the hashed content is executed. Packages are loaded only for parts that are not built in.
"""

from __future__ import annotations

import hashlib
import importlib.util
import keyword
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from tintype.errors import UserError, as_user_error
from tintype.plugins import registry
from tintype.plugins.registry import GROUPS, Added, Plugin
from tintype.wording import option

VARIABLE = "TINTYPE_PLUGINS"
"""Environment variable with the paths of plugin files. Processes that a command starts inherit the variable."""
_PINNED = re.compile(r"#[0-9a-f]{64}$")
_MODULES = "tintype.plugins.files"
"""The package of the modules that are made from files."""
_files: dict[str, Plugin] = {}
"""Loaded files by name."""
_packages: dict[str, Plugin] = {}
"""Loaded packages by the name of their distribution."""
_searched: set[str] = set()
"""Groups whose entry points have been loaded."""
_loading: list[str] = []
"""Files that are being loaded. Files may read tables to which other plugins have not added their parts yet."""


def load_files(paths: Sequence[Path]) -> list[Plugin]:
    """Load plugin files. Make every process that this process starts load the same content."""
    found = [_load_file(path) for path in paths]
    _name_in_environment()
    return found


def load_environment() -> None:
    """Load the files that the environment variable names; a hash after a name must match the file."""
    there = {plugin.place for plugin in _files.values()}
    for name in os.environ.get(VARIABLE, "").split(os.pathsep):
        path, _, pin = name.rpartition("#") if _PINNED.search(name) else (name, "", "")
        if not name or path in there or path in _loading:
            continue
        if pin and (sha256 := _sha256_of(Path(path))) != pin:
            raise UserError(
                f"the plugin {path} was changed after the command that started this process had loaded it (sha256 "
                f"{pin[:12]}… then, {sha256[:12]}… now)",
                "restore the earlier file, or stop that command and start it again",
            )
        _load_file(Path(path))
        _name_in_environment()


def loaded() -> dict[str, Plugin]:
    """Return the loaded plugins by name. Before that, load the plugins that the environment variable names."""
    load_environment()
    return {**_files, **_packages}


def given_files() -> list[Path]:
    """Return the paths of the loaded files, in the order in which they were given."""
    load_environment()
    return [Path(plugin.place) for plugin in _files.values()]


def forget(plugin: Plugin) -> None:
    """Remove a plugin file and its parts from this process."""
    registry.remove(plugin)
    _files.pop(plugin.name, None)
    sys.modules.pop(f"{_MODULES}.{Path(plugin.place).stem}", None)
    _name_in_environment(without=plugin.place)


def added(group: str) -> dict[str, Added]:
    """Return the parts that plugins add to a group, by name. Before that, load the plugins with these names."""
    load_environment()
    if group not in _searched:
        _load_entries(group)
    return registry.known(group)


def _load_entries(group: str) -> None:
    """Load the entry points of a group; if one fails, drop all, so that the next call raises the same error."""
    before = dict(registry.known(group))
    _searched.add(group)  # before they are loaded: a package may read the table that it adds to
    try:
        for entry in entry_points(group=f"tintype.{group}"):
            _load_entry(entry, group)
    except BaseException:
        _searched.discard(group)
        registry.restore(group, before)
        raise


def load_packages() -> None:
    """Load the entry points of every group."""
    for group in GROUPS:
        added(group)


def parts_of(plugin: Plugin, group: str) -> dict[str, Any]:
    """Return the parts that a plugin has added to a group, by name."""
    return {name: one.part for name, one in added(group).items() if one.plugin == plugin}


def _name_in_environment(without: str = "") -> None:
    """Set the environment variable to the paths and hashes of the loaded files; keep other names at the end."""
    ours = {plugin.place: f"{plugin.place}#{plugin.sha256}" for plugin in _files.values()}
    named = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    others = [name for name in named if str(Path(_PINNED.sub("", name)).resolve()) not in (*ours, without)]
    os.environ[VARIABLE] = os.pathsep.join([*ours.values(), *others])


def _sha256_of(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: Path) -> bytes:
    with as_user_error(OSError, option("plugin", path)):
        return path.read_bytes()


def _load_file(path: Path) -> Plugin:
    place = str(path.resolve())
    if (there := _files.get(path.name)) is not None:
        if there.place != place:
            raise UserError(f"{option('plugin', path)}: {there.place} has the same name", "rename one of the two files")
        return there  # already loaded by this process
    name = path.name.removesuffix(".py")
    if path.suffix != ".py" or not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(
            f"{option('plugin', path)} is not a valid name for a Python module",
            "name the file with letters, digits and _, such as my_ideas.py",
        )
    if os.pathsep in place:
        raise UserError(
            f"{option('plugin', path)}: the path must not contain '{os.pathsep}', which separates files in {VARIABLE}",
            "move the file to another path",
        )
    content = _read(path)
    plugin = Plugin(path.name, hashlib.sha256(content).hexdigest(), place=place)
    _loading.append(place)
    try:
        module = _execute(content, f"{_MODULES}.{name}", path, place)
        _files[plugin.name] = plugin
        _add_parts(module, plugin)
    except BaseException:
        forget(plugin)
        raise
    finally:
        _loading.remove(place)
    return plugin


def _execute(content: bytes, name: str, path: Path, place: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = place
    sys.modules[name] = module  # pydantic looks up the names of annotations there
    try:
        exec(compile(content, place, "exec"), vars(module))
    except UserError as error:
        raise error.at(option("plugin", path)) from None
    except SyntaxError as error:
        raise UserError(f"{option('plugin', path)}, line {error.lineno}: {error.msg}") from None
    except Exception as error:
        own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == place]
        line = f", line {own[-1]}" if own else ""
        raise UserError(f"{option('plugin', path)}{line}: {type(error).__name__}: {error}") from error
    return module


def _add_parts(module: ModuleType, plugin: Plugin) -> None:
    found = 0
    for group in GROUPS:
        for name, part in _named(getattr(module, group.upper(), ()), group, plugin):
            registry.add(group, name, part, plugin)
            found += 1
    if not found:
        names = ", ".join(group.upper() for group in GROUPS)
        raise UserError(
            f"{option('plugin', plugin.place)}: the plugin adds nothing",
            f"define at least one of {names} (docs/plugins.md)",
        )


def _named(parts: object, group: str, plugin: Plugin) -> Iterable[tuple[str, Any]]:
    """Return a group's parts with their names. The names are the keys of a mapping, or each part's own name."""
    if isinstance(parts, Mapping):
        return [(str(name), part) for name, part in parts.items()]
    if not isinstance(parts, list | tuple):
        raise UserError(f"plugin {plugin.name}: {group.upper()} is not a list, tuple or mapping")
    return [(own_name(part), part) for part in parts]


def own_name(part: Any) -> str:
    """Return a part's own name. A part's own name is its kind, its attribute `name`, or its function name."""
    if hasattr(part, "kind_name"):
        return str(part.kind_name())
    return str(getattr(part, "name", "") or getattr(part, "__name__", part))


def _load_entry(entry: EntryPoint, group: str) -> None:
    plugin = _package_of(entry)
    try:
        part = entry.load()
    except Exception as error:
        raise UserError(
            f"the package {plugin.name} has the {registry.words(group)} '{entry.name}', which could not be "
            f"loaded from {entry.value} ({type(error).__name__}: {error})",
            f"update or uninstall {plugin.name}",
        ) from error
    registry.add(group, entry.name, part, plugin)


def _package_of(entry: EntryPoint) -> Plugin:
    """Return the plugin of a package; its hash covers all top-level modules that its entry points use."""
    package = entry.dist
    name, version = (package.name, package.version) if package else (entry.module.partition(".")[0], "unknown")
    if name not in _packages:
        every = [one for one in (package.entry_points if package else [entry]) if one.group.startswith("tintype.")]
        modules = sorted({one.module.partition(".")[0] for one in every})
        _packages[name] = Plugin(name, _sources_sha256(modules), version)
    return _packages[name]


def _sources_sha256(modules: Iterable[str]) -> str:
    """Return the hash of the Python sources of modules and packages. The hash covers relative paths and contents."""
    digest = hashlib.sha256()
    for name in modules:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin) if spec and spec.origin else None
        if origin is None or not origin.is_file():
            continue
        inside = bool(spec and spec.submodule_search_locations)
        for file in sorted(origin.parent.rglob("*.py")) if inside else [origin]:
            content = file.read_bytes()
            digest.update(f"{name}/{file.relative_to(origin.parent).as_posix()} {len(content)} ".encode())
            digest.update(content)
    return digest.hexdigest()
