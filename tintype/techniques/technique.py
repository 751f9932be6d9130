"""Define a technique, which is a named function from one Plan to another, with the seams that it may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tintype.plan import Plan
from tintype.settings import Part, Settings

Changes: TypeAlias = dict[str, object]
"""Fields of the Plan, with their new values."""
SHARED_SEAMS = frozenset({"losses"})
"""Seams with a list of parts, to which several techniques can add."""


class NoOptions(Settings):
    """Empty options, for techniques without settings."""


@dataclass(frozen=True)
class Technique:
    """A technique. `options` are the settings that a user may give (`name:key=value`).

    `apply` returns the changed fields of the Plan.

    Only one technique can hold a seam, unless the seam is listed in `SHARED_SEAMS`. A technique with a `setting` holds
    only that setting of its seam, so other techniques can change other settings of the seam. `also` are other seams
    that the technique may adapt to its change. The technique does not hold the seams in `also`, so other techniques may
    change them too. `part` is the kind of the part that the technique adds to a shared seam. Without `apply`, the
    options are this part, or the part at the technique's own seam. With a `setting`, the only option is the setting's
    value. `trains` are name prefixes of the parameters that the technique adds. `needs` are settings that the plan must
    have, as dotted key -> value. The part itself refuses plans without these settings.
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
    """Name of the technique's file, with `-` for `_`; the table of techniques sets it."""

    def changes(self, plan: Plan, options: Settings) -> Changes:
        if self.apply is not None:
            return self.apply(plan, options)
        if self.setting is not None:
            (value,) = dict(options).values()
            return {self.seam: getattr(plan, self.seam).model_copy(update={self.setting: value})}
        return {self.seam: (*getattr(plan, self.seam), options) if self.seam in SHARED_SEAMS else options}

    @property
    def adds(self) -> type[Settings]:
        """Return the kind of part that the technique adds to a shared seam."""
        return self.part or self.options

    @property
    def seams(self) -> frozenset[str]:
        """Return the seams that the technique may change."""
        return self.also | {self.seam}
