"""The parts that plugins have added, by group and name.

The rooms of the parts declare what they have built in (`declare`); a plugin adds to a group (`add`). Either may come
first. A name that is taken, and a part of the wrong class, are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tintype.errors import UserError

GROUPS = (
    "techniques",
    "losses",
    "main_losses",
    "objectives",
    "weightings",
    "time_densities",
    "routers",
    "samplers",
    "guidances",
    "metrics",
    "text_encoders",
    "tokenizers",
    "optimizers",
    "importers",
    "launchers",
)
"""Kinds of parts that a plugin can add."""


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin: a file of the user, or an installed package."""

    name: str
    """Name of the file, or of the distribution."""
    sha256: str
    """Hash of the file, or of the sources of the package."""
    version: str = ""
    """Version of the distribution; empty for a file."""
    place: str = field(default="", compare=False)
    """Path of the file; empty for a package."""

    @property
    def is_file(self) -> bool:
        return not self.version


@dataclass(frozen=True)
class Added:
    """A part of a plugin."""

    part: Any
    plugin: Plugin


@dataclass
class _Group:
    """Parts of one group: names that are built in, what a part must be, and what plugins have added."""

    built_in: set[str] = field(default_factory=set)
    declared: bool = False
    base: type | None = None
    added: dict[str, Added] = field(default_factory=dict)


_groups = {name: _Group() for name in GROUPS}


def declare(group: str, names: Iterable[str], base: type | None) -> None:
    """Note the built-in names of a group, and the class that parts of plugins must have; None for functions."""
    mine = _groups[group]
    mine.built_in |= set(names)
    mine.declared = True
    mine.base = base or mine.base
    for name, one in mine.added.items():
        _check(group, name, one)


def add(group: str, name: str, part: Any, plugin: Plugin) -> None:
    """Add a part of a plugin to a group."""
    one = Added(part, plugin)
    _check(group, name, one)
    there = _groups[group].added.get(name)
    if there is not None:
        other = there.plugin.name
        raise UserError(
            f"plugin {plugin.name}: its {words(group)} '{name}' is "
            + ("given twice" if other == plugin.name else f"in the plugin {other} too"),
            "give one of them another name",
        )
    _groups[group].added[name] = one


def remove(plugin: Plugin) -> None:
    """Remove all parts of a plugin."""
    for mine in _groups.values():
        mine.added = {name: one for name, one in mine.added.items() if one.plugin != plugin}


def restore(group: str, parts: Mapping[str, Added]) -> None:
    """Give a group the parts that it had before."""
    _groups[group].added = dict(parts)


def is_built_in(group: str, name: str) -> bool:
    """Return whether a name of a group is tintype's own."""
    return name in _groups[group].built_in


def known(group: str) -> dict[str, Added]:
    """Return the parts that loaded plugins have added to a group, by name."""
    return _groups[group].added


def is_added(part: object) -> bool:
    """Return whether a plugin has added this part."""
    return any(one.part is part for group in _groups.values() for one in group.added.values())


def words(group: str) -> str:
    """Return what one part of a group is called: `text encoder`."""
    irregular = {"losses": "loss", "main_losses": "main loss", "time_densities": "time density"}
    return irregular.get(group, group.removesuffix("s").replace("_", " "))


def _check(group: str, name: str, one: Added) -> None:
    mine, what = _groups[group], f"plugin {one.plugin.name}: its {words(group)} '{name}'"
    if name in mine.built_in:
        raise UserError(f"{what} is built into tintype", "give yours another name")
    if not mine.declared:
        return  # checked when the room of the group is imported
    if mine.base is None:
        fits = callable(one.part)
    else:
        fits = issubclass(one.part, mine.base) if isinstance(one.part, type) else isinstance(one.part, mine.base)
    if not fits:
        wanted = "a function" if mine.base is None else f"a {mine.base.__module__}.{mine.base.__qualname__}"
        raise UserError(f"{what} is no {wanted.removeprefix('a ')}", "make it one (docs/plugins.md)")
