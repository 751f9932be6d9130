"""Named fault points, at which a test can kill a run. A fault point does nothing unless a test has activated it."""

from __future__ import annotations

from collections.abc import Callable

_COMMIT = ("begin", "state", "manifest", "rename")
POINTS = (
    *("step.data", "step.backward", "step.optimizer", "step.done", "log.write"),
    *(*(f"save.{stage}" for stage in _COMMIT), "save.prune"),
    *(f"{save}.{stage}" for save in ("snapshot", "keep") for stage in _COMMIT),
    *("rows.sum", "rows.done", "text.index"),
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
