"""Snapshots of the weight averages, for good: `snapshots/step-N`, in the format of a checkpoint.

They are fp32. A reconstruction takes differences of snapshots, with weights that reach ten and more for a short average
(`power_function.fit`), and the rounding of fp16 would be as much larger.

A snapshot is written before the checkpoint of its step, and a run that resumes from a checkpoint removes the snapshots
of later steps, since it does these again. So they are of one training, each step once, and none is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tintype.errors import UserError
from tintype.optim.ema import UPDATES
from tintype.plan import Plan
from tintype.runtime.dist import World
from tintype.runtime.layout import whole
from tintype.train import checkpoint
from tintype.train.parts import LOSSES
from tintype.train.saving import Saver
from tintype.train.state import TrainState


def take_snapshot(folder: Path, plan: Plan, state: TrainState, saver: Saver | None = None) -> None:
    """Save the averages if it is time. What sampling does not need is left out."""
    if plan.ema is None or state.ema is None or not plan.ema.snapshot_due(state.step, plan.train.steps):
        return
    stored = state.ema.tensors()
    updates = int(stored.pop(UPDATES))
    if not updates:  # every step so far was skipped
        return
    kept = {name: tensor for name, tensor in stored.items() if not name.partition("/")[2].startswith(LOSSES)}
    tensors = {name: whole(tensor).cpu() for name, tensor in kept.items()}
    lengths = sorted({float(name.partition("/")[0]) for name in tensors})
    about: dict[str, Any] = {"step": state.step, UPDATES: updates, "lengths": lengths}

    def commit(tensors: Mapping[str, Tensor], world: World) -> None:
        checkpoint.commit(folder, about["step"], tensors, about, what="snapshot", stage="snapshot", world=world)

    (saver or Saver()).write(state.step, tensors, commit)


@dataclass(frozen=True)
class Snapshot:
    path: Path
    step: int
    updates: int
    lengths: tuple[float, ...]
    sha256: str
    """SHA-256 that its tensors should have."""


def read_snapshots(folder: Path) -> list[Snapshot]:
    """Return all whole snapshots, oldest first. Their tensors are not read."""
    found = []
    for step in checkpoint.steps(folder):
        path = checkpoint.folder_of(folder, step)
        try:
            about, sha256 = checkpoint.describe(path)
        except checkpoint.DamagedError as error:
            raise damaged(path, error) from None
        found.append(Snapshot(path, step, int(about[UPDATES]), tuple(about["lengths"]), sha256))
    return found


def damaged(path: Path, error: Exception) -> UserError:
    without = "remove it and run the same command again to do without it, less exactly"
    return UserError(f"the snapshot {path} is damaged ({error}); {without}")
