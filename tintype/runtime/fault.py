"""Named points at which a test can make a run die. A point does nothing unless it was armed in this process."""

from __future__ import annotations

from collections.abc import Callable

POINTS = (
    "step.data",
    "step.backward",
    "step.optimizer",
    "step.done",
    "log.write",
    "save.begin",
    "save.state",
    "save.manifest",
    "save.rename",
    "save.prune",
    "snapshot.begin",
    "snapshot.state",
    "snapshot.manifest",
    "snapshot.rename",
    "rows.sum",
    "rows.done",
    "text.index",
)

_armed: dict[str, Callable[[], None]] = {}


def arm(name: str, action: Callable[[], None]) -> None:
    if name not in POINTS:
        raise KeyError(name)
    _armed[name] = action


def disarm() -> None:
    _armed.clear()


def point(name: str) -> None:
    if _armed:
        _armed.get(name, lambda: None)()
