"""The definition of a technique: a named function from one Plan to another, and the seams that it may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tintype.plan import Plan
from tintype.settings import Part, Settings

Changes: TypeAlias = dict[str, object]
"""Fields of the Plan with their new values."""
SHARED_SEAMS = frozenset({"losses"})
"""Seams that hold a list, so that several techniques can each add to them."""


class NoOptions(Settings):
    """For techniques without settings."""


@dataclass(frozen=True)
class Technique:
    """`options` are the settings a user may give (`name:key=value`); `apply` returns the changed fields of the Plan.

    A seam holds one technique, unless it is listed in `SHARED_SEAMS`. A technique with a `setting` holds that one
    setting of its seam and no more: the others of the seam must leave it as it is, and go together with it. `also` are
    other seams that it may adapt to what it does to its own; it does not hold them, so that another technique may
    change them too. `part` is the kind of part that it adds to a shared seam. Without `apply` the options are that
    part, or that of its own seam; with a `setting`, its value is the only option. `trains` names the prefixes of the
    parameters that it adds. `needs` are the settings that the plan must have for it, dotted key -> value; the part
    itself refuses a plan without them.
    """

    seam: str
    summary: str
    apply: Callable[[Plan, Any], Changes] | None = None
    options: type[Settings] = NoOptions
    paper: str | None = None
    part: type[Part] | None = None
    setting: str | None = None
    also: frozenset[str] = field(default_factory=frozenset)
    trains: frozenset[str] = field(default_factory=frozenset)
    needs: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    """That of its file, which the table of techniques sets: the words of both are one."""

    def changes(self, plan: Plan, options: Settings) -> Changes:
        """Return the changed fields of the Plan."""
        if self.apply is not None:
            return self.apply(plan, options)
        if self.setting is not None:
            (value,) = dict(options).values()
            return {self.seam: getattr(plan, self.seam).model_copy(update={self.setting: value})}
        return {self.seam: (*getattr(plan, self.seam), options) if self.seam in SHARED_SEAMS else options}

    @property
    def adds(self) -> type[Settings]:
        """The kind of part that it adds to a shared seam."""
        return self.part or self.options

    @property
    def seams(self) -> frozenset[str]:
        """Seams that it may change."""
        return self.also | {self.seam}
