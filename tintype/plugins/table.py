"""A table of parts by name. Plugins can add parts to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from tintype.plugins.load import added
from tintype.plugins.registry import declare

T = TypeVar("T")


class Table(Mapping[str, T]):
    """Built-in parts by name, followed by plugin parts. A lookup of a built-in part loads no plugin."""

    def __init__(self, group: str, built_in: Mapping[str, T], base: type | None) -> None:
        self.group, self.built_in = group, dict(built_in)
        declare(group, self.built_in, base)

    def __getitem__(self, name: str) -> T:
        if name in self.built_in:
            return self.built_in[name]
        part: T = added(self.group)[name].part
        return part

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in added(self.group)

    def __iter__(self) -> Iterator[str]:
        return iter([*self.built_in, *added(self.group)])

    def __len__(self) -> int:
        return len(self.built_in) + len(added(self.group))
