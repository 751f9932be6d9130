"""The parts that plugins have added, by group and name. Used names and wrong classes are refused.

Modules declare their built-in parts (`declare`), and plugins add parts (`add`), in any order.
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
"""Groups to which a plugin can add parts."""


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin, which is a user's file or an installed package."""

    name: str
    """Name of the file, or of the package's distribution."""
    sha256: str
    """Hash of the file, or of the package's sources."""
    version: str = ""
    """Version of the distribution; empty for a file."""
    place: str = field(default="", compare=False)
    """Path of the file; empty for a package."""

    @property
    def is_file(self) -> bool:
        return not self.version


@dataclass(frozen=True)
class Added:
    part: Any
    plugin: Plugin


@dataclass
class _Group:
    """A group of parts, with the built-in names, the required class, and the parts that plugins added."""

    built_in: set[str] = field(default_factory=set)
    declared: bool = False
    base: type | None = None
    added: dict[str, Added] = field(default_factory=dict)


_groups = {name: _Group() for name in GROUPS}


def declare(group: str, names: Iterable[str], base: type | None) -> None:
    """Declare the built-in names of a group, and the class that plugin parts must have; None for functions."""
    mine = _groups[group]
    mine.built_in |= set(names)
    mine.declared = True
    mine.base = base or mine.base
    for name, one in mine.added.items():
        _check(group, name, one)


def add(group: str, name: str, part: Any, plugin: Plugin) -> None:
    one = Added(part, plugin)
    _check(group, name, one)
    there = _groups[group].added.get(name)
    if there is not None:
        other = there.plugin.name
        raise UserError(
            f"plugin {plugin.name}: the {words(group)} '{name}' is "
            + ("given twice" if other == plugin.name else f"also in the plugin {other}"),
            "give one of them another name",
        )
    _groups[group].added[name] = one


def remove(plugin: Plugin) -> None:
    for mine in _groups.values():
        mine.added = {name: one for name, one in mine.added.items() if one.plugin != plugin}


def restore(group: str, parts: Mapping[str, Added]) -> None:
    """Set the added parts of a group back to an earlier state."""
    _groups[group].added = dict(parts)


def is_built_in(group: str, name: str) -> bool:
    """Return whether a name in a group is built into tintype."""
    return name in _groups[group].built_in


def known(group: str) -> dict[str, Added]:
    """Return the parts that loaded plugins have added to a group, by name."""
    return _groups[group].added


def is_added(part: object) -> bool:
    """Return whether the part comes from a plugin."""
    return any(one.part is part for group in _groups.values() for one in group.added.values())


def words(group: str) -> str:
    """Return the singular of a group's name, such as `text encoder`."""
    irregular = {"losses": "loss", "main_losses": "main loss", "time_densities": "time density"}
    return irregular.get(group, group.removesuffix("s").replace("_", " "))


def _check(group: str, name: str, one: Added) -> None:
    mine, what = _groups[group], f"plugin {one.plugin.name}: its {words(group)} '{name}'"
    if name in mine.built_in:
        raise UserError(f"{what} is built into tintype", "choose another name for your own")
    if not mine.declared:
        return  # checked when the group's module is imported
    if mine.base is None:
        fits = callable(one.part)
    else:
        fits = issubclass(one.part, mine.base) if isinstance(one.part, type) else isinstance(one.part, mine.base)
    if not fits:
        wanted = "a function" if mine.base is None else f"a {mine.base.__module__}.{mine.base.__qualname__}"
        raise UserError(f"{what} is not {wanted}", "docs/plugins.md shows what is needed")
